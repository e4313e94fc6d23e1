"""The consumption of a decode: the peak of memory, and the energy of the processor and of the GPU.

Both are read before and after a batch of decodes, outside of every step's clock. A value that a machine
does not report is None.

- Memory. On CUDA the allocator's peak. Elsewhere the high-water mark of the process's resident memory, which Linux can
  set back (``/proc/self/clear_refs``), so that a decode's peak does not include earlier use.
- Energy. Of the processor by RAPL (``/sys/class/powercap``), which only root may read on most machines: packages and
  their memory, whole, so other work on the machine is in it. Of the GPU by NVML, whole too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from stridebench.harness.machine.noise import GpuMeter

POWERCAP = Path("/sys/class/powercap")
PROCESS = Path("/proc/self")
PACKAGE = re.compile(r"intel-rapl:\d+")
"""Domains of whole packages; AMD's have the same names."""


@dataclass(frozen=True)
class Consumption:
    """The use of a batch of decodes, or None if the machine does not tell.

    Args:
        held_bytes: memory in use when it began: weights, and what earlier decodes left.
        peak_bytes: the most memory in use while it ran.
        cpu_uj: energy of the processor's packages and their memory, microjoules.
    """

    held_bytes: int | None = None
    peak_bytes: int | None = None
    cpu_uj: int | None = None
    gpu_uj: int | None = None

    def shared(self, decodes: int) -> Consumption:
        """Return the share of one of the decodes: an equal part of the energy, and all of the memory."""
        cpu, gpu = (None if energy is None else energy // max(1, decodes) for energy in (self.cpu_uj, self.gpu_uj))
        return Consumption(self.held_bytes, self.peak_bytes, cpu, gpu)


class ConsumptionMeter:
    """Begins when it is made, ends with ``read``.

    Args:
        gpu: its meter, or None if there is no GPU or NVML does not answer.
    """

    def __init__(
        self,
        device: torch.device | str,
        gpu: GpuMeter | None = None,
        powercap: Path = POWERCAP,
        process: Path = PROCESS,
    ) -> None:
        self._on_cuda = torch.device(device).type == "cuda"
        self._device, self._gpu, self._process = device, gpu, process
        self._domains = tuple(Domain(folder) for folder in domains(powercap))
        self._held = self._begin_memory()
        self._gpu_before = None if gpu is None else gpu.energy_uj()
        self._cpu_before = tuple(domain.read() for domain in self._domains)

    def read(self) -> Consumption:
        """Return the consumption since this meter was created."""
        cpu = tuple(domain.read() for domain in self._domains)
        gpu = None if self._gpu is None else self._gpu.energy_uj()
        spent = [d.between(a, b) for d, a, b in zip(self._domains, self._cpu_before, cpu, strict=True)]
        told = [energy for energy in spent if energy is not None]
        return Consumption(
            held_bytes=self._held,
            peak_bytes=None if self._held is None else self._peak(),
            cpu_uj=sum(told) if told and len(told) == len(spent) else None,
            gpu_uj=None if gpu is None or self._gpu_before is None else max(0, gpu - self._gpu_before),
        )

    def _begin_memory(self) -> int | None:
        """Return the bytes in use now, or None if earlier peaks hide this one."""
        if self._on_cuda:
            torch.cuda.reset_peak_memory_stats(self._device)
            return int(torch.cuda.memory_allocated(self._device))
        with suppress(OSError):
            (self._process / "clear_refs").write_text("5")
            held, peak = status(self._process, "VmRSS"), status(self._process, "VmHWM")
            if held is not None and peak is not None and peak <= held * 1.02 + 2**20:  # it was set back
                return held
        return None

    def _peak(self) -> int | None:
        if self._on_cuda:
            return int(torch.cuda.max_memory_allocated(self._device))
        return status(self._process, "VmHWM")


def status(process: Path, name: str) -> int | None:
    """Return an entry of a process's status in bytes, or None if the system has none."""
    with suppress(OSError):
        found = re.search(rf"^{name}:\s+(\d+) kB$", (process / "status").read_text(), re.MULTILINE)
        return int(found[1]) * 1024 if found else None
    return None


def domains(powercap: Path) -> Iterator[Path]:
    """Yield the domains whose energies add up: packages, with the energy of their cores, and the memory of each.

    The domain ``psys`` is the whole board, packages included, and is left out.
    """
    folders: list[Path] = []
    with suppress(OSError):
        folders = sorted(powercap.glob("intel-rapl:*"))
    for folder in folders:
        with suppress(OSError):
            name = (folder / "name").read_text().strip()
            if (PACKAGE.fullmatch(folder.name) and name.startswith("package")) or name == "dram":
                yield folder


class Domain:
    """A counter of energy that starts again at 0 after its largest value."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> int | None:
        """Return microjoules, or None if the counter may not be read."""
        return self._number("energy_uj")

    def between(self, before: int | None, after: int | None) -> int | None:
        """Return microjoules between two readings; at most one turn of the counter lies between them."""
        if before is None or after is None:
            return None
        if after >= before:
            return after - before
        largest = self._number("max_energy_range_uj")
        return None if largest is None else after + largest - before

    def _number(self, name: str) -> int | None:
        with suppress(OSError, ValueError):
            return int((self._folder / name).read_text())
        return None
