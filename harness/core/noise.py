"""The noise meter: how long this process waited for a core, and how often it was taken off one.

Seconds of a step are worth nothing where other work had the cores meanwhile. Linux counts, for each thread, the time
that it could have run and did not (``/proc/self/task/*/schedstat``, second number), and for the process its
involuntary context switches (getrusage). On other systems the first is 0.

On a GPU seconds also depend on its clock, which falls when it is hot or shared, and on other processes. NVML tells both
where the extra `gpu` is installed; without it, on a CPU, and where NVML answers nothing, both are 0.
"""

from __future__ import annotations

import importlib
import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

TASKS = Path("/proc/self/task")


class Waited(NamedTuple):
    """What happened since the reading before.

    Attributes:
        wait_ns: time that threads were ready to run and had no core, added up over threads.
        switches: involuntary context switches.
        gpu_mhz: clock of the GPU's multiprocessors at the reading; 0: not known.
        foreign: other processes that compute on the GPU at the reading.
    """

    wait_ns: int
    switches: int
    gpu_mhz: int = 0
    foreign: int = 0


class GpuMeter:
    """Reads the clock of one GPU, and the processes on it that are not of this run.

    Args:
        nvml: the module `pynvml`, initialised.
        handle: the device.
        processes: the folder of all processes, which tells a worker's parent.
    """

    def __init__(self, nvml: Any, handle: Any, processes: Path = Path("/proc")) -> None:
        self._nvml = nvml
        self._handle = handle
        self._processes = processes

    @classmethod
    def of(cls, device: torch.device | str) -> GpuMeter | None:
        """The meter of a device; None on a CPU, without the extra `gpu`, or where NVML does not answer."""
        if torch.device(device).type != "cuda":
            return None
        try:
            nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
            return cls(nvml, nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}"))
        except Exception:  # no driver, no such device, an older torch: the seconds stay unjudged
            return None

    def read(self) -> tuple[int, int]:
        """The clock in MHz, and the number of foreign processes; 0 where NVML does not tell."""
        try:
            mhz = int(self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_SM))
            pids = {int(one.pid) for one in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)}
        except Exception:  # an error of NVML's own kind: a counter that this device lacks
            return 0, 0
        if os.getpid() not in pids:  # in a container the numbers of processes are those of the host
            return mhz, 0
        return mhz, sum(not self._of_this_run(pid) for pid in pids)

    def energy_uj(self) -> int | None:
        """Energy of the GPU since the driver was loaded, microjoules; None where NVML does not tell."""
        try:
            return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) * 1000
        except Exception:  # an error of NVML's own kind: a counter that this device lacks
            return None

    def _of_this_run(self, pid: int) -> bool:
        """Whether a process is this one, its parent (the run of a worker) or a child (a worker of the run)."""
        if pid in (os.getpid(), os.getppid()):
            return True
        with suppress(OSError, IndexError, ValueError):
            status = (self._processes / str(pid) / "stat").read_text().rpartition(")")[2].split()
            return int(status[1]) in (os.getpid(), os.getppid())
        return False


class NoiseMeter:
    """Reads the counters of the threads that exist when it is made; a thread that ends counts no more.

    Files stay open, so that a reading takes a few microseconds. It is made and read outside of what is timed.

    Args:
        tasks: the folder of the threads.
        gpu: of the device that decodes; None: it is no GPU, or not known.
    """

    def __init__(self, tasks: Path = TASKS, gpu: GpuMeter | None = None) -> None:
        self._files: list[int] = []
        self._gpu = gpu
        with suppress(OSError):  # what /proc refuses counts as if it were not there
            for path in sorted(tasks.glob("*/schedstat")):
                with suppress(OSError):
                    self._files.append(os.open(path, os.O_RDONLY))
        self._before = self._read()

    def read(self) -> Waited:
        """Since the last call, or since the meter was made."""
        now, before = self._read(), self._before
        self._before = now
        gpu = self._gpu.read() if self._gpu is not None else (0, 0)
        return Waited(max(0, now.wait_ns - before.wait_ns), max(0, now.switches - before.switches), *gpu)

    def close(self) -> None:
        """Close the files; a later reading counts switches alone."""
        while self._files:
            with suppress(OSError):  # a plugin closed it
                os.close(self._files.pop())

    def __del__(self) -> None:
        self.close()

    def _read(self) -> Waited:
        wait = 0
        for file in list(self._files):
            try:
                wait += int(os.pread(file, 128, 0).split()[1])
            except (OSError, IndexError, ValueError):  # the thread has ended
                self._files.remove(file)
                with suppress(OSError):
                    os.close(file)
        return Waited(wait, resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw)
