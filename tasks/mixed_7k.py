""" "Mixed-7k", on which Cross-Regression trains its adapters.

Source: Abulkhanov et al., Cross-Regression, appendix D.1: "a balanced mixture of UltraChat, ShareGPT, and BaGel
instructions". Seeds, counts by source and versions are not given there; here the sources differ by one prompt at most,
draws are seeded, and no prompt is a benchmark's (equal texts, whatever their case and white space; not similar ones).
Clipping to 2,048 tokens is left to the training, which knows the tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from harness.core.task import Prompt, Task
from harness.errors import UsageError
from harness.registry import TASKS
from tasks.bagel import Bagel
from tasks.loaders.conversations import marks
from tasks.loaders.mixtures import draw, names, place
from tasks.loaders.texts import asked, key, ranked
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
        taken = marks(names(self.without))
        made: list[Prompt] = []
        sources = (
            UltraChat(*place(self.ultrachat), "train"),
            ShareGpt(*place(self.sharegpt), "train"),
            Bagel(*place(self.bagel), "train"),
        )
        for index, task in enumerate(sources):
            share = self.count // 3 + (index < self.count % 3)
            drawn = draw(task.name, task.prompts(), share, self.seed, taken)
            taken.update(key(text) for prompt in drawn for text in asked(prompt))
            made += [replace(prompt, category=task.name) for prompt in drawn]
        return tuple(ranked(made, self.seed))
