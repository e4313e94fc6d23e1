"""The noise meter on files made by hand, and on this process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stridebench.harness.machine import noise
from stridebench.harness.machine.noise import GpuMeter, NoiseMeter, stopped_times


def threads(folder: Path, *waits: int) -> Path:
    for number, wait in enumerate(waits):
        (folder / str(number)).mkdir(parents=True, exist_ok=True)
        (folder / str(number) / "schedstat").write_text(f"12345 {wait} 7\n")
    return folder


def test_waits_are_added_up_over_threads_since_the_last_reading(tmp_path: Path) -> None:
    meter = NoiseMeter(threads(tmp_path, 100, 1000))
    threads(tmp_path, 150, 1000)
    assert meter.read().wait_ns == 50
    assert meter.read().wait_ns == 0
    threads(tmp_path, 151, 1020)
    assert meter.read().wait_ns == 21


def test_a_thread_that_ended_keeps_what_it_had_waited(tmp_path: Path) -> None:
    meter = NoiseMeter(threads(tmp_path, 100, 1000))
    (tmp_path / "1" / "schedstat").write_text("")
    threads(tmp_path, 130)
    assert meter.read().wait_ns == 30
    threads(tmp_path, 140)
    assert meter.read().wait_ns == 10


def test_without_such_files_waits_are_zero_and_no_time_is_idle(tmp_path: Path) -> None:
    now = iter((0, 10**10))
    reading = NoiseMeter(tmp_path / "absent", now=lambda: next(now), computed=lambda: 0).read()
    assert (reading.wait_ns, reading.idle_ns) == (0, 0) and reading.switches >= 0


def test_closing_leaves_no_file_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    meter = NoiseMeter(threads(tmp_path, 1, 2, 3))
    assert len(os.listdir("/proc/self/fd")) == before + 3
    meter.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert meter.read().wait_ns == 0


def test_idle_time_is_neither_computing_nor_waiting(tmp_path: Path) -> None:
    now, computed = [1000], [100]
    meter = NoiseMeter(threads(tmp_path, 0, 0), now=lambda: now[0], computed=lambda: computed[0])
    threads(tmp_path, 30, 20)
    now[0], computed[0] = 1200, 180
    assert meter.read().idle_ns == 200 - 80 - 50
    now[0], computed[0] = 1300, 400  # several threads compute
    assert meter.read().idle_ns == 0
    (tmp_path / "1" / "schedstat").write_text("")  # this thread has ended, and what it had waited is no idle time
    now[0], computed[0] = 1400, 500
    assert meter.read().idle_ns == 0


S = 1_000_000_000


@pytest.mark.parametrize(
    ("wall", "idle", "stopped"),
    [
        ([S, 4 * S, S], [0, 3 * S, 0], [0, 3 * S, 0]),
        ([S, 4 * S, S], [0, 9 * S, 0], [0, 4 * S, 0]),  # the rest of the stop was between two steps
        ([S // 10, S // 10], [3 * S, 0], [0, 0]),  # all of it was
        ([10 * S, 9 * S], [0, 3 * S], [0, 0]),  # less than half of a step: computing takes that long
        ([S, S // 2, S], [0, S // 2 - 1, 0], [0, 0, 0]),
        ([S, S, S], [S * 9 // 10] * 3, [0, 0, 0]),  # every step waits for a GPU or a disk
        ([S, 9 * S, S], [S // 2, 8 * S, S // 2], [0, 8 * S, 0]),
        ([4 * S], [3 * S], [0]),  # nothing tells what is usual
        ([], [], []),
    ],
)
def test_a_stop_is_told_apart_from_waiting(wall: list[int], idle: list[int], stopped: list[int]) -> None:
    assert stopped_times(wall, idle) == stopped


class Nvml:
    """As the module pynvml, for one device."""

    NVML_CLOCK_SM = 1

    def __init__(self, mhz: int | None = 1980, pids: tuple[int, ...] = ()) -> None:
        self.mhz, self.pids, self.asked = mhz, pids, ""

    def nvmlInit(self) -> None:  # noqa: N802
        return None

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:  # noqa: N802
        self.asked = name
        return "handle"

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:  # noqa: N802
        if self.mhz is None or (handle, kind) != ("handle", 1):
            raise RuntimeError("not supported")
        return self.mhz

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self.pids]


def test_the_meter_of_a_gpu_tells_its_clock_and_the_processes_of_others(tmp_path: Path) -> None:
    for pid, parent in ((900_001, os.getpid()), (900_002, 1)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a (name) R) S {parent} 1 1")
    pids = (os.getpid(), os.getppid(), 900_001, 900_002, 900_003)  # a worker, another's process, one that is gone
    meter = NoiseMeter(tmp_path / "absent", GpuMeter(Nvml(1500, pids), "handle", tmp_path))
    assert meter.read()[2:4] == (1500, 2)
    none = tmp_path / "none"
    assert GpuMeter(Nvml(1980, (900_001,)), "handle", none).read() == (1980, 0), (
        "in a container with the host's numbers"
    )
    assert GpuMeter(Nvml(None), "handle", none).read() == (0, 0), "it does not answer"


def test_a_device_is_looked_up_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="12-ab"))
    meter = GpuMeter.of(torch.device("cuda", 0))
    assert meter is not None and nvml.asked == "GPU-12-ab" and meter.read()[0] == 1980
    assert GpuMeter.of(torch.device("cpu")) is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert GpuMeter.of(torch.device("cuda", 0)) is None, "without the extra"


# What is said of a busy machine, from given loads.


def test_a_busy_machine_is_said() -> None:
    assert noise.busy(0.9, 2) is None
    assert noise.busy(3.24, 2) == (
        "this machine is busy: a load of 3.2 on 2 cores before the run, which disturbs its times"
    )
