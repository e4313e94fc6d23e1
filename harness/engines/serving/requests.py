"""One request of a cell, and the row that its answer becomes."""

from __future__ import annotations

import hashlib
import math
import operator
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from stridebench.harness.core.engine import (
    GONE,
    AcceptanceCounts,
    Chunk,
    Engine,
    EngineFault,
    EngineRequest,
    Reply,
)
from stridebench.harness.core.task import Prompt
from stridebench.harness.engines.serving.verdict import Reference
from stridebench.harness.errors import printable_line
from stridebench.harness.plan.engine_cells import EngineCell
from stridebench.harness.record.requests import Request

LONGEST_ERROR = 400
Part = TypeVar("Part", Reply, AcceptanceCounts, Chunk)


@dataclass(frozen=True)
class PlannedRequest:
    """A request that is to be made.

    Args:
        due_ns: when, from the start of the session, or None for as soon as a place is free.
        tokens: its budget.
        seed: of its draws; the same for every engine, so that outputs can be compared.
    """

    prompt: Prompt
    repetition: int
    tokens: int
    seed: int
    warmup: bool = False
    due_ns: int | None = None


def seed_of(cell: EngineCell, prompt: Prompt, repetition: int) -> int:
    """The seed of one request, 31 bits: every engine of a suite draws from the same."""
    text = f"{cell.seed}|{prompt.id}|{repetition}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big") >> 1


def ask(
    engine: Engine, cell: EngineCell, reference: Reference, asked: PlannedRequest, session: int, start_ns: int
) -> Request:
    """Make a request; a failure becomes a row with its kind and reason.

    Args:
        start_ns: of the session, on the clock of `time.perf_counter_ns`.
    """
    ids = reference.ids(asked.prompt)
    request = EngineRequest(
        ids=ids,
        text=None if asked.prompt.last else asked.prompt.text,  # the text holds more than is read
        max_tokens=asked.tokens,
        temperature=cell.sampling.temperature,
        top_k=cell.sampling.top_k,
        top_p=cell.sampling.top_p,
        min_p=cell.sampling.min_p,
        seed=asked.seed,
        ignore_eos=cell.ignore_eos,
    )
    sent = time.perf_counter_ns()
    reply, fault = Reply(), None
    try:
        reply = answered(engine.generate(request))
        fault = fault_of(request, reply, reference)
    except EngineFault as error:
        fault = error
    except Exception as error:  # an engine of another package may raise anything: its request failed
        fault = EngineFault("engine_error", f"{type(error).__name__}: {error}")
    ended = time.perf_counter_ns()
    counts = asdict(reply.acceptance) if reply.acceptance else {}
    parts = [chunk.tokens for chunk in reply.chunks]
    text = reply.text if reply.text is not None or fault else reference.text(reply.tokens or ())
    sized = [part for part in parts if part is not None]
    return Request(
        prompt=asked.prompt.id,
        repetition=asked.repetition,
        warmup=asked.warmup,
        status="failed" if fault else "ok",
        fault=fault.kind if fault else None,
        error=printable_line(str(fault))[:LONGEST_ERROR] if fault else None,
        category=asked.prompt.category,
        session=session,
        seed=asked.seed,
        prompt_tokens=len(ids) or None,
        told_prompt_tokens=reply.prompt_tokens,
        tokens=reply.tokens,
        text=None if text is None else text.encode("utf-8", "backslashreplace").decode(),
        output_tokens=reply.output_tokens,
        finish=reply.finish,
        scheduled_ns=asked.due_ns,
        sent_ns=sent - start_ns,
        ended_ns=ended - start_ns,
        arrivals_ns=tuple(chunk.arrived_ns - sent for chunk in reply.chunks) or None,
        chunk_tokens=tuple(sized) if sized and len(sized) == len(parts) else None,
        logprobs=reply.logprobs,
        **counts,
    )


def answered(reply: Any) -> Reply:
    """Return the reply of an engine, if it is an answer.

    Raises:
        EngineFault: it is something else.
    """
    if not isinstance(reply, Reply):
        raise EngineFault("engine_error", f"generate returned {type(reply).__name__}, not a Reply")
    counts = None if reply.acceptance is None else _typed(reply.acceptance, AcceptanceCounts)
    chunks = tuple(_typed(chunk, Chunk) for chunk in reply.chunks)
    return replace(_typed(reply, Reply), acceptance=counts, chunks=chunks)


