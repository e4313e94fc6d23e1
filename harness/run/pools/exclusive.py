"""One timed unit of cells at a time on a device, whatever runs on the machine beside this process."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch


@contextmanager
def exclusive(device: str) -> Iterator[None]:
    """Wait until no other worker of this user times on the device, and keep others waiting.

    The lock is the kernel's, so it ends with the process, however that ends.
    """
    handle = os.open(lock_file(device), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def lock_file(device: str) -> Path:
    """The file that stands for a device of this machine."""
    return Path(tempfile.gettempdir()) / f"stride-timing-{os.getuid()}-{_identity(device)}.lock"


def _identity(device: str) -> str:
    """A GPU by its own id, since each worker may see it under another number."""
    if not device.startswith("cuda"):
        return "cpu"
    properties = torch.cuda.get_device_properties(torch.device(device))
    return f"gpu-{getattr(properties, 'uuid', torch.device(device).index or 0)}"
