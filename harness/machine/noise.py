"""The noise meter: how long this process waited for a core, and how often it was taken off one.

The time of a step is worthless if other work had the cores meanwhile. Linux counts, for each thread, the time
that it could have run and did not (``/proc/self/task/*/schedstat``, second number), and for the process its
involuntary context switches (getrusage). On other systems the first is 0.

A process that is stopped (a suspended machine, a frozen container, SIGSTOP) neither computes nor waits for a core. So
the time in which no thread did either is idle time, and `stopped_times` tells a stop apart from waiting for a GPU or a
disk.

On a GPU seconds also depend on its clock, which falls when it is hot or shared, and on other processes. NVML reports
both if the extra `gpu` is installed; without it, on a CPU, and if NVML gives no answer, both are 0.
"""

from __future__ import annotations

import importlib
import os
import resource
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

TASKS = Path("/proc/self/task")
LEAST_STOP_NS, UNUSUAL = 500_000_000, 10
"""A stop takes this long at least, and so many times the idle time of the decode's median step."""


class Waited(NamedTuple):
    """What happened since the reading before.

    Attributes:
        wait_ns: time that threads were ready to run and had no core, added up over threads.
        gpu_mhz: clock of the GPU's multiprocessors at the reading; 0: not known.
        foreign: other processes that compute on the GPU at the reading.
        idle_ns: time in which no thread of the process computed or waited for a core; 0 if the system does not tell how
            long threads waited.
    """

    wait_ns: int
    switches: int
    gpu_mhz: int = 0
    foreign: int = 0
    idle_ns: int = 0


def stopped_times(wall_ns: Sequence[int], idle_ns: Sequence[int]) -> list[int]:
    """Return for how long the process was stopped in each step of a decode.

    A step was stopped if it was idle for more than half of its time, for ``LEAST_STOP_NS``, and for ``UNUSUAL`` times
    as long as the median step, because a GPU or a disk may keep every step waiting. One step alone has no such median.
    """
    usual = sorted(idle_ns)[(len(idle_ns) - 1) // 2] if len(idle_ns) > 1 else max(idle_ns, default=0)
    least = max(LEAST_STOP_NS, UNUSUAL * usual)
    idle = [min(pair) for pair in zip(wall_ns, idle_ns, strict=True)]
    return [one if one >= least and 2 * one > wall else 0 for one, wall in zip(idle, wall_ns, strict=True)]


class GpuMeter:
    """Reads the clock of one GPU, and the processes on it that are not of this run.

    Args:
        nvml: the module `pynvml`, initialised.
        processes: the folder of all processes, which tells a worker's parent.
    """

    def __init__(self, nvml: Any, handle: Any, processes: Path = Path("/proc")) -> None:
        self._nvml = nvml
        self._handle = handle
        self._processes = processes

    @classmethod
    def of(cls, device: torch.device | str) -> GpuMeter | None:
        """Return the meter of a device, or None on a CPU, without the extra `gpu`, or if NVML does not answer."""
        if torch.device(device).type != "cuda":
            return None
        try:
            nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
            return cls(nvml, nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}"))
        except Exception:  # no driver, no such device, an older torch: the seconds stay unjudged
            return None

    def read(self) -> tuple[int, int]:
        """Return the clock in MHz, and the number of foreign processes; 0 if NVML does not tell."""
        try:
            mhz = int(self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_SM))
            pids = {int(one.pid) for one in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)}
        except Exception:  # an error of NVML's own kind: a counter that this device lacks
            return 0, 0
        if os.getpid() not in pids:  # in a container the numbers of processes are those of the host
            return mhz, 0
        return mhz, sum(not self._of_this_run(pid) for pid in pids)

    def energy_uj(self) -> int | None:
        """Return the energy of the GPU since the driver was loaded, in microjoules, or None if NVML does not tell."""
        try:
            return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) * 1000
        except Exception:  # an error of NVML's own kind: a counter that this device lacks
            return None

    def _of_this_run(self, pid: int) -> bool:
        """Return whether a process is this one, its parent (the run of a worker) or a child (a worker of the run)."""
        if pid in (os.getpid(), os.getppid()):
            return True
        with suppress(OSError, IndexError, ValueError):
            status = (self._processes / str(pid) / "stat").read_text().rpartition(")")[2].split()
            return int(status[1]) in (os.getpid(), os.getppid())
        return False


class NoiseMeter:
    """Reads the counters of the threads that exist when it is made; one that ends keeps its waiting time.

    Files stay open, so that a reading takes a few microseconds. It is made and read outside of the timed steps.

    Args:
        gpu: of the device that decodes, or None if it is unknown or not a GPU.
        now: the host's clock, in nanoseconds.
        computed: the time that all threads of the process computed, in nanoseconds.
    """

    def __init__(
        self,
        tasks: Path = TASKS,
        gpu: GpuMeter | None = None,
        now: Callable[[], int] = time.perf_counter_ns,
        computed: Callable[[], int] = time.process_time_ns,
    ) -> None:
        self._files: dict[int, int] = {}
        self._ended = 0
        self._gpu, self._now, self._computed = gpu, now, computed
        with suppress(OSError):  # what /proc refuses counts as if it were not there
            for path in sorted(tasks.glob("*/schedstat")):
                with suppress(OSError):
                    self._files[os.open(path, os.O_RDONLY)] = 0
        self._before = self._read()

    def read(self) -> Waited:
        """Return the waiting time since the last call, or since this meter was created."""
        now, before = self._read(), self._before
        self._before = now
        gpu = self._gpu.read() if self._gpu is not None else (0, 0)
        wait, switches, idle = (
            max(0, getattr(now, name) - getattr(before, name)) for name in ("wait_ns", "switches", "idle_ns")
        )
        return Waited(wait, switches, *gpu, idle_ns=idle if self._files else 0)

    def close(self) -> None:
        """Close the files; a later reading counts switches alone."""
        while self._files:
            with suppress(OSError):  # a plugin closed it
                os.close(self._files.popitem()[0])

    def __del__(self) -> None:
        self.close()

    def _read(self) -> Waited:
        for file in list(self._files):
            try:
                self._files[file] = int(os.pread(file, 128, 0).split()[1])
            except (OSError, IndexError, ValueError):  # the thread has ended
                self._ended += self._files.pop(file)
                with suppress(OSError):
                    os.close(file)
        wait = self._ended + sum(self._files.values())
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        return Waited(wait, switches, idle_ns=self._now() - self._computed() - wait)


BUSY = 0.5
"""Share of the cores that other work may use before it is said."""


def busy(load: float, cores: int) -> str | None:
    """Return a line about other work on this machine, or None if there is little.

    Args:
        load: processes that want a core, averaged over a minute, before the run starts.
    """
    if load <= BUSY * cores:
        return None
    return f"this machine is busy: a load of {load:.1f} on {cores} cores before the run, which disturbs its times"


def load_and_cores() -> tuple[float, int]:
    """Return the load of the last minute, and the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return os.getloadavg()[0], cores
