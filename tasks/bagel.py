"""Bagel: first turns of a composite of some thirty instruction data sets.

Source: jondurbin/bagel, whose code writes ``bagel-clean-v0.3.parquet``. Rows of plain text and of preferences are
left out. No revision on the hub is pinned, because Cross-Regression gives no version of BaGel.
"""

from __future__ import annotations

from dataclasses import dataclass

from stridebench.harness.registry import TASKS
from stridebench.tasks.loaders.conversations import ConversationTask
from stridebench.tasks.loaders.texts import PublishedTexts

FILE = "bagel-clean-v0.3.parquet"


@TASKS.register("bagel")
@dataclass(frozen=True)
class Bagel(ConversationTask):
    """Follow the first instruction of a conversation."""

    source = "jondurbin/bagel"
    name = "bagel"
    data = PublishedTexts(
        "Bagel", FILE, f"jondurbin/bagel, or jondurbin/bagel-v0.3 on the hub ({FILE}, or another version)"
    )
