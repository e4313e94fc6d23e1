"""The small models, ways to sample and output lengths that methods are enumerated on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.backbones.toy.masked_tabular import MaskedTabular
from harness.backbones.toy.tabular import Tabular
from harness.core.capabilities import Requirement
from harness.core.method import Method
from harness.core.sampling import Sampling


@dataclass(frozen=True)
class Case:
    """A tabular model, a way to sample, and an output length. ``masked``: a masked model, whose last id is the mask."""

    vocabulary: int
    length: int
    seed: int
    sampling: Sampling
    eos: tuple[int, ...] = ()
    prompt: tuple[int, ...] = (0, 1, 0)
    grid: tuple[int, ...] = ()
    masked: bool = False

    def backbone(self) -> Tabular | MaskedTabular:
        """The model."""
        if self.masked:
            return MaskedTabular("masked_tabular", {"vocabulary": self.vocabulary, "seed": self.seed})
        params = {"vocabulary": self.vocabulary, "seed": self.seed, "eos": self.eos, "grid": self.grid}
        return Tabular("tabular", params)

    @property
    def outputs(self) -> int:
        """How many different ones there can be."""
        forced = 0 if len(self.grid) < 3 else self.length // (self.grid[1] + 1)
        return int((self.vocabulary - (len(self.grid) == 3 or self.masked)) ** (self.length - forced))

    def __str__(self) -> str:
        parts = [f"V={self.vocabulary}", f"length={self.length}", f"seed={self.seed}"]
        parts.append(f"T={self.sampling.temperature:g}")
        parts += [f"top_k={self.sampling.top_k}"] if self.sampling.top_k else []
        parts += [f"top_p={self.sampling.top_p:g}"] if self.sampling.top_p < 1 else []
        parts += ["eos"] if self.eos else []
        parts += ["masked"] if self.masked else []
        return " ".join(parts + ([f"grid={'x'.join(map(str, self.grid[:2]))}"] if self.grid else []))


CASES = (
    Case(2, 3, 10, Sampling(1.0)),
    Case(3, 3, 11, Sampling(1.0), eos=(2,)),
    Case(3, 3, 19, Sampling(0.0)),
    Case(3, 3, 20, Sampling(1.0, top_k=2)),
    Case(3, 4, 12, Sampling(0.0)),
    Case(2, 5, 13, Sampling(0.0), eos=(1,)),
    Case(3, 3, 14, Sampling(0.5)),
    Case(3, 4, 15, Sampling(1.0, top_k=2)),
    Case(3, 3, 16, Sampling(1.0, top_p=0.8)),
    Case(2, 5, 17, Sampling(1.0)),
    Case(3, 4, 18, Sampling(1.0)),
)
"""Smallest first, so that a mutant is caught early."""


GRID_CASES = (
    Case(3, 6, 21, Sampling(1.0), grid=(2, 2, 2)),
    Case(2, 4, 22, Sampling(1.0), grid=(2, 2)),
    Case(3, 6, 23, Sampling(0.0), grid=(2, 2, 2)),
)
"""Pictures, two of them with forced ends of rows: for methods that need a grid, and for settings that look at it."""


MASKED_CASES = (
    Case(3, 4, 31, Sampling(1.0), masked=True),
    Case(3, 4, 32, Sampling(0.0), masked=True),
    Case(3, 4, 33, Sampling(0.5), prompt=(0, 1), masked=True),
    Case(4, 4, 34, Sampling(1.0, top_p=0.8), masked=True),
)
"""Of two or three tokens and a mask; the length is what 1, 2 and 4 steps divide."""


def cases_of(method: Method[Any], outputs: int | None = None) -> tuple[Case, ...]:
    """Texts and pictures, pictures or masked models alone for a method that needs them; of at most so many outputs."""
    cases: tuple[Case, ...] = GRID_CASES if Requirement.GRID in method.requirements else CASES + GRID_CASES
    cases = MASKED_CASES if Requirement.BIDIRECTIONAL in method.requirements else cases
    return tuple(case for case in cases if outputs is None or case.outputs <= outputs)
