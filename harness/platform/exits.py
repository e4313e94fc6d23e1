"""What ends a process without a word: `os._exit` and `sys.exit`, called by a plugin in the process of a command."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from stridebench.harness.errors import RunIncomplete, printable_line

OWN = Path(__file__).resolve().parents[1]
"""The package that holds the command line."""
WITHOUT_READER = (("click", "core.py", "main"), ("rich", "console.py", "on_broken_pipe"))
"""Functions of libraries that tell by ``sys.exit(1)`` that nobody reads the output."""


@contextmanager
def exits_are_told() -> Iterator[None]:
    """`os._exit` in this process ends it with one message and the exit code of an incomplete run, also for code 0.

    So does a `sys.exit` of code that is not the package's own.
    Processes that are forked inside end as they ask. Code in C that ends the process is not seen.

    Raises:
        BrokenPipeError: nobody reads the output any more.
    """
    owner, leave = os.getpid(), os._exit

    def told(status: int) -> NoReturn:
        if os.getpid() != owner:
            leave(status)
        caller = sys._getframe(1)
        message = _message(f"os._exit({status})", caller.f_code.co_filename, caller.f_lineno)
        os.write(2, f"stride: {message}\n".encode(errors="backslashreplace"))
        leave(RunIncomplete.exit_code)

    os._exit = told
    try:
        yield
    except SystemExit as stop:
        place = traceback.extract_tb(stop.__traceback__)[-1]
        if (*Path(place.filename).parts[-2:], place.name) in WITHOUT_READER:
            raise BrokenPipeError("nobody reads the output") from stop
        if os.getpid() != owner or Path(place.filename).is_relative_to(OWN):
            raise
        raise RunIncomplete(_message(f"sys.exit({stop.code!r:.80})", place.filename, place.lineno)) from stop
    finally:
        os._exit = leave


def _message(call: str, file: str, line: int | None) -> str:
    where = printable_line(f"{file}, line {line}")
    return (
        f"{call} in {where} ended this command. What a run has finished is kept. Mend or uninstall that package, then "
        f"go on with the same command and --resume."
    )
