"""Draws training prompts from a data set, without questions of benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError
from stridebench.tasks.loaders.texts import key, questions_of, ranked


def draw(name: str, prompts: Sequence[Prompt], count: int, seed: int, excluded: set[str]) -> list[Prompt]:
    """Draw ``count`` of the prompts in a random order, without those whose questions are excluded.

    Args:
        name: of the data set, for messages.
        prompts: to draw from.
        count: number of prompts.
        seed: of the order.
        excluded: keys of questions that must not occur.

    Raises:
        UsageError: too few prompts are left.
    """
    free = [prompt for prompt in prompts if not any(key(text) in excluded for text in questions_of(prompt))]
    if not 0 < count <= len(free):
        raise UsageError(
            f"{count} prompts of {name} are asked for; of the {len(prompts)} that are for training, {len(free)} are "
            f"left without those of benchmarks and of other sources. Change count"
        )
    return ranked(free, seed)[:count]


class Place(NamedTuple):
    """Either a file or a data set of the hub; the other is ""."""

    file: str
    hub: str


def place(value: str) -> Place:
    """Parse a parameter: a file, or hub:ID@REVISION."""
    return Place("", value.removeprefix("hub:")) if value.startswith("hub:") else Place(value, "")


def names(value: Sequence[str] | str) -> tuple[str, ...]:
    """Return the names of a list, or of a text that separates them by commas or spaces."""
    return tuple(value.replace(",", " ").split()) if isinstance(value, str) else tuple(value)
