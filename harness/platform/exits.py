"""What ends a process without a word: `os._exit`, called by a plugin in the process of a command."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from harness.errors import RunIncomplete, printable_line


@contextmanager
def exits_are_told() -> Iterator[None]:
    """`os._exit` in this process ends it with one message and the exit code of an incomplete run, also for code 0.

    Processes that are forked inside end as they ask. Code in C that ends the process is not seen.
    """
    owner, leave = os.getpid(), os._exit

    def told(status: int) -> NoReturn:
        if os.getpid() != owner:
            leave(status)
        caller = sys._getframe(1)
        where = printable_line(f"{caller.f_code.co_filename}, line {caller.f_lineno}")
        message = (
            f"stride: os._exit({status}) in {where} ended this command. What a run has finished is kept. Mend or "
            f"uninstall that package, then go on with the same command and --resume.\n"
        )
        os.write(2, message.encode(errors="backslashreplace"))
        leave(RunIncomplete.exit_code)

    os._exit = told
    try:
        yield
    finally:
        os._exit = leave
