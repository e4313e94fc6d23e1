"""B sequences decoded in lock step: each waits for the passes of the others, and one batched pass serves them all.

Each decode runs on a separate thread, and one thread runs at a time. A decode goes on until it asks for a pass; then
the next one goes on. When all of them wait, the thread of the loop computes their windows with `Cache.extend_many`.
Each decode commits its own length, so it emits, draws and counts the same as if it ran alone. Passes of
drafters go before those of targets, so that decodes which draft more or less meet again at the target.

Times. A step lasts as long as its lock step, including the work of the other decodes meanwhile: that is its latency,
and the whole wait is booked as the time of the pass. A lock step is shared by the decodes that its target pass served.
So the wall time of a step over their number (`Step.served`), summed over all decodes, is the time of the batch;
throughput is output tokens over that sum. A decode that is over leaves, and the others go on in a smaller batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from enum import IntEnum
from queue import SimpleQueue
from typing import Generic, NamedTuple, TypeVar, final

import torch

from stridebench.harness.core.cache import Cache, Rows, Window, extend_all
from stridebench.harness.errors import UsageError

T = TypeVar("T")


class Stage(IntEnum):
    """The kinds of pass that a decode waits for; those that wait for the lowest stage go on first."""

    PREFILL = 0
    DRAFT = 1
    SHARE = 2
    TARGET = 3
    READY = 4


class Pass(NamedTuple):
    """A window to be read into a cache."""

    cache: Cache
    window: Window


class SharedFigures(NamedTuple):
    """Figures that the decodes of a batch show each other, in the order of the batch.

    Args:
        own: index of those of the decode that asks.
    """

    figures: tuple[tuple[float, ...], ...]
    own: int

    @classmethod
    def alone(cls, figures: Sequence[float]) -> SharedFigures:
        """Return those of a decode that has no batch."""
        return cls((tuple(figures),), 0)


class BatchStopped(BaseException):
    """Unwinds a decode of a batch that was interrupted; no method may catch it."""


@final
class Slot:
    """The place of a decode in a batch. Once the decode is over, its passes are computed alone.

    Attributes:
        served: decodes that the last target pass of this one served, itself included.
    """

    def __init__(self, back: SimpleQueue[None]) -> None:
        self.served = 1
        self.stage = Stage.READY
        self.waiting_for: Pass | None = None
        self.answer: Rows | Exception | None = None
        self.shared = SharedFigures.alone(())
        self.over = self._stopped = False
        self._back, self._turn = back, SimpleQueue[None]()

    def cache(self, inner: Cache, kind: str) -> Cache:
        """Return the same cache, read in lock step; ``kind``: "target" or "draft", as of a session."""
        return BatchedCache(self, inner, Stage.DRAFT if kind == "draft" else Stage.TARGET)

    def ready(self) -> None:
        """Wait until every decode of the batch is ready or has left."""
        self._wait(Stage.READY, None)

    def read(self, stage: Stage, request: Pass) -> Rows:
        """Wait for a pass, which serves the other decodes of that stage too."""
        if self.over:
            return request.cache.extend(request.window)
        self._wait(stage, request)
        assert self.answer is not None, "the loop answers every pass"
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def share(self, figures: Sequence[float]) -> SharedFigures:
        """Wait until the others have drafted too, and return the figures of all that share some in this lock step."""
        self.shared = SharedFigures.alone(figures)
        if not self.over:
            self._wait(Stage.SHARE, None)
        return self.shared

    def _wait(self, stage: Stage, request: Pass | None) -> None:
        self.stage, self.waiting_for = stage, request
        self._back.put(None)
        self.enter()

    def enter(self) -> None:
        """Wait for the decode's turn; called by the decode."""
        self._turn.get()
        if self._stopped:
            raise BatchStopped

    def leave(self) -> None:
        """Say that the decode is over; called by the decode."""
        self.over = True
        self._back.put(None)

    def resume(self) -> None:
        """Let the decode go on until it waits again or leaves; called by the loop."""
        self._turn.put(None)
        self._back.get()

    def stop(self) -> None:
        """Have the decode unwind at its next wait; called by the loop."""
        self._stopped = True
        self._turn.put(None)


