"""What all image scorers share: pictures in a fixed order, the number of failures, intervals over prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from stridebench.harness.core.task import Scored, SetScore
from stridebench.harness.errors import ContractError
from stridebench.harness.record.outputs import Picture
from stridebench.harness.record.stats import resample_counts

if TYPE_CHECKING:
    from jaxtyping import Float

RESAMPLES = 2_000
BATCH = 32


@dataclass(frozen=True)
class PictureSet:
    """The pictures of a cell with their prompts, in the order of prompt id and repetition.

    Args:
        ids: prompt id of each picture.
        categories: of its prompt.
        texts: of its prompt.
        pictures: the pictures.
        failures: number of outputs that are no picture.
    """

    ids: tuple[str, ...]
    categories: tuple[str, ...]
    texts: tuple[str, ...]
    pictures: tuple[Picture, ...]
    failures: int

    def only(self, category: str) -> PictureSet:
        """Return the pictures of one category. Failures are left out, because their categories are unknown."""
        indices = [index for index, name in enumerate(self.categories) if name == category]
        ids, texts = tuple(self.ids[i] for i in indices), tuple(self.texts[i] for i in indices)
        return PictureSet(ids, (category,) * len(indices), texts, tuple(self.pictures[i] for i in indices), 0)

    def groups(self) -> dict[str, list[Picture]]:
        """Return the pictures of each prompt."""
        out: dict[str, list[Picture]] = {}
        for name, picture in zip(self.ids, self.pictures, strict=True):
            out.setdefault(name, []).append(picture)
        return out


def sorted_pictures(outputs: Sequence[Scored]) -> PictureSet:
    """Sort outputs by the id of their prompt, so that no score depends on the order of decoding.

    Raises:
        ContractError: two outputs have the same prompt and repetition.
    """
    order = sorted(outputs, key=lambda one: (one.prompt.id, one.repetition))
    for one, other in pairwise(order):
        if (one.prompt.id, one.repetition) == (other.prompt.id, other.repetition):
            raise ContractError(f"prompt {one.prompt.id!r} has two outputs of repetition {one.repetition}")
    with_picture = [one for one in order if isinstance(one.output, Picture)]
    pictures = tuple(one.output for one in with_picture if isinstance(one.output, Picture))
    prompts = [one.prompt for one in with_picture]
    categories, texts = tuple(prompt.category for prompt in prompts), tuple(prompt.text or "" for prompt in prompts)
    return PictureSet(
        tuple(prompt.id for prompt in prompts), categories, texts, pictures, len(order) - len(with_picture)
    )


def batches(pictures: Sequence[Picture], size: int = BATCH) -> Iterator[Sequence[Picture]]:
    """Split the pictures into batches of at most ``size``."""
    for start in range(0, len(pictures), size):
        yield pictures[start : start + size]


def mean(ids: Sequence[str], values: Sequence[float], failures: int = 0) -> SetScore:
    """Return the mean over pictures. Its 95 % interval resamples prompts, because one prompt's pictures are correlated.

    Args:
        ids: prompt of each value.
        values: one a picture.
        failures: number of pictures without a value.
    """
    if not len(values):
        return SetScore(None, 0, failures, reason="no picture to score")
    value = float(np.mean(values))
    if len(set(ids)) < 2:
        return SetScore(value, len(values), failures)
    low, high = np.quantile(draws(ids, values), [0.025, 0.975])
    return SetScore(value, len(values), failures, float(low), float(high))


def draws(ids: Sequence[str], values: Sequence[float], seed: int = 0) -> Float[np.ndarray, " draws"]:
    """Return the means over resamples of the prompts, each with all its pictures."""
    names, prompt_of_value = np.unique(np.asarray(ids), return_inverse=True)
    drawn = resample_counts(len(names), RESAMPLES, seed)
    sums = np.bincount(prompt_of_value, np.asarray(values, dtype=np.float64), len(names))
    return np.asarray((drawn @ sums) / (drawn @ np.bincount(prompt_of_value, minlength=len(names))))
