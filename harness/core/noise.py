"""The noise meter: how long this process waited for a core, and how often it was taken off one.

Seconds of a step are worth nothing where other work had the cores meanwhile. Linux counts, for each thread, the time
that it could have run and did not (``/proc/self/task/*/schedstat``, second number), and for the process its
involuntary context switches (getrusage). On other systems the first is 0.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

TASKS = Path("/proc/self/task")


class Waited(NamedTuple):
    """What happened since the reading before.

    Attributes:
        wait_ns: time that threads were ready to run and had no core, added up over threads.
        switches: involuntary context switches.
    """

    wait_ns: int
    switches: int


class NoiseMeter:
    """Reads the counters of the threads that exist when it is made; a thread that ends counts no more.

    Files stay open, so that a reading takes a few microseconds. It is made and read outside of what is timed.

    Args:
        tasks: the folder of the threads.
    """

    def __init__(self, tasks: Path = TASKS) -> None:
        self._files: list[int] = []
        for path in sorted(tasks.glob("*/schedstat")):
            with suppress(OSError):
                self._files.append(os.open(path, os.O_RDONLY))
        self._before = self._read()

    def read(self) -> Waited:
        """Since the last call, or since the meter was made."""
        now, before = self._read(), self._before
        self._before = now
        return Waited(max(0, now.wait_ns - before.wait_ns), max(0, now.switches - before.switches))

    def close(self) -> None:
        """Close the files; a later reading counts switches alone."""
        while self._files:
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
                os.close(file)
        return Waited(wait, resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw)