@final
class BatchedCache(Cache):
    """The cache of a decode in a batch: its passes wait for those of the others.

    Args:
        slot: of the decode.
        inner: the cache itself.
        stage: the stage of a pass that asks for logits.
    """

    def __init__(self, slot: Slot, inner: Cache, stage: Stage) -> None:
        self._slot, self._inner, self._stage = slot, inner, stage

    def extend(self, window: Window) -> Rows:
        """Extend the inner cache, together with those of the other decodes; a prefill too."""
        return self._slot.read(self._stage if window.rows else Stage.PREFILL, Pass(self._inner, window))

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        """Keep entries at once, since each decode has a length of its own."""
        self._inner.keep(length, entries)


@final
class Batch(Generic[T]):
    """Runs decodes B at a time.

    Args:
        batch: B; at 1 there is nothing to wait for, and a decode has no slot.
    """

    def __init__(self, batch: int) -> None:
        if batch < 1:
            raise UsageError(f"a batch of {batch}: give a whole number from 1")
        self.batch = batch

    def run(self, jobs: Sequence[Callable[[Slot | None], T]]) -> list[T | Exception]:
        """Return the result or the error of each job; if one raises, the others go on.

        The last batch may be smaller.
        """
        if self.batch == 1:
            return [_alone(job) for job in jobs]
        batches = (jobs[first : first + self.batch] for first in range(0, len(jobs), self.batch))
        return [result for batch in batches for result in _Round(batch).run()]


def _alone(job: Callable[[Slot | None], T]) -> T | Exception:
    try:
        return job(None)
    except Exception as error:  # handed to the caller, as in a batch
        return error


class _Round(Generic[T]):
    """One batch, from its start to the end of its last decode."""

    def __init__(self, jobs: Sequence[Callable[[Slot | None], T]]) -> None:
        back = SimpleQueue[None]()
        self._jobs = jobs
        self._slots = [Slot(back) for _ in jobs]
        self._results: dict[Slot, T] = {}
        self._raised: dict[Slot, BaseException] = {}
        self._inference = torch.is_inference_mode_enabled()
        used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # as torch declares it
        self._device = torch.cuda.current_device() if used else None

    def run(self) -> list[T | Exception]:
        jobs = zip(self._slots, self._jobs, strict=True)
        threads = [threading.Thread(target=self._row, args=slot_and_job, daemon=True) for slot_and_job in jobs]
        for thread in threads:
            thread.start()
        try:
            going = self._slots
            while going:
                for slot in going:
                    slot.resume()
                going = _serve([slot for slot in self._slots if not slot.over])
        finally:
            for slot in self._slots:
                slot.stop()
            for thread in threads:
                thread.join()
        return [self._results[slot] if slot in self._results else self._error(slot) for slot in self._slots]

    def _row(self, slot: Slot, job: Callable[[Slot | None], T]) -> None:
        """Run a decode on this thread, with the settings that torch keeps for each thread as in the loop's."""
        try:
            slot.enter()
            if self._device is not None:
                torch.cuda.set_device(self._device)
            with torch.inference_mode(self._inference):
                self._results[slot] = job(slot)
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
    """Answer the decodes that wait for the lowest stage, and return them."""
    if not slots:
        return []
    stage = min(slot.stage for slot in slots)
    going = [slot for slot in slots if slot.stage is stage]
    if stage is Stage.SHARE:
        figures = tuple(slot.shared.figures[0] for slot in going)
        for own, slot in enumerate(going):
            slot.shared = SharedFigures(figures, own)
        return going
    reading = [(slot, slot.waiting_for) for slot in going if slot.waiting_for is not None]
    answers = extend_all([request.cache for _, request in reading], [request.window for _, request in reading])
    for (slot, _), answer in zip(reading, answers, strict=True):
        slot.answer = answer
        if stage is Stage.TARGET:
            slot.served = len(reading)
    return going
