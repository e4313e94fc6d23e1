"""What will disturb the times of a run, said before it starts: other work, and more threads than a small model uses."""

from __future__ import annotations

import os
import re
import time

import torch

SMALL = 20e6
"""Parameters below which the passes of a model may be shorter than the hand-over of work to threads."""
BUSY = 0.5
"""Share of the cores that other work may use before it is said."""
SLOWER = 1.5
"""Times a product must be slower with all threads before it is said."""


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


def parameters_of(size: str) -> float | None:
    """The number of parameters that the ``size`` of a preset states first; None: none."""
    match = re.match(r"([\d.]+) ([MB])\b", size)
    return None if match is None else float(match[1]) * (1e6 if match[2] == "M" else 1e9)


def too_many_threads(name: str, size: str, threads: int) -> str | None:
    """A line about a small model that more threads slow down; None: there is nothing to say.

    Args:
        name: of the backbone.
        size: what its preset states.
        threads: of torch.
    """
    parameters = parameters_of(size)
    if threads < 2 or parameters is None or parameters > SMALL:
        return None
    slower = product_ns(threads) / product_ns(1)
    if slower < SLOWER:
        return None
    return (
        f"{name} is small ({size}), and a product of its kind takes {slower:.1f} times as long here with {threads} "
        f"threads as with one; --set threads=1 may be faster"
    )


def product_ns(threads: int, repeats: int = 200) -> float:
    """Nanoseconds of a row of 256 numbers times a matrix of 256 x 1024, the fastest of five rounds.

    The threads of torch are as before afterwards.
    """
    before = torch.get_num_threads()
    row, matrix = torch.ones(1, 256), torch.ones(256, 1024)
    torch.set_num_threads(threads)
    try:
        rounds = []
        for _ in range(5):
            begin = time.perf_counter_ns()
            for _ in range(repeats // 5):
                torch.mm(row, matrix)
            rounds.append((time.perf_counter_ns() - begin) / (repeats // 5))
        return min(rounds)
    finally:
        torch.set_num_threads(before)
