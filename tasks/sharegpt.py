"""ShareGPT: first turns of conversations that users of ChatGPT shared.

Source: ``ShareGPT_V3_unfiltered_cleaned_split.json`` of the data set anon8231489123/ShareGPT_Vicuna_unfiltered.
"""

from __future__ import annotations

from dataclasses import dataclass

from stridebench.harness.registry import TASKS
from stridebench.tasks.loaders.conversations import ConversationTask
from stridebench.tasks.loaders.texts import PublishedTexts

FILE = "ShareGPT_V3_unfiltered_cleaned_split.json"
HUB = "anon8231489123/ShareGPT_Vicuna_unfiltered"


@TASKS.register("sharegpt")
@dataclass(frozen=True)
class ShareGpt(ConversationTask):
    """Answer the first question of a user of ChatGPT; training draws from split=train."""

    source = f"{HUB}, on the hub"
    name = "sharegpt"
    data = PublishedTexts(
        "ShareGPT", FILE, f"{HUB} on the hub ({FILE})", f"{HUB}@192ab2185289094fc556ec8ce5ce1e8e587154ca", files=FILE
    )
