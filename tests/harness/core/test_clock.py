"""Clocks: what a stamp costs and records, and how durations follow from stamps."""

from __future__ import annotations

import pytest
import torch

from stridebench.harness.core.clock import CpuClock, EventClock, Stamp, Stopwatch, clock_for


class FakeEvent:
    """An event at a time set by hand."""

    def __init__(self, at_ms: float) -> None:
        self.at_ms = at_ms

    def record(self) -> None:
        raise AssertionError("no stamp is taken")

    def elapsed_time(self, end: FakeEvent) -> float:
        return end.at_ms - self.at_ms


@pytest.mark.parametrize(("ms", "ns"), [(0.0, 0), (0.0000004, 0), (0.0000006, 1), (1234.5678, 1_234_567_800)])
def test_device_time_is_rounded_to_nanoseconds(ms: float, ns: int) -> None:
    clock = EventClock(lambda: FakeEvent(0.0), lambda: None)
    assert clock.device_ns(Stamp(0, FakeEvent(0.0)), Stamp(0, FakeEvent(ms))) == ns


def test_a_cpu_stamp_has_no_event_and_the_host_is_the_device() -> None:
    clock = CpuClock()
    first, second = clock.stamp(), clock.stamp()
    assert first.event is None
    assert second.host_ns >= first.host_ns
    assert clock.device_ns(Stamp(5), Stamp(12)) == clock.wall_ns(Stamp(5), Stamp(12)) == 7
    clock.finish()


@pytest.mark.parametrize(("device", "kind"), [("cpu", CpuClock), ("cuda", EventClock), ("cuda:1", EventClock)])
def test_the_clock_of_a_device(device: str, kind: type) -> None:
    assert type(clock_for(device)) is kind


@pytest.mark.gpu
def test_events_on_a_real_device() -> None:
    clock = clock_for("cuda")
    work = torch.randn(2048, 2048, device="cuda")
    begin = clock.stamp()
    for _ in range(20):
        work = work @ work / 2048
    middle, end = clock.stamp(), clock.stamp()
    clock.finish()
    assert clock.device_ns(begin, middle) > 0
    assert clock.device_ns(begin, end) >= clock.device_ns(begin, middle)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("row", "finite"),
    [
        ([1.0, -2.0, 3.0], True),
        ([-torch.inf, 0.5, -torch.inf], True),
        ([60_000.0, 60_000.0, 60_000.0], True),
        ([torch.nan, 1.0, 2.0], False),
        ([-torch.nan, 1.0, 2.0], False),
        ([torch.inf, 1.0, -torch.inf], False),
        ([-torch.inf, -torch.inf, -torch.inf], False),
    ],
)
def test_a_peak_is_finite_where_the_loop_can_go_on(row: list[float], finite: bool, dtype: torch.dtype) -> None:
    stopwatch = Stopwatch(CpuClock())
    stopwatch.keeps_peaks = True
    stopwatch.add("target", Stamp(0), torch.tensor([[0.0, 1.0, 2.0], row], dtype=dtype))
    peak = stopwatch.spans[0].peak
    assert peak is not None and bool(torch.isfinite(peak)) is finite
