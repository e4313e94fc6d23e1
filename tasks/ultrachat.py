"""UltraChat 200k: first turns of conversations between two models.

Source: Ding et al. 2023, arXiv:2305.14233, filtered as HuggingFaceH4/ultrachat_200k; ``data/train_sft-*.parquet``.
"""

from __future__ import annotations

from dataclasses import dataclass

from stridebench.harness.registry import TASKS
from stridebench.tasks.loaders.conversations import ConversationTask
from stridebench.tasks.loaders.texts import PublishedTexts

HUB = "HuggingFaceH4/ultrachat_200k"


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
        f"{HUB} on the hub (the files data/train_sft-*.parquet, in one folder)",
        f"{HUB}@8049631c405ae6576f93f445c6b8166f76f5505a",
    )
