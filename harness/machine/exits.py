"""A `sys.exit` of a plugin in the process of a command, which would end it without a word."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stridebench.harness.errors import RunIncomplete, printable_line

OWN = Path(__file__).resolve().parents[1]
"""The package that holds the command line."""
WITHOUT_READER = (("click", "core.py", "main"), ("rich", "console.py", "on_broken_pipe"))
"""Functions of libraries that tell by ``sys.exit(1)`` that nobody reads the output."""


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
