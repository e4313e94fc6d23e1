"""The two corpora that Cross-Regression trains its adapters on: 7,000 problems of GSM8K, and "Mixed-7k".

Source: Abulkhanov et al., Cross-Regression, appendix D.1: "a balanced mixture of UltraChat, ShareGPT, and BaGel
instructions". Seeds, counts by source and versions are not given there; here the sources differ by one prompt at most,
draws are seeded, and no prompt is a benchmark's (equal texts, whatever their case and white space; not similar ones).
Clipping to 2,048 tokens is left to the training, which knows the tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from harness.core.task import Prompt, Task
from harness.errors import UsageError
from harness.registry import TASKS
from tasks._conversations import marks
from tasks._texts import asked, key, ranked
from tasks.bagel import Bagel
from tasks.gsm8k import Gsm8k
from tasks.sharegpt import ShareGpt
from tasks.ultrachat import UltraChat

BENCHMARKS = ("gsm8k", "humaneval", "mbpp", "math500", "mt_bench")
"""What Cross-Regression evaluates on beside ShareGPT, whose test side is apart by itself."""


@TASKS.register("mixed_7k")
@dataclass(frozen=True)
class Mixed7k(Task):
    """Prompts to train on: as many of UltraChat, ShareGPT and Bagel, which are the categories, mixed.

    Args:
        count: of all. seed: of the draw and of the order. ultrachat, sharegpt, bagel: their files, or hub:official,
            or hub:ID@REVISION; "" is the data folder.
        without: tasks none of whose prompts may be among these; their data must be at hand.
    """

    count: int = 7000
    seed: int = 0
    ultrachat: str = ""
    sharegpt: str = ""
    bagel: str = ""
    without: tuple[str, ...] | str = field(default=BENCHMARKS)

    source = "Cross-Regression, appendix D.1"

    def __post_init__(self) -> None:
        """Check the parameter.

        Raises:
            UsageError: fewer prompts than sources.
        """
        if self.count < 3:
            raise UsageError(f"the task mixed_7k was given count={self.count}; it has three sources, take 3 or more")

    def prompts(self) -> Sequence[Prompt]:
        """``count`` prompts, in a random order.

        Raises:
            UsageError: data is missing, or a source has too few prompts.
        """
        taken = marks(_names(self.without))
        made: list[Prompt] = []
        sources = (
            UltraChat(*_place(self.ultrachat), "train"),
            ShareGpt(*_place(self.sharegpt), "train"),
            Bagel(*_place(self.bagel), "train"),
        )
        for place, task in enumerate(sources):
            share = self.count // 3 + (place < self.count % 3)
            drawn = _drawn(task.name, task.prompts(), share, self.seed, taken)
            taken.update(key(text) for prompt in drawn for text in asked(prompt))
            made += [replace(prompt, category=task.name) for prompt in drawn]
        return tuple(ranked(made, self.seed))


@TASKS.register("gsm8k_7k")
@dataclass(frozen=True)
class Gsm8k7k(Task):
    """Prompts to train on: problems of GSM8K's training split, drawn with a seed.

    Args:
        count: of the 7,473. seed: of the draw and of the order. file: train.jsonl, or hub:official. form: see the
            task gsm8k.
        without: tasks none of whose prompts may be among these; their data must be at hand.
    """

    count: int = 7000
    seed: int = 0
    file: str = ""
    form: str = "qa"
    without: tuple[str, ...] | str = field(default=("gsm8k",))

    source = "Cross-Regression, appendix D.1; arXiv:2110.14168"

    def prompts(self) -> Sequence[Prompt]:
        """``count`` prompts, in a random order.

        Raises:
            UsageError: data is missing, or there are too few problems.
        """
        found = Gsm8k("train", *_place(self.file), form=self.form).prompts()
        return tuple(_drawn("gsm8k", found, self.count, self.seed, marks(_names(self.without))))


def _drawn(name: str, found: Sequence[Prompt], count: int, seed: int, taken: set[str]) -> list[Prompt]:
    free = [prompt for prompt in found if not any(key(text) in taken for text in asked(prompt))]
    if not 0 < count <= len(free):
        raise UsageError(
            f"{count} prompts of {name} are asked for; of the {len(found)} that are for training, {len(free)} are "
            f"left without those of benchmarks and of other sources. Change count"
        )
    return ranked(free, seed)[:count]


class Place(NamedTuple):
    """A file, or a data set of the hub; the other is ""."""

    file: str
    hub: str


def _place(given: str) -> Place:
    return Place("", given.removeprefix("hub:")) if given.startswith("hub:") else Place(given, "")


def _names(given: Sequence[str] | str) -> tuple[str, ...]:
    return tuple(given.replace(",", " ").split()) if isinstance(given, str) else tuple(given)
