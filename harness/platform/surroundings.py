"""What code of methods, tasks and plugins may change in a process, kept as it was."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch


@contextmanager
def restored() -> Iterator[None]:
    """Put back torch's threads and default type, the working folder, both output streams and signal handlers."""
    threads, dtype, folder = torch.get_num_threads(), torch.get_default_dtype(), os.getcwd()
    streams = sys.stdout, sys.stderr
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    try:
        yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if torch.get_default_dtype() != dtype:
            torch.set_default_dtype(dtype)
        with suppress(OSError):  # the folder is gone
            os.chdir(folder)
        sys.stdout, sys.stderr = streams
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                if handler is not None and signal.getsignal(number) is not handler:
                    signal.signal(number, handler)
