""" "Mixed-7k", on which Cross-Regression trains its adapters, and its sources: first turns of three data sets.

Source: Abulkhanov et al., Cross-Regression, appendix D.1: "a balanced mixture of UltraChat, ShareGPT, and BaGel
instructions". The paper gives no seeds, counts by source or versions. Here the counts differ by one prompt at most and
draws are seeded. Prompts that equal a benchmark's up to case and white space are left out; similar prompts are not. The
training clips to 2,048 tokens, because it knows the tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from stridebench.harness.core.task import Prompt, Task
from stridebench.harness.errors import within
from stridebench.harness.registry import TASKS
from stridebench.tasks.loaders.conversations import ConversationTask, draw, marks, names, place
from stridebench.tasks.loaders.texts import PublishedTexts, key, questions_of, ranked

SHAREGPT_FILE = "ShareGPT_V3_unfiltered_cleaned_split.json"
SHAREGPT = "anon8231489123/ShareGPT_Vicuna_unfiltered"


@TASKS.register("sharegpt")
@dataclass(frozen=True)
class ShareGpt(ConversationTask):
    """Answer the first question of a user of ChatGPT; training draws from split=train."""

    source = f"{SHAREGPT}, on the hub"
    name = "sharegpt"
    data = PublishedTexts(
        "ShareGPT",
        SHAREGPT_FILE,
        f"{SHAREGPT} on the hub ({SHAREGPT_FILE})",
        f"{SHAREGPT}@192ab2185289094fc556ec8ce5ce1e8e587154ca",
        files=SHAREGPT_FILE,
    )


ULTRACHAT = "HuggingFaceH4/ultrachat_200k"


@TASKS.register("ultrachat")
@dataclass(frozen=True)
class UltraChat(ConversationTask):
    """Answer the first question of one of the 207,865 conversations in the split train_sft."""

    source = "arXiv:2305.14233; HuggingFaceH4/ultrachat_200k, on the hub (MIT)"
    name = "ultrachat"
    field = "messages"
    hub_split = "train_sft"
    data = PublishedTexts(
        "UltraChat 200k",
        "ultrachat_200k",
        f"{ULTRACHAT} on the hub (the files data/train_sft-*.parquet, in one folder)",
        f"{ULTRACHAT}@8049631c405ae6576f93f445c6b8166f76f5505a",
    )


BAGEL = "bagel-clean-v0.3.parquet"


@TASKS.register("bagel")
@dataclass(frozen=True)
class Bagel(ConversationTask):
    """Follow the first instruction of a conversation."""

    source = "jondurbin/bagel"
    name = "bagel"
    data = PublishedTexts(
        "Bagel", BAGEL, f"jondurbin/bagel, or jondurbin/bagel-v0.3 on the hub ({BAGEL}, or another version)"
    )


BENCHMARKS = ("gsm8k", "humaneval", "mbpp", "math500", "mt_bench")
"""The benchmarks of Cross-Regression besides ShareGPT, which is split into training and test sides already."""


@TASKS.register("mixed_7k")
@dataclass(frozen=True)
class Mixed7k(Task):
    """Prompts to train on: equal numbers of UltraChat, ShareGPT and Bagel, which are the categories, mixed.

    Args:
        limit: number of all prompts.
        seed: of the draw and of the order.
        ultrachat: its file, hub:official or hub:ID@REVISION; "" is the data folder.
        sharegpt: likewise.
        bagel: likewise.
        without: tasks whose prompts are left out; their data must be there.
    """

    limit: int = 7000
    seed: int = 0
    ultrachat: str = ""
    sharegpt: str = ""
    bagel: str = ""
    without: tuple[str, ...] | str = field(default=BENCHMARKS)

    source = "Cross-Regression, appendix D.1"

    def __post_init__(self) -> None:
        within("the task mixed_7k, which has three sources,", 3, limit=self.limit)

    def prompts(self) -> Sequence[Prompt]:
        """Return ``limit`` prompts in a random order."""
        excluded = marks(names(self.without))
        prompts: list[Prompt] = []
        sources = (
            UltraChat(*place(self.ultrachat), "train"),
            ShareGpt(*place(self.sharegpt), "train"),
            Bagel(*place(self.bagel), "train"),
        )
        for index, task in enumerate(sources):
            share = self.limit // 3 + (index < self.limit % 3)
            drawn = draw(task.name, task.prompts(), share, self.seed, excluded)
            excluded.update(key(text) for prompt in drawn for text in questions_of(prompt))
            prompts += [replace(prompt, category=task.name) for prompt in drawn]
        return tuple(ranked(prompts, self.seed))