def _typed(values: Part, kind: type[Part]) -> Part:
    """Return a part of a reply with its numbers and texts as Python's own.

    Raises:
        EngineFault: it is something else, or a field holds another type than it declares.
    """
    if not isinstance(values, kind):
        raise EngineFault("engine_error", f"found {values!r:.60} where {kind.__name__} belongs")
    changes: dict[str, Any] = {}
    for field in fields(values):
        value, read = getattr(values, field.name), READERS.get(str(field.type).removesuffix(" | None"))
        if value is None or read is None:
            continue
        try:
            changes[field.name] = read(value)
        except (TypeError, ValueError, OverflowError) as error:
            detail = f"{kind.__name__}.{field.name} is {value!r:.60}, and its type is {field.type}"
            raise EngineFault("engine_error", detail) from error
    return replace(values, **changes)


def _whole(value: Any) -> int:
    return int(np.int64(operator.index(value)))  # a column holds 64 bits


def _finite(value: Any) -> float:
    if not math.isfinite(value):
        raise EngineFault("not_a_number", "a log-probability or figure of the output")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


READERS: Mapping[str, Callable[[Any], Any]] = {
    "int": _whole,
    "float": _finite,
    "str": _text,
    "tuple[int, ...]": lambda values: tuple(map(_whole, values)),
    "tuple[float, ...]": lambda values: tuple(map(_finite, values)),
}
"""Readers of the fields of a reply by their types; rows are read where they are used."""


def fault_of(request: EngineRequest, reply: Reply, reference: Reference) -> EngineFault | None:
    """Return the fault of an answer that came back whole, or None if none can be known."""
    count = reply.output_tokens
    if count is not None and count > request.max_tokens:
        return EngineFault("too_long", f"{count} tokens of {request.max_tokens}")
    if request.ignore_eos and count is not None and count < request.max_tokens:
        return EngineFault("ends_early", f"{count} tokens of {request.max_tokens} ({reply.finish or 'no reason told'})")
    if request.ids and reply.prompt_tokens is not None and reply.prompt_tokens != len(request.ids):
        detail = f"it read {reply.prompt_tokens} ids of the prompt, which has {len(request.ids)}"
        return EngineFault("other_tokenizer", detail)
    misfit = reference.misfit(reply.tokens or (), reply.text)
    return EngineFault("other_tokenizer", misfit) if misfit else None


# Keeps requests under way: so many at once (closed loop), or at their times (open loop).


MOST_OPEN = 256
"""Requests of an open loop that are under way at once, at most; a later one is then sent late, and its row says so."""

Send = Callable[[PlannedRequest], Request]


def scheduled(cell: EngineCell, todo: Sequence[PlannedRequest], session: int) -> list[PlannedRequest]:
    """The requests with their times: arrivals of a Poisson process, drawn from the suite's seed and the session."""
    if not cell.rate:
        return list(todo)
    draws = np.random.default_rng([cell.seed, session, len(todo)])
    due = np.cumsum(draws.exponential(1e9 / cell.rate, len(todo)))
    return [replace(asked, due_ns=int(at)) for asked, at in zip(todo, due, strict=True)]


class Drive:
    """Makes the requests of a cell, and stops if the server is gone.

    Args:
        send: makes one; called from several threads where ``at_once`` is above 1.
        keep: stores one that is finished; called from one thread at a time.
        start_ns: of the session, on the clock of `time.perf_counter_ns`.
    """

    def __init__(self, send: Send, keep: Callable[[Request], None], start_ns: int) -> None:
        self._send, self._keep, self._start = send, keep, start_ns
        self._lock = threading.Lock()
        self.gone: Request | None = None

    def run(self, todo: Sequence[PlannedRequest], at_once: int) -> None:
        """All of them, unless the server goes away: ``gone`` is then the request that saw it."""
        if at_once == 1 and not any(asked.due_ns for asked in todo):
            for asked in todo:
                if self.gone is None:
                    self._one(asked)
            return
        queue = iter(todo)
        with ThreadPoolExecutor(min(at_once or MOST_OPEN, max(len(todo), 1))) as pool:
            if at_once:
                futures = [pool.submit(self._rest, queue) for _ in range(at_once)]
            else:
                futures = [pool.submit(self._one, asked) for asked in self._in_time(queue)]
            wait(futures)
        for future in futures:
            future.result()

    def _in_time(self, queue: Iterator[PlannedRequest]) -> Iterator[PlannedRequest]:
        """Each request when it is due."""
        for asked in queue:
            if self.gone is not None:
                return
            ahead = (asked.due_ns or 0) - (time.perf_counter_ns() - self._start)
            time.sleep(max(ahead, 0) / 1e9)
            yield asked

    def _rest(self, queue: Iterator[PlannedRequest]) -> None:
        """One place of a closed loop: the next request as soon as the last is answered."""
        while self.gone is None:
            with self._lock:
                asked = next(queue, None)
            if asked is None:
                return
            self._one(asked)

    def _one(self, asked: PlannedRequest) -> None:
        if self.gone is not None:
            return
        row = self._send(asked)
        with self._lock:
            self._keep(row)
            if row.fault in GONE:
                self.gone = row
