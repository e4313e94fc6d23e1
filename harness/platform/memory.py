"""How much memory is free."""

from __future__ import annotations

import gc
import math
from pathlib import Path

MEMINFO = Path("/proc/meminfo")


def free_memory(device: str) -> float:
    """Bytes that may still be taken on a device; infinity where the machine does not tell.

    Of a CPU, what the kernel can give without swapping.
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
