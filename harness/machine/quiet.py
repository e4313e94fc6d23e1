"""What other code does to a command: it closes or fills standard streams, draws progress bars, or ends the process."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from stridebench.harness.errors import RunIncomplete, printable_line

OWN = Path(__file__).resolve().parents[1]
"""The package that holds the command line."""
WITHOUT_READER = (("click", "core.py", "main"), ("rich", "console.py", "on_broken_pipe"))
"""Functions of libraries that tell by ``sys.exit(1)`` that nobody reads the output."""


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
