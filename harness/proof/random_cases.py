"""Cases drawn from a seed, so that a bias cannot be fitted to the fixed ones. Case i is the same in every replay."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.errors import EnumerationLimit, UsageError, said_by
from stridebench.harness.proof.cases import Case
from stridebench.harness.proof.distance import DRAWN, Measured, measure
from stridebench.harness.proof.prove import verdict_of

LONGEST_PROMPT = 40
HOT = 1000.0
"""A temperature at which all distributions are nearly equal, and so are the residuals."""


@dataclass
class Tried:
    """The random cases of one setting.

    Attributes:
        left_out: why others were not: the setting does not fit them, or they branch too much.
        error: any other error that a case raised; the setting is not tried again.
    """

    name: str
    method: Method[Any]
    measured: list[Measured] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    error: str | None = None

    @property
    def worst(self) -> Measured | None:
        """Return the case of the largest total variation."""
        return max(self.measured, key=lambda result: result.total_variation, default=None)

    @property
    def verdict(self) -> str:
        """Return the verdict as for a proof; unverified if a case failed or none was enumerated."""
        if self.error is not None or self.worst is None:
            return "unverified"
        return verdict_of(self.method.claim, self.worst.total_variation)


def try_random(settings: Mapping[str, Sequence[Method[Any]]], number: int, seed: int, budget_s: float) -> list[Tried]:
    """Enumerate ``number`` random cases of each method, whose settings take turns.

    Args:
        budget_s: no case begins after this many seconds; the cases tried until then are returned.
    """
    tried = {(name, index): Tried(name, method) for name in settings for index, method in enumerate(settings[name])}
    turns: dict[str, int] = defaultdict(int)
    end = time.monotonic() + budget_s
    for index in range(number):
        for name, methods in settings.items():
            if time.monotonic() > end:
                return list(tried.values())
            one = tried[name, turns[name] % len(methods)]
            turns[name] += 1
            if one.error is None:
                _try(one, random_case(one.method, seed, index))
    return list(tried.values())


def _try(one: Tried, case: Case) -> None:
    if one.method.claim is Claim.SAME_GREEDY and case.sampling.temperature > 0:
        one.left_out.append(f"{case}: it claims greedy equality only")
        return
    try:
        one.measured.append(measure(one.method, case, DRAWN))
    except (UsageError, EnumerationLimit) as error:
        one.left_out.append(f"{case}: {error}")
    except Exception as error:  # a plugin may raise anything: its row says so
        one.error = f"{case}: {said_by(error)}"


def random_case(method: Method[Any], seed: int, index: int) -> Case:
    """Return the case of this number: pictures or masked models if a method needs them, else mostly texts."""
    rng = np.random.Generator(np.random.Philox(key=np.array([seed, index], dtype=np.uint64)))
    if Requirement.BIDIRECTIONAL in method.requirements:
        return _masked(rng, "uniform" if Requirement.LAST_LOGITS in method.requirements else "mask")
    if Requirement.QUERIES in method.requirements:
        return replace(_masked(rng, "mask"), grid=((2, 2), (2, 4))[int(rng.integers(2))], block=0)
    if Requirement.GRID in method.requirements or rng.random() < 0.1:
        return _picture(rng)
    return _text(rng)


def _text(rng: np.random.Generator) -> Case:
    """Draw a short text over many tokens or hundreds, a long one over two, one that ends early, or a batch."""
    shape = rng.choice(["wide", "long", "ending", "batch"] * 4 + ["hundreds"])
    if shape == "hundreds":
        sampling = Sampling(1.0, int(rng.integers(2, 5)))
        return Case(300, 2, _model(rng), sampling, prompt=_prompt(rng, 300), sharpness=2.0, alike=0.98)
    eos: tuple[int, ...] = ()
    batch = 1
    if shape == "wide":
        vocabulary, length = int(rng.integers(3, 6)), int(rng.integers(1, 4))
    elif shape == "long":
        vocabulary, length = 2, int(rng.integers(3, 9))
    elif shape == "ending":
        vocabulary, length = 2, int(rng.integers(6, 13))
        eos = (int(rng.integers(2)),)
    else:
        vocabulary, length, batch = int(rng.integers(2, 4)), int(rng.integers(1, 3)), int(rng.integers(2, 5))
    prompt = _prompt(rng, vocabulary)
    joint = batch == 2 and vocabulary == 2
    case = Case(vocabulary, length, _model(rng), _sampling(rng, vocabulary), eos, prompt, batch=batch, joint=joint)
    return replace(case, guidance=_guidance(rng))


def _picture(rng: np.random.Generator) -> Case:
    grid = ((2, 2, 2), (2, 2), (4, 2), (2, 4))[int(rng.integers(4))]
    vocabulary = 3 if len(grid) == 3 else int(rng.integers(2, 4))
    length = min(6, grid[0] * (grid[1] + (len(grid) == 3)))
    prompt = _prompt(rng, vocabulary)
    case = Case(vocabulary, length, _model(rng), _sampling(rng, vocabulary), prompt=prompt, grid=grid)
    return replace(case, guidance=_guidance(rng))


def _masked(rng: np.random.Generator, noise: str) -> Case:
    vocabulary = int(rng.integers(3, 5)) - (noise == "uniform")
    ids = vocabulary - (noise == "mask")
    length, prompt = 4 if noise == "mask" else 2, _prompt(rng, ids)
    case = Case(vocabulary, length, _model(rng), _sampling(rng, ids), prompt=prompt, masked=True, noise=noise)
    return replace(case, block=len(prompt) if noise == "uniform" else int(rng.choice([0, 2, 3])))


def _prompt(rng: np.random.Generator, tokens: int) -> tuple[int, ...]:
    return tuple(rng.integers(tokens, size=int(rng.integers(1, LONGEST_PROMPT + 1))).tolist())


def _guidance(rng: np.random.Generator) -> float:
    """Draw the scale of a guided model, one in four."""
    return round(rng.uniform(1.2, 4.0), 2) if rng.random() < 0.25 else 1.0


def _model(rng: np.random.Generator) -> int:
    return int(rng.integers(1_000, 1 << 31))


def _sampling(rng: np.random.Generator, tokens: int) -> Sampling:
    """Draw a temperature, cold and hot ones too, and top-k, top-p and min-p, each in two of five, in either order."""
    temperature = float(rng.choice([0.0, 0.1, 1.0, HOT, *[round(rng.uniform(0.2, 2.0), 2)] * 6]))
    top_k = int(rng.integers(1, tokens + 1)) if rng.random() < 0.4 else 0
    top_p = round(rng.uniform(0.5, 1.0), 2) if rng.random() < 0.4 else 1.0
    min_p = round(rng.uniform(0.02, 0.7), 2) if rng.random() < 0.4 else 0.0
    return Sampling(temperature, top_k, top_p, "filter_first" if rng.random() < 0.5 else "temperature_first", min_p)
