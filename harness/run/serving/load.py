"""Keeps requests under way: so many at once (closed loop), or at their times (open loop)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

import numpy as np

from stridebench.harness.core.engine import GONE
from stridebench.harness.plan.engine_cells import EngineCell
from stridebench.harness.record.requests import Request
from stridebench.harness.run.serving.requests import Asked

MOST_OPEN = 256
"""Requests of an open loop that are under way at once, at most; a later one is then sent late, and its row says so."""

Send = Callable[[Asked], Request]


def scheduled(cell: EngineCell, todo: Sequence[Asked], session: int) -> list[Asked]:
    """The requests with their times: arrivals of a Poisson process, drawn from the suite's seed and the session."""
    if not cell.rate:
        return list(todo)
    draws = np.random.default_rng([cell.seed, session, len(todo)])
    due = np.cumsum(draws.exponential(1e9 / cell.rate, len(todo)))
    return [replace(asked, due_ns=int(at)) for asked, at in zip(todo, due, strict=True)]


class Drive:
    """Makes the requests of a cell, and stops where the server is gone.

    Args:
        send: makes one; called from several threads where ``at_once`` is above 1.
        keep: stores one that is finished; called from one thread at a time.
        start_ns: of the session, on the clock of `time.perf_counter_ns`.
    """

    def __init__(self, send: Send, keep: Callable[[Request], None], start_ns: int) -> None:
        self._send, self._keep, self._start = send, keep, start_ns
        self._lock = threading.Lock()
        self.gone: Request | None = None

    def run(self, todo: Sequence[Asked], at_once: int) -> None:
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

    def _in_time(self, queue: Iterator[Asked]) -> Iterator[Asked]:
        """Each request when it is due."""
        for asked in queue:
            if self.gone is not None:
                return
            ahead = (asked.due_ns or 0) - (time.perf_counter_ns() - self._start)
            time.sleep(max(ahead, 0) / 1e9)
            yield asked

    def _rest(self, queue: Iterator[Asked]) -> None:
        """One place of a closed loop: the next request as soon as the last is answered."""
        while self.gone is None:
            with self._lock:
                asked = next(queue, None)
            if asked is None:
                return
            self._one(asked)

    def _one(self, asked: Asked) -> None:
        if self.gone is not None:
            return
        row = self._send(asked)
        with self._lock:
            self._keep(row)
            if row.fault in GONE:
                self.gone = row
