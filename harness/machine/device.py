"""The types that a device multiplies natively."""

from __future__ import annotations

import functools
from collections.abc import Collection
from pathlib import Path

from stridebench.harness.errors import UsageError

CPU_INFO = Path("/proc/cpuinfo")
BF16_INSTRUCTIONS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
NATIVE = "native"


def native_dtype(device: str) -> str:
    """Return "bf16" if a device multiplies it natively, else "fp32".

    A CPU that emulates bf16 takes longer for it than for fp32: with AVX2 alone 2 times for one row, 6 times for 16.
    NVIDIA GPUs multiply it from compute capability 8.0 on. Older ones have fp16, in which many models overflow.

    Args:
        device: a torch device.
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
    """Refuse a device that torch does not know or does not find here.

    Raises:
        UsageError: no such device.
    """
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
