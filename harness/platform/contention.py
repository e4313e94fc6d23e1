"""What will disturb the times of a run, said before it starts: other work on the machine."""

from __future__ import annotations

import os

BUSY = 0.5
"""Share of the cores that other work may use before it is said."""


def busy(load: float, cores: int) -> str | None:
    """A line about other work on this machine; None: there is little.

    Args:
        load: processes that want a core, averaged over a minute, before the run starts.
    """
    if load <= BUSY * cores:
        return None
    return f"this machine is busy: a load of {load:.1f} on {cores} cores before the run, which disturbs its times"


def load_and_cores() -> tuple[float, int]:
    """The load of the last minute, and the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return os.getloadavg()[0], cores
