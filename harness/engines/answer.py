"""The messages of a stream, and what they have said so far."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from stridebench.harness.core.engine import AcceptanceCounts, Chunk, EngineFault, Reply, whole


@dataclass(frozen=True)
class Event:
    """One message of a stream.

    Args:
        arrived_ns: on the clock of `time.perf_counter_ns`.
        data: its JSON object.
    """

    arrived_ns: int
    data: dict[str, Any]


@dataclass
class Answer:
    """An answer that is still arriving; the fields are those of `stridebench.harness.core.engine.Reply`."""

    text: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    acceptance: AcceptanceCounts | None = None

    def reply(self, gives_ids: bool) -> Reply:
        """Return the whole answer.

        Args:
            gives_ids: the engine sends token ids.

        Raises:
            EngineFault: the stream was cut short, or a log-probability is no number.
        """
        if not self.finish:
            raise EngineFault("cut_short", f"after {len(self.chunks)} messages")
        if not all(map(math.isfinite, self.logprobs)):
            raise EngineFault("not_a_number", "a log-probability of the output")
        count = whole(self.usage.get("completion_tokens"))
        return Reply(
            tokens=tuple(self.tokens) if gives_ids and self.tokens else None,
            text="".join(self.text),
            chunks=tuple(self.chunks),
            output_tokens=len(self.tokens) or None if count is None else count,
            prompt_tokens=whole(self.usage.get("prompt_tokens")),
            finish=self.finish,
            logprobs=tuple(self.logprobs) or None,
            acceptance=self.acceptance,
        )
