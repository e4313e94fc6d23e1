"""The messages of a stream, and the answer that they make up."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np

from stridebench.harness.core.engine import (
    AcceptanceCounts,
    Chunk,
    EngineFault,
    Penalties,
    Reply,
    TokenRow,
    finite,
    whole,
)
from stridebench.harness.errors import UsageError
from stridebench.harness.machine.extras import optional


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
    rows: list[TokenRow] = field(default_factory=list)
    prompt_ids: tuple[int, ...] | None = None
    finish: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    acceptance: AcceptanceCounts | None = None
    lost: bool = False  # an id that the engine counted was not sent

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
        counted = len(self.tokens) or (len(self.rows) if len(self.rows) >= len(self.chunks) else 0)
        return Reply(
            tokens=tuple(self.tokens) if gives_ids and self.tokens else None,
            text="".join(self.text),
            chunks=tuple(self.chunks),
            output_tokens=counted or None if count is None else count,
            prompt_tokens=whole(self.usage.get("prompt_tokens")),
            finish=self.finish,
            logprobs=tuple(self.logprobs) or None,
            acceptance=self.acceptance,
            rows=tuple(self.rows) or None,
            prompt_ids=self.prompt_ids,
        )


TINY = 1e-45
"""Probability of a token that was sent with 0."""
SUM = 1.001
"""Largest sum of the probabilities of a row, since engines round them."""


def rows_of(logprobs: Mapping[str, Any]) -> list[TokenRow]:
    """Return the rows of an answer in OpenAI's form of completions, or of chats, which llama.cpp sends for both.

    Raises:
        EngineFault: a log-probability is not a finite number, or those of a row add up to more than 1.
    """
    if (content := logprobs.get("content")) is not None:
        listed = [one.get("top_logprobs") or one.get("top_probs") or () for one in content]
        tops = [[(_name(top), _log(top)) for top in top_of_one] for top_of_one in listed]
        return [row_of(_name(one), top) for one, top in zip(content, tops, strict=True)]
    tokens = logprobs.get("tokens") or ()
    pairs = zip(tokens, logprobs.get("top_logprobs") or [None] * len(tokens), strict=True)
    return [row_of(str(token), (top or {}).items()) for token, top in pairs]


def _name(entry: Mapping[str, Any]) -> str:
    return str(entry["token"] if entry.get("id") is None else f"id {entry['id']}")


def _log(entry: Mapping[str, Any]) -> Any:
    """Return the log-probability of an entry; llama.cpp sends probabilities of what its sampler draws from."""
    return math.log(max(finite(entry["prob"]) or 0.0, TINY)) if "prob" in entry else entry["logprob"]


def row_of(token: str, top: Iterable[tuple[str, Any]]) -> TokenRow:
    """Return one row; two entries of one name are one token's parts."""
    merged: dict[str, float] = {}
    for name, value in top:
        number = finite(value)
        if number is None:
            raise EngineFault("malformed", f"the log-probability of {name!r:.40} is missing")
        merged[name] = float(np.logaddexp(merged[name], number)) if name in merged else number
    if (total := math.fsum(map(math.exp, merged.values()))) > SUM:
        raise EngineFault("malformed", f"probabilities of one token add up to {total:.3g}: natural logs are expected")
    return TokenRow(token, merged)


def penalty_fields(penalties: Penalties, repetition: str) -> dict[str, object]:
    """Return the fields of a request for the penalties that change something.

    Args:
        repetition: the name of the field for the penalty of that name.
    """
    named = {"presence_penalty": penalties.presence, "frequency_penalty": penalties.frequency}
    fields: dict[str, object] = {name: value for name, value in named.items() if value}
    if penalties.repetition != 1:
        fields[repetition] = penalties.repetition
    if penalties.bias:
        fields["logit_bias"] = {str(token): nats for token, nats in penalties.bias.items()}
    return fields


def begins_json(text: str, whole: bool) -> bool:
    """Return whether a text is JSON, or the beginning of it if the output was cut."""
    try:
        json.loads(text)
    except ValueError as error:
        rest = text[error.pos :] if isinstance(error, json.JSONDecodeError) else ""
        cut_word = any(known.startswith(rest) for known in ("true", "false", "null", "-"))
        return not whole and ("Unterminated" in str(error) or cut_word)
    return True


# The address of a server and its key, which comes from the environment, and is never stored or printed.


LOOPBACK = ("127.0.0.1", "localhost", "::1")
HIDDEN = "(key)"
KEY_ENV = "STRIDE_API_KEY"
"""The variable that holds a key if no other is named."""


def host_of(url: str, key_env: str) -> str:
    """Return the host of a server's address.

    Raises:
        UsageError: it is not a URL, or holds a password.
    """
    httpx = optional("httpx", "an engine behind a URL", "engines")
    try:
        parts = urlsplit(url)
        host, _ = str(parts.hostname or ""), (parts.port, httpx.URL(url).host.encode("idna"))  # both raise
    except (ValueError, httpx.InvalidURL):
        parts, host = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not host:
        shown = url.rpartition("@")[2]  # without a password
        raise UsageError(f"{shown!r} is not the address of a server; write http://127.0.0.1:8000")
    if parts.username or parts.password:
        raise UsageError(f"the address of {host} holds a password; put a key into ${key_env}")
    return host


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
