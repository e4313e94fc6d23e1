"""Where tensors live: checks of a device that a user named."""

from __future__ import annotations

import torch

from stridebench.harness.errors import UsageError


def check_device(device: str) -> None:
    """Refuse a device that torch does not know or does not find here.

    Raises:
        UsageError: no such device.
    """
    try:
        if device == "meta":
            raise RuntimeError("nothing is computed on it")
        torch.empty(0, device=device)
        if device.startswith("cuda"):
            torch.cuda.set_device(device)  # events and their clock are of the current device
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise UsageError(f"--device {device}: {first}. `stride doctor` shows what this machine has.") from error
