"""A limit on the wall time of code of tasks that runs in this process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

AGAIN_S = 1.0
"""Code that catches the error gets it again after so many seconds."""


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
