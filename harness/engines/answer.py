"""What the messages of a stream have said so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.core.engine import AcceptanceCounts, Chunk


@dataclass
class Answer:
    """An answer that is still arriving; the fields are those of `harness.core.engine.Reply`."""

    text: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    acceptance: AcceptanceCounts | None = None
