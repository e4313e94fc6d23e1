"""The messages of a stream, and the answer that they make up."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from stridebench.harness.core.engine import AcceptanceCounts, Chunk, EngineFault, Reply, whole
from stridebench.harness.errors import UsageError


@dataclass(frozen=True)
class StreamEvent:
    """One message of a stream.

    Args:
        arrived_ns: on the clock of `time.perf_counter_ns`.
        data: its JSON object.
    """

    arrived_ns: int
    data: dict[str, Any]


@dataclass
class ArrivingAnswer:
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
            EngineFault: the stream was cut short, or a log-probability is not a finite number.
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


# The key of a server: it comes from the environment, and is never stored or printed.


LOOPBACK = ("127.0.0.1", "localhost", "::1")
HIDDEN = "(key)"
KEY_ENV = "STRIDE_API_KEY"
"""The variable that holds a key if no other is named."""


class ServerKey:
    """The value of an environment variable.

    Args:
        variable: its name; it need not be set.

    Raises:
        UsageError: it holds what no header can carry.
    """

    def __init__(self, variable: str) -> None:
        self._value = os.environ.get(variable, "").strip()
        if not (self._value.isascii() and self._value.isprintable()):
            raise UsageError(f"${variable} is not a key: it holds characters that a header cannot carry")

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of a request; empty without a key."""
        return {"Authorization": f"Bearer {self._value}"} if self._value else {}

    def hidden(self, text: str) -> str:
        """A text of the server or of the client, without the key as it is or as JSON, Python or an address write it."""
        if not self._value:
            return text
        forms = {self._value, json.dumps(self._value)[1:-1], repr(self._value)[1:-1], quote(self._value, safe="")}
        for form in sorted(forms, key=len, reverse=True):
            text = text.replace(form, HIDDEN)
        return text
