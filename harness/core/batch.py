"""B sequences decoded in lock step: each waits for the others' passes, and one batched pass serves them all.

A row is one decode, on a thread of its own, and one thread runs at a time: a row goes on until it asks for a pass, then
the next one does; when all of them wait, the loop's own thread reads their windows with `Cache.extend_many`. Each row
commits its own length, so what it emits, draws and counts is what it emits, draws and counts alone. Drafters go before
targets, so that rows which draft more or less meet again at the target.

Times. A step of a row lasts as long as the lock step that it is in, what the other rows compute meanwhile included:
that is its latency, and all of the wait is booked as the pass's. A lock step is shared by the rows that its target pass
served, so a step's wall time over their number (`Step.served`), summed over all rows, is the time of the gang;
throughput is output tokens over that sum. A row that is done leaves, and the others go on in a smaller gang.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar, final

import torch

from harness.core.cache import Cache, Rows, Window, extend_all
from harness.errors import UsageError

T = TypeVar("T")


class Stage(IntEnum):
    """What a row waits for; those that wait for the least go on first."""

    PREFILL = 0
    DRAFT = 1
    TARGET = 2
    READY = 3


class Pass(NamedTuple):
    """A window to be read into a cache."""

    cache: Cache
    window: Window


class Stopped(BaseException):
    """Unwinds a row of a gang that was interrupted; no method may catch it."""


@final
class Slot:
    """A row's place in a gang, until its decode is over; from then on its passes are its own.

    Attributes:
        served: rows of the last target pass that it was in, itself included.
    """

    def __init__(self, back: threading.Semaphore) -> None:
        self.served = 1
        self.stage = Stage.READY
        self.asked: Pass | None = None
        self.answer: Rows | Exception | None = None
        self.over = self._stopped = False
        self._back, self._turn = back, threading.Semaphore(0)

    def cache(self, inner: Cache, kind: str) -> Cache:
        """The same cache, read in lock step; ``kind``: "target" or "draft", as of a session."""
        return RowCache(self, inner, Stage.DRAFT if kind == "draft" else Stage.TARGET)

    def ready(self) -> None:
        """Wait until every row of the gang is ready or has left."""
        self._wait(Stage.READY, None)

    def read(self, stage: Stage, asked: Pass) -> Rows:
        """Wait for a pass, which the other rows of that stage are in too."""
        if self.over:
            return asked.cache.extend(asked.window)
        self._wait(stage, asked)
        assert self.answer is not None, "the loop answers every pass"
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def _wait(self, stage: Stage, asked: Pass | None) -> None:
        self.stage, self.asked = stage, asked
        self._back.release()
        self.enter()

    def enter(self) -> None:
        """Called by the row: wait for its turn."""
        self._turn.acquire()
        if self._stopped:
            raise Stopped

    def leave(self) -> None:
        """Called by the row: its decode is over."""
        self.over = True
        self._back.release()

    def resume(self) -> None:
        """Called by the loop: let the row go on until it waits again or leaves."""
        self._turn.release()
        self._back.acquire()

    def stop(self) -> None:
        """Called by the loop: have the row unwind at its next wait."""
        self._stopped = True
        self._turn.release()


@final
class RowCache(Cache):
    """The cache of a row: its passes wait for those of the others.

    Args:
        seat: of the row. inner: the cache itself. stage: what a pass that asks for logits is.
    """

    def __init__(self, slot: Slot, inner: Cache, stage: Stage) -> None:
        self._seat, self._inner, self._stage = slot, inner, stage

    def extend(self, window: Window) -> Rows:
        """As the inner cache, with the windows of the other rows; a prefill too."""
        return self._seat.read(self._stage if window.rows else Stage.PREFILL, Pass(self._inner, window))

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        """At once: a row keeps its own length."""
        self._inner.keep(length, entries)


@final
class Batch(Generic[T]):
    """Runs decodes B at a time.

    Args:
        batch: B; at 1 there is nothing to wait for, and a decode has no seat.
    """

    def __init__(self, batch: int) -> None:
        if batch < 1:
            raise UsageError(f"a batch of {batch}: give a whole number from 1")
        self.batch = batch

    def run(self, jobs: Sequence[Callable[[Slot | None], T]]) -> list[T | Exception]:
        """What each job made or raised; one that raises leaves, and the others go on. The last gang may be smaller."""
        if self.batch == 1:
            return [_alone(job) for job in jobs]
        parts = (jobs[first : first + self.batch] for first in range(0, len(jobs), self.batch))
        return [found for part in parts for found in _Round(part).run()]


def _alone(job: Callable[[Slot | None], T]) -> T | Exception:
    try:
        return job(None)
    except Exception as error:  # handed to the caller, as in a gang
        return error


class _Round(Generic[T]):
    """One gang, from its start to its last row's end."""

    def __init__(self, jobs: Sequence[Callable[[Slot | None], T]]) -> None:
        back = threading.Semaphore(0)
        self._jobs = jobs
        self._seats = [Slot(back) for _ in jobs]
        self._made: dict[Slot, T] = {}
        self._raised: dict[Slot, BaseException] = {}
        self._inference = torch.is_inference_mode_enabled()
        used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # as torch declares it
        self._device = torch.cuda.current_device() if used else None

    def run(self) -> list[T | Exception]:
        jobs = zip(self._seats, self._jobs, strict=True)
        threads = [threading.Thread(target=self._row, args=each, daemon=True) for each in jobs]
        for thread in threads:
            thread.start()
        try:
            going = self._seats
            while going:
                for slot in going:
                    slot.resume()
                going = _serve([slot for slot in self._seats if not slot.over])
        finally:
            for slot in self._seats:
                slot.stop()
            for thread in threads:
                thread.join()
        return [self._made[slot] if slot in self._made else self._error(slot) for slot in self._seats]

    def _row(self, slot: Slot, job: Callable[[Slot | None], T]) -> None:
        """A row's thread; what torch keeps a thread is set as it is in the loop's."""
        try:
            slot.enter()
            if self._device is not None:
                torch.cuda.set_device(self._device)
            with torch.inference_mode(self._inference):
                self._made[slot] = job(slot)
        except BaseException as error:  # told to the caller of `run`, in its own thread
            self._raised[slot] = error
        finally:
            slot.leave()

    def _error(self, slot: Slot) -> Exception:
        error = self._raised[slot]
        if isinstance(error, Exception):
            return error
        raise error


def _serve(slots: Sequence[Slot]) -> list[Slot]:
    """Answer the rows that wait for the least, and return them."""
    if not slots:
        return []
    stage = min(slot.stage for slot in slots)
    going = [slot for slot in slots if slot.stage is stage]
    reading = [(slot, slot.asked) for slot in going if slot.asked is not None]
    answers = extend_all([asked.cache for _, asked in reading], [asked.window for _, asked in reading])
    for (slot, _), answer in zip(reading, answers, strict=True):
        slot.answer = answer
        if stage is Stage.TARGET:
            slot.served = len(reading)
    return going
