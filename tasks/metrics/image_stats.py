"""What all image scorers share: pictures in a fixed order, failures counted, intervals over prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Float

from harness.core.task import Scored, SetScore
from harness.errors import ContractError
from harness.record.bootstrap import resample_counts
from harness.record.outputs import Picture

RESAMPLES = 2_000
BATCH = 32


@dataclass(frozen=True)
class Shown:
    """The pictures of a cell with their prompts, in the order of prompt id and repetition.

    Args:
        ids: prompt id of each picture. categories, texts: of its prompt. pictures: what came. failures: outputs that
            were no picture.
    """

    ids: tuple[str, ...]
    categories: tuple[str, ...]
    texts: tuple[str, ...]
    pictures: tuple[Picture, ...]
    failures: int

    def only(self, category: str) -> Shown:
        """The pictures of one category; failures, whose categories are not known here, are left out."""
        where = [index for index, name in enumerate(self.categories) if name == category]
        ids, texts = tuple(self.ids[i] for i in where), tuple(self.texts[i] for i in where)
        return Shown(ids, (category,) * len(where), texts, tuple(self.pictures[i] for i in where), 0)

    def groups(self) -> dict[str, list[Picture]]:
        """The pictures of each prompt."""
        out: dict[str, list[Picture]] = {}
        for name, picture in zip(self.ids, self.pictures, strict=True):
            out.setdefault(name, []).append(picture)
        return out


def shown(outputs: Sequence[Scored]) -> Shown:
    """Sort outputs by their prompt's id, so that no score depends on the order they came in.

    Raises:
        ContractError: two outputs have the same prompt and repetition.
    """
    order = sorted(outputs, key=lambda one: (one.prompt.id, one.repetition))
    for one, other in pairwise(order):
        if (one.prompt.id, one.repetition) == (other.prompt.id, other.repetition):
            raise ContractError(f"prompt {one.prompt.id!r} has two outputs of repetition {one.repetition}")
    good = [one for one in order if isinstance(one.output, Picture)]
    pictures = tuple(one.output for one in good if isinstance(one.output, Picture))
    asked = [one.prompt for one in good]
    categories, texts = tuple(prompt.category for prompt in asked), tuple(prompt.text or "" for prompt in asked)
    return Shown(tuple(prompt.id for prompt in asked), categories, texts, pictures, len(order) - len(good))


def batches(pictures: Sequence[Picture], size: int = BATCH) -> Iterator[Sequence[Picture]]:
    """The pictures in runs of at most ``size``."""
    for start in range(0, len(pictures), size):
        yield pictures[start : start + size]


def mean(ids: Sequence[str], values: Sequence[float], failures: int = 0) -> SetScore:
    """The mean over pictures; its 95 % interval resamples prompts, because pictures of one prompt are alike.

    Args:
        ids: prompt of each value. values: a figure a picture. failures: pictures without one.
    """
    if not len(values):
        return SetScore(None, 0, failures, reason="no picture to score")
    value = float(np.mean(values))
    if len(set(ids)) < 2:
        return SetScore(value, len(values), failures)
    low, high = np.quantile(draws(ids, values), [0.025, 0.975])
    return SetScore(value, len(values), failures, float(low), float(high))


def draws(ids: Sequence[str], values: Sequence[float], seed: int = 0) -> Float[np.ndarray, " draws"]:
    """Means over resamples of the prompts, each with all its pictures."""
    names, where = np.unique(np.asarray(ids), return_inverse=True)
    drawn = resample_counts(len(names), RESAMPLES, seed)
    sums = np.bincount(where, np.asarray(values, dtype=np.float64), len(names))
    return np.asarray((drawn @ sums) / (drawn @ np.bincount(where, minlength=len(names))))
