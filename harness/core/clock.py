"""Clocks. A stamp needs no synchronisation; durations are read after the decode.

On a CPU a stamp is the host's clock. On CUDA it is the host's clock and an event on the current stream.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor


class Event(Protocol):
    """The part of torch.cuda.Event that is used."""

    def record(self) -> Any:
        """Mark this point of the stream."""

    def elapsed_time(self, end: Any) -> float:
        """Return milliseconds from this mark to ``end``'s."""


class Stamp(NamedTuple):
    """A moment: on the host in nanoseconds, and on the device if there is one."""

    host_ns: int
    event: Event | None = None


class Clock(ABC):
    """Makes stamps and reads them."""

    @abstractmethod
    def stamp(self) -> Stamp:
        """Return the present moment."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until all stamps can be read: before the first step and after the last, never in between."""

    @abstractmethod
    def device_ns(self, begin: Stamp, end: Stamp) -> int:
        """Return nanoseconds between two stamps on the device that computes."""

    @staticmethod
    def wall_ns(begin: Stamp, end: Stamp) -> int:
        """Return nanoseconds between two stamps on the host."""
        return end.host_ns - begin.host_ns


class CpuClock(Clock):
    """The host is the device."""

    def stamp(self) -> Stamp:
        return Stamp(time.perf_counter_ns())

    def finish(self) -> None:
        return None

    def device_ns(self, begin: Stamp, end: Stamp) -> int:
        return self.wall_ns(begin, end)


class EventClock(Clock):
    """CUDA events on the current stream.

    Args:
        event: makes an event with timing.
        synchronize: waits for the device.
    """

    def __init__(self, event: Callable[[], Event], synchronize: Callable[[], Any]) -> None:
        self._event = event
        self._synchronize = synchronize

    def stamp(self) -> Stamp:
        event = self._event()
        event.record()
        return Stamp(time.perf_counter_ns(), event)

    def finish(self) -> None:
        self._synchronize()

    def device_ns(self, begin: Stamp, end: Stamp) -> int:
        assert begin.event is not None and end.event is not None
        return round(begin.event.elapsed_time(end.event) * 1e6)


class Span(NamedTuple):
    """When a pass ("target" or "draft") or a stage that a method named began and ended.

    Attributes:
        peak: a number on the device, where the loop checks logits. It is finite if and only if no row holds NaN or plus
            infinity and no row is minus infinity throughout.
    """

    kind: str
    begin: Stamp
    end: Stamp
    peak: Tensor | None = None


class Stopwatch:
    """The spans of one decode, in order. Sessions write them; the loop reads them after the decode.

    Attributes:
        keeps_peaks: whether spans of passes carry ``peak``; the loop sets it.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.spans: list[Span] = []
        self.keeps_peaks = False

    def add(self, kind: str, begin: Stamp, logits: Tensor | None = None) -> None:
        """Close a span that began at ``begin``; ``logits``: of the pass that it is."""
        end = self.clock.stamp()
        checked = self.keeps_peaks and logits is not None and logits.numel() > 0
        self.spans.append(Span(kind, begin, end, _peak(logits) if checked and logits is not None else None))


def _peak(logits: Tensor) -> Tensor:
    """Return `Span.peak`: the sum of the largest logit of each row. On a CPU, 0 if the sum of all logits is finite."""
    if logits.device.type == "cpu" and math.isfinite(logits.sum(dtype=torch.float32).item()):
        return torch.zeros(())
    return logits.amax(-1).float().sum()


def clock_for(device: str) -> Clock:
    """Return the clock of a torch device string."""
    if device.startswith("cuda"):
        event: Callable[..., Event] = torch.cuda.Event
        return EventClock(lambda: event(enable_timing=True), torch.cuda.synchronize)
    return CpuClock()
