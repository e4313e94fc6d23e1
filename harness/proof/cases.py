"""The small models, ways to sample and output lengths that methods are enumerated on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from stridebench.harness.backbones.masked_toy import MaskedTabular
from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core import capabilities
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.method import Method
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.errors import ContractError
from stridebench.harness.plan import presets

PROMPT = (0, 1, 0)
TOYS = ("tabular", "masked_tabular")
CONTEXT = 128
LONG_PROMPT = (0, 1, 1, 0) * 10


@cache
def presets_names() -> tuple[str, ...]:
    """Return the names of the shipped backbones that are not toys."""
    return tuple(sorted(name for name, spec in presets.by_name().items() if spec.adapter not in TOYS))


@dataclass(frozen=True)
class Case:
    """A tabular model, a way to sample, and an output length.

    Args:
        masked: a masked model, whose last id is the mask; with a grid, an order-free one, whose queries it is.
        noise: that of a masked model; "uniform" if it has no mask.
        block: block size of a masked model, or 0 if it has no blocks.
        batch: rows decoded in lock step, one of which is enumerated.
        joint: all rows are enumerated together, so that it shows whether they depend on each other.
        sharpness: of a text's distributions. In sharp ones a cut leaves a point mass at most positions.
        alike: correlation of the drafters' logits with the target's, so that long drafts are accepted.
        state: what the model keeps besides its entries (see `Tabular`).
        few: how many outputs have a positive probability, if a cut leaves so few that this says more than the length.
    """

    vocabulary: int
    length: int
    seed: int
    sampling: Sampling
    eos: tuple[int, ...] = ()
    prompt: tuple[int, ...] = PROMPT
    grid: tuple[int, ...] = ()
    masked: bool = False
    batch: int = 1
    joint: bool = False
    sharpness: float = 1.0
    alike: float = 0.0
    few: int = 0
    guidance: float = 1.0
    state: str = ""
    noise: str = "mask"
    block: int = 0

    def backbone(self) -> Tabular | MaskedTabular:
        """Return the model under the name of a real one, so that no name tells a method that it is on a toy."""
        preset = presets_names()[self.seed % len(presets_names())]
        if self.masked:
            sizes = ("vocabulary", "seed", "eos", "grid", "noise", "block")
            return MaskedTabular(preset, {key: getattr(self, key) for key in sizes})
        names = ("vocabulary", "seed", "eos", "grid", "sharpness", "alike", "guidance", "state")
        return Tabular(preset, {"context": CONTEXT, **{key: getattr(self, key) for key in names}})

    @property
    def outputs(self) -> int:
        """Return how many different ones there can be."""
        if self.few:
            return self.few
        forced = 0 if len(self.grid) < 3 else self.length // (self.grid[1] + 1)
        rows = self.batch if self.joint else 1
        last = len(self.grid) == 3 or (self.masked and self.noise == "mask")
        return int((self.vocabulary - last) ** ((self.length - forced) * rows))

    def __str__(self) -> str:
        parts = [f"V={self.vocabulary}", f"length={self.length}", f"seed={self.seed}"]
        parts.append(f"T={self.sampling.temperature:g}")
        parts += [f"top_k={self.sampling.top_k}"] if self.sampling.top_k else []
        parts += [f"top_p={self.sampling.top_p:g}"] if self.sampling.top_p < 1 else []
        parts += [f"min_p={self.sampling.min_p:g}"] if self.sampling.min_p else []
        parts += [self.sampling.order] if self.sampling.order != Sampling().order else []
        parts += ["eos"] if self.eos else []
        parts += [f"prompt={','.join(map(str, self.prompt))}"] if self.prompt != PROMPT else []
        parts += [f"batch={self.batch}{' jointly' if self.joint else ''}"] if self.batch > 1 else []
        parts += ["masked" if self.noise == "mask" else f"{self.noise} noise"] if self.masked else []
        parts += [f"block={self.block}"] if self.block else []
        parts += [f"sharpness={self.sharpness:g}"] if self.sharpness != 1 else []
        parts += [f"guidance={self.guidance:g}"] if self.guidance != 1 else []
        parts += [self.state] if self.state else []
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
    Case(2, 4, 810, Sampling(1.0), state="recurrent"),
    Case(3, 3, 811, Sampling(1.0), state="grammar"),
    Case(2, 3, 812, Sampling(1.0), prompt=(0, 1, 0, 0, 1, 1), state="prefix"),
    Case(2, 2, 42, Sampling(1.0), prompt=LONG_PROMPT),
    Case(2, 14, 1242, Sampling(1.0, top_p=0.75), sharpness=4.0, alike=0.98, few=11),
    Case(2, 70, 279, Sampling(1.0, top_p=0.6), sharpness=16.0, alike=0.98, few=3),
    Case(300, 2, 1536, Sampling(1.0, top_k=4), prompt=(0, 299, 100, 256, 7), sharpness=2.0, alike=0.98, few=16),
    Case(300, 14, 43, Sampling(0.0), prompt=(299, *LONG_PROMPT), sharpness=2.0, alike=0.98, few=1),
    Case(3, 2, 167, Sampling(0.7, top_k=2, top_p=0.75), prompt=(2, 0, 1)),
    Case(3, 2, 116, Sampling(0.7, top_k=2, top_p=0.65, order="filter_first"), prompt=(2, 1, 2)),
    Case(3, 3, 52, Sampling(0.25), prompt=(0, 1, 0, 1, 0)),
    Case(2, 3, 65, Sampling(0.15), prompt=(0, 1, 0, 1, 0)),
    Case(2, 3, 24, Sampling(1.7), prompt=(1, 0, 0, 1, 1)),
    Case(2, 3, 41, Sampling(0.15), prompt=(0, 1, 0, 1, 0)),
    Case(2, 3, 26, Sampling(1000.0), prompt=(1, 0, 1, 0)),
    Case(3, 2, 98, Sampling(0.7, top_p=0.7, order="filter_first"), prompt=(2, 2, 0, 1)),
    Case(3, 2, 500, Sampling(0.7, min_p=0.3), prompt=(1, 2, 1)),
    Case(3, 2, 501, Sampling(0.7, min_p=0.3, order="filter_first"), prompt=(2, 2, 1)),
    Case(4, 2, 544, Sampling(0.7, top_k=3, top_p=0.8, min_p=0.3), prompt=(3, 0, 1), few=5),
    Case(3, 2, 723, Sampling(0.7, top_k=2, top_p=0.75), prompt=(1, 0, 2), guidance=2.0),
    Case(2, 2, 28, Sampling(1.0), prompt=(1, 1, 0, 0), batch=2),
)
"""Smallest first, so that a mutant is caught early.

