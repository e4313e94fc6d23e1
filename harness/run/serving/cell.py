"""One cell of an engine: warm-up, the check of its seed, its requests under load, and its counters."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stridebench.harness.core.engine import FAULTS, GONE, Counters, Engine, EngineFault
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import printable_line
from stridebench.harness.plan.engine_cells import EngineCell
from stridebench.harness.record.request_store import RequestStore
from stridebench.harness.record.requests import Request
from stridebench.harness.run.serving.load import Drive, scheduled
from stridebench.harness.run.serving.reference import Reference
from stridebench.harness.run.serving.requests import Asked, ask, seed_of

WARMUP_TOKENS = 8
SEED_TOKENS = 32
"""Tokens of the two requests that tell whether a seed is honoured."""


class CellRun:
    """Runs what is not stored yet of one cell.

    Args:
        engine: open.
        prompts: of its task.
        repetitions: of each prompt.
        warmup: requests before those that count.
    """

    def __init__(
        self,
        engine: Engine,
        cell: EngineCell,
        store: RequestStore,
        reference: Reference,
        prompts: Sequence[Prompt],
        repetitions: int,
        warmup: int,
    ) -> None:
        self._engine, self._cell, self._store, self._reference = engine, cell, store, reference
        self._prompts, self._repetitions, self._warmup = prompts, repetitions, warmup
        rows = store.requests(cell.id)
        self._session = max((row.session for row in rows), default=-1) + 1
        self._done = {row.key for row in rows if row.fault not in GONE}
        self._start = time.perf_counter_ns()

    def run(self) -> None:
        """All of its requests; the cell is sealed when each has an answer.

        Raises:
            EngineFault: the server is gone; what was finished is kept.
        """
        todo = scheduled(self._cell, self._todo(), self._session)
        self._warm_up()
        before = self._counters()
        self._start = time.perf_counter_ns()
        rows: list[Request] = []
        drive = Drive(self._send, lambda row: self._keep(rows, row), self._start)
        drive.run(todo, self._cell.concurrency)
        if drive.gone is not None:
            raise _fault(drive.gone)
        facts = {} if before is None else {"counters": self._growth(before, rows)}
        self._store.seal(self._cell.id, {"told": dict(self._engine.told()), **facts})

    def _todo(self) -> list[Asked]:
        keys = [(prompt, repetition) for repetition in range(self._repetitions) for prompt in self._prompts]
        if self._cell.role == "floor":
            keys.reverse()
        open_keys = [(prompt, r) for prompt, r in keys if (prompt.id, r, False) not in self._done]
        cell = self._cell
        return [Asked(prompt, r, cell.max_new_tokens, seed_of(cell, prompt, r)) for prompt, r in open_keys]

    def _warm_up(self) -> None:
        """Some short requests, and two that differ in nothing, which must be answered alike."""
        first = self._prompts[0]
        for repetition in range(self._warmup):
            asked = Asked(first, repetition, WARMUP_TOKENS, seed_of(self._cell, first, repetition), warmup=True)
            self._check_gone(self._send(asked))
        if self._cell.sampling.temperature > 0 and self._cell.role != "floor":
            tokens = min(SEED_TOKENS, self._cell.max_new_tokens)
            number = self._warmup
            asked = Asked(first, number, tokens, seed_of(self._cell, first, number), warmup=True)
            pair = [
                self._check_gone(self._send(asked)),
                self._check_gone(self._send(replace(asked, repetition=number + 1))),
            ]
            one, other = (row.tokens if row.tokens is not None else row.text for row in pair)
            if all(row.status == "ok" for row in pair) and one != other:
                detail = f"{FAULTS['seed_ignored']}: one request, made twice with seed {asked.seed}, has two outputs"
                self._store.write(self._cell.id, replace(pair[1], status="failed", fault="seed_ignored", error=detail))

    def _check_gone(self, row: Request) -> Request:
        self._store.write(self._cell.id, row)
        if row.fault in GONE:
            raise _fault(row)
        return row

    def _send(self, asked: Asked) -> Request:
        return ask(self._engine, self._cell, self._reference, asked, self._session, self._start)

    def _keep(self, rows: list[Request], row: Request) -> None:
        rows.append(row)
        self._store.write(self._cell.id, row)

    def _counters(self) -> Counters | EngineFault | None:
        """The counters of now, or why they cannot be read, which no request hangs on.

        Raises:
            EngineFault: the server is gone.
        """
        try:
            return self._engine.counters() if self._engine.tells.counters else None
        except EngineFault as fault:
            if fault.kind in GONE:
                raise
            return fault

    def _growth(self, before: Counters | EngineFault, rows: Sequence[Request]) -> dict[str, Any]:
        """What the server counted while the requests were made, held against what they told."""
        after = self._counters()
        for reading in (before, after):
            if isinstance(reading, EngineFault):
                return {"problem": printable_line(str(reading))}
        assert isinstance(before, Counters) and not isinstance(after, EngineFault), "faults are handled above"
        if after is None:
            return {"problem": "the server stopped to export its counters"}
        growth = after.since(before)
        facts = {
            "growth": dict(growth.values),
            "per_position": [growth.per_position[k] for k in sorted(growth.per_position)],
        }
        if growth.backwards:
            return {**facts, "problem": "the counters went backwards: the server was started again"}
        if any(row.status != "ok" for row in rows):
            return {**facts, "problem": "some requests failed, which the server may have counted"}
        return {**facts, "disagree": disagreements(growth, rows)}


def _fault(row: Request) -> EngineFault:
    """The fault of a request that failed."""
    kind = str(row.fault)
    return EngineFault(kind, str(row.error).removeprefix(f"{FAULTS[kind]}: "))


def disagreements(growth: Counters, rows: Sequence[Request]) -> list[str]:
    """Where the server's counters and the requests do not say the same; empty: nowhere."""
    lines = []
    for name, counted in growth.values.items():
        told = [getattr(row, name) for row in rows]
        numbers = [value for value in told if value is not None]
        if numbers and len(numbers) == len(told) and sum(numbers) != counted:
            lines.append(f"{name}: the counters grew by {counted:g}, and the requests told {sum(numbers)}")
    accepted = growth.values.get("accepted")
    if growth.per_position and accepted is not None and sum(growth.per_position.values()) != accepted:
        places = sum(growth.per_position.values())
        lines.append(f"accepted: the counter grew by {accepted:g}, and those of its positions by {places:g}")
    return lines
