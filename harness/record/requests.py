"""The columns of requests.parquet, as the fields of `Request`: one request to an engine.

What an engine does not tell is null. Times are nanoseconds on one monotonic clock of the run's process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import pandas as pd
import pyarrow as pa


@dataclass(frozen=True)
class Request:
    """One request to an engine.

    Args:
        prompt: the prompt's id.
        repetition: 0, 1, ...; each has a seed of its own.
        warmup: stored, never counted.
        status: "ok" or "failed".
        fault: the kind of a failure (`stridebench.harness.core.engine.FAULTS`); None: none.
        error: the failure in one line.
        category: the prompt's.
        session: 0, 1, ...: which start of the run made it. Times of two sessions are not compared.
        seed: of its draws.
        prompt_tokens: ids of the prompt, as the backbone's tokenizer has them.
        told_prompt_tokens: as the engine says; null: not told.
        tokens: output ids; null: not told.
        text: the output; of an engine that tells ids alone, as the backbone's tokenizer reads them; null: neither is
            told.
        output_tokens: number of tokens of the output; null: not told.
        finish: why the output ended, in the engine's word.
        scheduled_ns: when it was due, in an open loop; null: it was sent when a place was free.
        sent_ns: when it was sent, from the session's start.
        ended_ns: when the answer was complete, from the session's start.
        arrivals_ns: when each part of the output arrived, after ``sent_ns``; null: not told.
        chunk_tokens: tokens of each part; null: not told.
        logprobs: log p of each token (natural), as the engine says; null: not told.
        draft_steps: target passes that verified at least one draft.
        drafted: drafted tokens.
        accepted: drafted tokens kept.
        histogram: entry i is the number of steps that kept i drafts.
        per_position: entry i is the number of steps that kept a draft at position i.
        target_passes: passes of the target.
        told_length: the engine's own mean acceptance length.
        told_rate: the engine's own acceptance rate.
    """

    prompt: str
    repetition: int
    warmup: bool
    status: str
    fault: str | None = None
    error: str | None = None
    category: str = ""
    session: int = 0
    seed: int = 0
    prompt_tokens: int | None = None
    told_prompt_tokens: int | None = None
    tokens: tuple[int, ...] | None = None
    text: str | None = None
    output_tokens: int | None = None
    finish: str = ""
    scheduled_ns: int | None = None
    sent_ns: int = 0
    ended_ns: int = 0
    arrivals_ns: tuple[int, ...] | None = None
    chunk_tokens: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    draft_steps: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    histogram: tuple[int, ...] | None = None
    per_position: tuple[int, ...] | None = None
    target_passes: int | None = None
    told_length: float | None = None
    told_rate: float | None = None

    @property
    def key(self) -> tuple[str, int, bool]:
        """What tells it from the other requests of its cell."""
        return self.prompt, self.repetition, self.warmup

    @staticmethod
    def of(plain: Mapping[str, Any]) -> Request:
        """The inverse of `dataclasses.asdict` through JSON."""
        lists = {name: tuple(value) for name, value in plain.items() if isinstance(value, list)}
        return Request(**{**plain, **lists})


_TYPES = {
    "str": pa.string(),
    "int": pa.int64(),
    "bool": pa.bool_(),
    "float": pa.float64(),
    "tuple[int, ...]": pa.list_(pa.int64()),
    "tuple[float, ...]": pa.list_(pa.float64()),
}
REQUESTS = pa.schema({f.name: _TYPES[str(f.type).removesuffix(" | None")] for f in fields(Request)})
"""The schema of requests.parquet."""
COUNTS = ("draft_steps", "drafted", "accepted", "target_passes")
"""Columns of acceptance that are totals."""


def table(requests: list[Request]) -> pa.Table:
    """The table of some requests."""
    return pa.Table.from_pylist([asdict(request) for request in requests], schema=REQUESTS)


def counted(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that succeeded and are no warm-up."""
    return frame[(frame["status"] == "ok") & ~frame["warmup"]]


def identities(request: Request, rounding: float = 0.006) -> list[str]:
    """Identities that an engine's own numbers break; empty: none, or too little is told.

    Args:
        rounding: by how much its means may differ, since engines print two decimals.
    """
    steps, drafted, accepted, histogram = (
        request.draft_steps,
        request.drafted,
        request.accepted,
        request.histogram,
    )
    wrong = []
    if drafted is not None and accepted is not None and not 0 <= accepted <= drafted:
        wrong.append(f"accepted {accepted} of {drafted} drafts")
    if accepted is not None and request.output_tokens is not None and accepted > request.output_tokens:
        wrong.append(f"accepted {accepted} drafts in {request.output_tokens} tokens")
    if histogram is not None and steps is not None and sum(histogram) != steps:
        wrong.append(f"the histogram holds {sum(histogram)} steps, and there were {steps}")
    if histogram is not None and accepted is not None:
        in_it = sum(number * count for number, count in enumerate(histogram))
        if in_it != accepted:
            wrong.append(f"the histogram holds {in_it} accepted drafts, and there were {accepted}")
    if request.told_length is not None and steps and accepted is not None:
        length = 1 + accepted / steps
        if abs(length - request.told_length) > rounding:
            wrong.append(f"it says a mean length of {request.told_length:g}, and its counts give {length:.3f}")
    if request.told_rate is not None and drafted and accepted is not None:
        rate = accepted / drafted
        if abs(rate - request.told_rate) > rounding:
            wrong.append(f"it says an acceptance of {request.told_rate:g}, and its counts give {rate:.3f}")
    return wrong
