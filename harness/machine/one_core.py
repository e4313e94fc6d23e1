"""Threads that take turns, on one core: waking a thread there takes a tenth of the time that another core takes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_number: int | None = None
"""The number of this process among those that share the work, or None if it has none."""


def be_number(number: int | None) -> None:
    """Take the core of this number from now on, as each of several processes has another, or any core if it is None."""
    global _number
    _number = number


@contextmanager
def on_one_core() -> Iterator[None]:
    """Keep this thread and those that it starts on the core of this process, or on the current one, while inside.

    Nothing is changed if the system does not know that core, or forbids it.
    """
    before = _cores()
    try:
        if len(before) > 1:
            with suppress(OSError, AttributeError):
                now = ctypes.CDLL(None).sched_getcpu() if _number is None else sorted(before)[_number % len(before)]
                os.sched_setaffinity(0, {now})
        yield
    finally:
        if len(before) > 1:
            with suppress(OSError):
                os.sched_setaffinity(0, before)


def _cores() -> set[int]:
    """Return the cores that this thread may use; none if the system does not say."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
