"""What surrounds foreign code in a process: its state, streams, exits, time limits, cores, and folders."""

from __future__ import annotations

import ctypes
import os
import pickle
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path

from stridebench.harness.errors import RunIncomplete, printable_line

OWN = Path(__file__).resolve().parents[1]
"""The package that holds the command line."""
WITHOUT_READER = (("click", "core.py", "main"), ("rich", "console.py", "on_broken_pipe"))
"""Functions of libraries that tell by ``sys.exit(1)`` that nobody reads the output."""
AGAIN_S = 1.0
"""Code that catches the error of a time limit gets it again after so many seconds."""
_number: int | None = None
"""The number of this process among those that share the work, or None if it has none."""


@contextmanager
def restored() -> Iterator[None]:
    """Put back torch's threads and default type, the working folder and both output streams.

    The state of torch is left alone if it is not imported yet.
    """
    torch, streams, folder = sys.modules.get("torch"), (sys.stdout, sys.stderr), None
    state = None if torch is None else (torch.get_num_threads(), torch.get_default_dtype())
    with suppress(OSError):  # it is gone
        folder = os.getcwd()
    try:
        yield
    finally:
        if folder is not None:
            with suppress(OSError):  # it is gone meanwhile
                os.chdir(folder)
        sys.stdout, sys.stderr = streams
        if torch is not None and state is not None:
            threads, dtype = state
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            if torch.get_default_dtype() != dtype:
                torch.set_default_dtype(dtype)


def open_closed_streams() -> None:
    """Send standard input, output and error that the caller closed to the null device.

    Otherwise a file that a run opens gets their numbers, and printed text goes there.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - as long as the process


@contextmanager
def quiet() -> Iterator[None]:
    """Show no bars or reports inside; the user's settings are restored after it. Imports transformers when entered."""
    from transformers.utils import logging

    enabled, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if enabled:
            logging.enable_progress_bar()


@contextmanager
def stdout_on_stderr() -> Iterator[None]:
    """Send whatever is printed inside to standard error, so that standard output holds the command's answer alone.

    The file descriptor is redirected too, if standard output is that of the process: code in C writes to it.
    """
    sys.stdout.flush()
    descriptor = os.dup(1) if sys.stdout is sys.__stdout__ else None
    try:
        if descriptor is not None:
            os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if descriptor is not None:
            os.dup2(descriptor, 1)
            os.close(descriptor)


@contextmanager
def exits_are_told() -> Iterator[None]:
    """Turn a `sys.exit` of code outside the package into the error of an incomplete run, also for code 0.

    Raises:
        BrokenPipeError: nobody reads the output any more.
    """
    owner = os.getpid()
    try:
        yield
    except SystemExit as stop:
        place = traceback.extract_tb(stop.__traceback__)[-1]
        if (*Path(place.filename).parts[-2:], place.name) in WITHOUT_READER:
            raise BrokenPipeError("nobody reads the output") from stop
        if os.getpid() != owner or Path(place.filename).resolve().is_relative_to(OWN):
            raise
        where = printable_line(f"{place.filename}, line {place.lineno}")
        raise RunIncomplete(
            f"sys.exit({stop.code!r:.80}) in {where} ended this command. Finished cells of a run are kept. Mend or "
            f"uninstall that package, then go on with the same command and --resume."
        ) from stop


class TimeLimitPassed(BaseException):
    """A limit was passed. No Exception, so that code which catches those does not go on."""


@contextmanager
def limited(seconds: float | None, words: str) -> Iterator[None]:
    """Raise `TimeLimitPassed` inside once the time is over; ``words`` say which limit it is.

    The alarm interrupts Python code and system calls that wait, but not running C code. There is no limit if it is
    None, in a thread, or on a system without alarms.
    """
    main = threading.current_thread() is threading.main_thread()
    if seconds is None or not main or not hasattr(signal, "setitimer"):
        yield
        return

    over = False

    def passed(number: int, frame: object) -> None:
        if not over:
            raise TimeLimitPassed(f"passed the limit of {words}")

    before = signal.signal(signal.SIGALRM, passed)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    try:
        yield
    finally:
        over = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether there was an interrupt, and raise that at the end; a second one ends at once.

    In a thread, and in a process that ignores interrupts, nothing is changed.
    """
    asked = False

    def note(number: int, frame: object) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, before)

    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: False
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
    if asked:
        signal.raise_signal(signal.SIGINT)


def be_number(number: int | None) -> None:
    """Take the core of this number from now on, as each of several processes has another, or any core if it is None."""
    global _number
    _number = number


@contextmanager
def on_one_core() -> Iterator[None]:
    """Keep this thread and those that it starts on the core of this process, or on the current one, while inside.

    Nothing is changed if the system does not know that core, or forbids it.
    """
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
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


def cache_folder() -> Path:
    """Return $STRIDE_CACHE, or ~/.cache/stridebench."""
    return Path(os.environ.get("STRIDE_CACHE") or Path.home() / ".cache" / "stridebench")


def plain_name(name: str) -> str:
    """Return a backbone's name as the name of a folder."""
    return re.sub(r"[^\w.=+-]", "-", name)


def remedy(path: Path) -> str:
    """Say how to repair damaged weights: only downloaded files may be deleted."""
    if path.resolve().is_relative_to(cache_folder().resolve()):
        return "Delete it and fetch it again"
    return "Compare it with the source that you have it from"


def reason(error: Exception) -> str:
    """Return why weights cannot be read, in one line. A reader's advice to run the code of pickles is not repeated."""
    if isinstance(error, pickle.UnpicklingError):
        return "its pickle is damaged or holds more than tensors; nothing in it was run"
    return " ".join(str(error).split())