Then models with a running state, a grammar or a cache of prefixes; a long prompt; two long texts in which a cut leaves
few branches, all of them after the eighth token or after the 64th; large vocabularies; top-k and top-p together in both
orders; hot and cold ones; min-p; a guided model; a batch.
"""

PUBLISHED = Case(2, 6, 29, Sampling(1.0), eos=(1,))
"""For a method at its published window: five drafts deep, and most texts end early."""

PUBLISHED_GREEDY = replace(PUBLISHED, seed=61, sampling=Sampling(0.0))
"""For a method that claims equality at T = 0 only."""

DEAR_SEEDS = (11, 17, 18)
"""Of the texts that branch most."""

JOINT = Case(2, 2, 30, Sampling(1.0), prompt=(1, 1, 0, 0), batch=2, joint=True)
"""Both rows of a batch together. Each outcome decodes both anew: from a tenth of a second to 20 seconds of CPU time."""

GRID_CASES = (
    Case(3, 6, 21, Sampling(1.0), grid=(2, 2, 2)),
    Case(2, 4, 22, Sampling(1.0), grid=(2, 2)),
    Case(3, 6, 23, Sampling(0.0), grid=(2, 2, 2)),
    Case(2, 4, 517, Sampling(0.8, top_p=0.75), prompt=(0, 1, 1), grid=(2, 2), guidance=2.0),
    Case(2, 4, 813, Sampling(1.0), prompt=(0, 1, 0, 0, 1, 1), grid=(2, 2), state="prefix"),
)
"""Pictures, two of them with forced ends of rows: for methods that need a grid, and for settings that look at it."""


MASKED_CASES = (
    Case(3, 4, 31, Sampling(1.0), masked=True),
    Case(3, 4, 32, Sampling(0.0), masked=True),
    Case(3, 4, 33, Sampling(0.5), prompt=(0, 1), masked=True),
    Case(4, 4, 34, Sampling(1.0, top_p=0.8), masked=True),
    Case(3, 4, 39, Sampling(1.0), eos=(1,), masked=True, block=2),
)
"""Of two or three tokens and a mask; 1, 2 and 4 steps divide the length.

