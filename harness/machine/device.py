"""What a device has: the types that it multiplies natively, and its memory.

A process keeps freed memory: otherwise glibc maps and unmaps a tensor of some MB at every operation. Measured on two
cores: top-p over 11 rows of 49,152 tokens takes 6.0 to 10.1 ms by default and 2.7 to 4.0 ms with it.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import math
import sys
from collections.abc import Collection
from pathlib import Path

from stridebench.harness.errors import UsageError

CPU_INFO = Path("/proc/cpuinfo")
BF16_INSTRUCTIONS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
NATIVE = "native"
MEMINFO = Path("/proc/meminfo")
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def native_dtype(device: str) -> str:
    """Return "bf16" if a device multiplies it natively, else "fp32".

    A CPU that emulates bf16 takes longer for it than for fp32: with AVX2 alone 2 times for one row, 6 times for 16.
    NVIDIA GPUs multiply it from compute capability 8.0 on. Older ones have fp16, in which many models overflow.
    """
    if device.startswith("cuda"):
        import torch

        native = not torch.cuda.is_available() or torch.cuda.get_device_capability(device) >= (8, 0)
    else:
        native = not device.startswith("cpu") or multiplies_bf16()
    return "bf16" if native else "fp32"


def emulated(dtypes: Collection[str], device: str) -> str | None:
    """Return a warning if this type is emulated and `native_dtype` would avoid it, or None."""
    if "bf16" not in dtypes or native_dtype(device) == "bf16":
        return None
    what = "GPU" if device.startswith("cuda") else "CPU"
    return (
        f"this {what} emulates bf16, which is slower than fp32; --dtype native takes bf16 only where it is multiplied"
    )


@functools.cache
def multiplies_bf16() -> bool:
    """Return whether the CPU has AVX-512 BF16, AMX or ARM's BF16, as Linux tells; elsewhere False."""
    try:
        lines = CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    flags = (line.partition(":")[2].split() for line in lines if line.lower().startswith(("flags", "features")))
    return not BF16_INSTRUCTIONS.isdisjoint(next(flags, ()))


def check_device(device: str) -> None:
    """Refuse a device that torch does not know or does not find here."""
    import torch

    try:
        if device == "meta":
            raise RuntimeError("nothing is computed on it")
        torch.empty(0, device=device)
        if device.startswith("cuda"):
            torch.cuda.set_device(device)  # events and their clock are of the current device
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise UsageError(f"--device {device}: {first}. `stride doctor` shows what this machine has.") from error


def keep_pages() -> bool:
    """Ask glibc to serve blocks up to 1 GB from its heap and never to give the heap back; False: not glibc."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, 1 << 30)) and bool(mallopt(_TRIM_THRESHOLD, (1 << 31) - 1))


def give_back() -> bool:
    """Give freed pages back to the system, wherever they lie in the heap; False: not glibc, or there were none.

    Reading and packing weights frees as much as it keeps, and nothing that a decode allocates is as large.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None
    return trim is not None and bool(trim(0))


def free_memory(device: str) -> float:
    """Return the bytes that are free on a device, or infinity if unknown.

    On a CPU, these are the bytes that the kernel can give without swapping.
    """
    gc.collect()
    if device.startswith("cuda"):
        import torch

        free, cached = torch.cuda.mem_get_info(device)[0], torch.cuda.memory_reserved(device)
        return float(free + cached - torch.cuda.memory_allocated(device))
    try:
        lines = MEMINFO.read_text(encoding="ascii").splitlines()
        return 1024.0 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:")))
    except (OSError, ValueError, StopIteration, IndexError):
        return math.inf
