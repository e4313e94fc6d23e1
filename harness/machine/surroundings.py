"""What code of methods, tasks and plugins may change in a process, kept as it was."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any


@contextmanager
def restored() -> Iterator[None]:
    """Put back torch's threads and default type, the working folder, both output streams and signal handlers.

    The state of torch is left alone if it is not imported yet.
    """
    torch = sys.modules.get("torch")
    with ExitStack() as stack:
        if torch is not None:
            stack.enter_context(_torch_restored(torch))
        stack.enter_context(_process_restored())
        yield


@contextmanager
def _torch_restored(torch: Any) -> Iterator[None]:
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    try:
        yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if torch.get_default_dtype() != dtype:
            torch.set_default_dtype(dtype)


@contextmanager
def _descriptors_restored() -> Iterator[None]:
    """Standard input, output and error are those of before: the next file that opens would get a closed one's number.

    Printed text would then go into that file, which may be a record of the run.
    """
    saved: dict[int, int] = {}
    for number in range(3):
        with suppress(OSError):  # it is closed, or no descriptor is left
            saved[number] = os.dup(number)
    try:
        yield
    finally:
        for number, copy in saved.items():
            with suppress(OSError):
                if not _refers_to(number, copy):
                    os.dup2(copy, number)
                os.close(copy)


def _refers_to(descriptor: int, other: int) -> bool:
    """Return whether two descriptors are of one file; False if the first is closed."""
    try:
        return os.path.sameopenfile(descriptor, other)
    except OSError:
        return False


@contextmanager
def _process_restored() -> Iterator[None]:
    folder = None
    with suppress(OSError):  # it is gone
        folder = os.getcwd()
    streams = sys.stdout, sys.stderr
    stack = ExitStack()
    stack.enter_context(_descriptors_restored())
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    try:
        yield
    finally:
        stack.close()
        if folder is not None:
            with suppress(OSError):  # it is gone meanwhile
                os.chdir(folder)
        sys.stdout, sys.stderr = streams
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                if handler is not None and signal.getsignal(number) is not handler:
                    signal.signal(number, handler)