The last one has blocks, the first of which begins in the prompt, and a full block with an end of text is the last.
"""

UNIFORM_CASES = (
    Case(2, 2, 71, Sampling(1.0), masked=True, noise="uniform", block=3),
    Case(2, 3, 72, Sampling(0.0), masked=True, noise="uniform", block=3),
    Case(3, 1, 73, Sampling(1.0), prompt=(0, 2, 1), masked=True, noise="uniform", block=3),
    Case(3, 2, 74, Sampling(0.5), prompt=(1,), masked=True, noise="uniform", block=1),
)
"""Of uniform noise, in blocks as long as the prompt; the output of the last one is two blocks."""

QUERY_CASES = (
    Case(3, 4, 35, Sampling(1.0), masked=True, grid=(2, 2)),
    Case(3, 4, 36, Sampling(0.0), prompt=(0, 1), masked=True, grid=(2, 2)),
    Case(4, 4, 37, Sampling(0.5, top_p=0.8), masked=True, grid=(2, 2)),
    Case(3, 6, 38, Sampling(1.0), masked=True, grid=(2, 4)),
)
"""Of order-free models. In the last one each of four regions has two cells, and the text ends inside the picture."""

BATCH_CASES = (JOINT, Case(2, 3, 54, Sampling(1.0), prompt=(1, 0, 1, 0, 0), batch=3))
GRID_BATCH_CASES = (
    Case(2, 2, 45, Sampling(1.0), prompt=(1, 1, 0, 0), grid=(2, 2), batch=2, joint=True),
    Case(2, 3, 46, Sampling(1.0), prompt=(1, 0, 1, 0, 0), grid=(2, 2), batch=3),
)
"""Texts and pictures for a run that decodes in batches: two rows together, and three tokens a row."""


def batch_cases_of(method: Method[Any]) -> tuple[Case, ...]:
    """Return the cases that the proof of a run in batches needs in addition; none of masked and order-free models."""
    if capabilities.UNORDERED & method.requirements:
        return ()
    return GRID_BATCH_CASES if Requirement.GRID in method.requirements else BATCH_CASES


WIDER_CASES = (
    Case(6, 2, 47, Sampling(1.0)),
    Case(6, 3, 45, Sampling(1.0)),
    Case(6, 2, 50, Sampling(1.0), grid=(1, 2)),
    Case(2, 6, 48, Sampling(1.0), grid=(4, 4)),
    Case(2, 6, 48, Sampling(1.0), grid=(4, 8)),
    Case(2, 6, 48, Sampling(1.0), grid=(2, 16)),
    Case(2, 10, 42, Sampling(1.0), grid=(2, 9)),
    Case(3, 8, 60, Sampling(0.0), masked=True),
    Case(3, 16, 61, Sampling(0.0), masked=True),
    Case(3, 6, 62, Sampling(1.0), masked=True, grid=(4, 8)),
)
"""For approximate settings that no other case can hold, or on which they decode autoregressively.

They have rows that are longer than a window of ZipAR, codes with neighbours, more tokens than heads keep, and canvases
of more than one position a step.
"""


def wider_cases_of(method: Method[Any]) -> tuple[Case, ...]:
    """Return the cases of `WIDER_CASES` that a method can decode: pictures, masked models or texts."""
    if Requirement.BIDIRECTIONAL in method.requirements:
        uniform = Requirement.LAST_LOGITS in method.requirements
        return () if uniform else tuple(case for case in WIDER_CASES if case.masked and not case.grid)
    if Requirement.QUERIES in method.requirements:
        return tuple(case for case in WIDER_CASES if case.masked and case.grid)
    pictures = Requirement.GRID in method.requirements
    return tuple(case for case in WIDER_CASES if not case.masked and bool(case.grid) == pictures)


def joint_case_of(method: Method[Any]) -> tuple[Case, ...]:
    """Return the batch whose rows are enumerated together; none for a method that needs pictures or a masked model."""
    return () if {Requirement.GRID, Requirement.BIDIRECTIONAL} & method.requirements else (JOINT,)


def cases_to_verify(method: Method[Any], outputs: int | None = None) -> tuple[Case, ...]:
    """Return the cases of `stride verify`: without a limit of outputs also a batch enumerated jointly."""
    return (*cases_of(method, outputs), *(joint_case_of(method) if outputs is None else ()))


def halves(cases: Sequence[Case]) -> tuple[tuple[Case, ...], tuple[Case, ...]]:
    """Return the cases in two parts that take about equal time: all others, and those that branch most."""
    dear = tuple(case for case in cases if case.joint or case.seed in DEAR_SEEDS)
    return tuple(case for case in cases if case not in dear), dear


def cases_of(method: Method[Any], outputs: int | None = None) -> tuple[Case, ...]:
    """Return texts and pictures, or the pictures or masked models that a method needs; of at most so many outputs."""
    cases: tuple[Case, ...] = GRID_CASES if Requirement.GRID in method.requirements else CASES + GRID_CASES
    cases = MASKED_CASES if Requirement.BIDIRECTIONAL in method.requirements else cases
    cases = QUERY_CASES if Requirement.QUERIES in method.requirements else cases
    cases = UNIFORM_CASES if Requirement.LAST_LOGITS in method.requirements else cases
    cases = tuple(
        case for case in cases if case.state != "recurrent" or Requirement.TREE_MASK not in method.requirements
    )
    return tuple(case for case in cases if outputs is None or case.outputs <= outputs)


def order_of(method: Method[Any], case: Case) -> tuple[int, ...]:
    """Return the order of cells in which an order-free model is the method's reference, or () for other models.

    Raises:
        ContractError: it is not a permutation of the picture's cells.
    """
    grid = case.backbone().capabilities.grid
    if grid is None or Requirement.QUERIES not in method.requirements:
        return ()
    order = tuple(method.cell_order(grid))
    if sorted(order) != list(range(grid.length)):
        raise ContractError(
            f"{type(method).__name__}.cell_order gives the cells {order!r:.200}; give each of {grid.length} once"
        )
    return order
