"""Keeps a server for a process that owns it: starts it, and ends it with all that it started once the owner is gone.

A separate program, `python -I keeper.py SECONDS WORD...`, that needs the standard library alone. Its standard input
is a pipe whose other end the owner holds: that end closes when the owner closes it and when the owner ends, also by
SIGKILL, which no process can answer itself. SIGTERM, SIGINT and SIGHUP end the server too. Processes that remain
after SECONDS are killed. The keeper ends as the server ended: with its exit code, or by its signal.

On Linux the keeper adopts the orphans of the server, so children are found in any session and process group, even
if the server itself has died. If the keeper is killed, the kernel asks the server to end. Elsewhere the server's
process group is all that is known of it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""Options of prctl: the signal of a parent's death, and that orphans below become children of this process."""
OWNER_S = 1.0
"""How often the owner is looked for, in case a process that it forked holds its end of the pipe open."""
KILL_S = 5.0
"""How long to wait for killed processes; a process in the kernel may take longer, and ends by itself."""
NOT_STARTED = 127
"""Exit code if the server cannot be started, as of a shell."""
PROC = Path("/proc")


def prctl(option: int, value: int) -> None:
    """Set an option of this process, if the system has ``prctl``."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value)


class ServerKeeper:
    """One server.

    Args:
        words: its command.
        patience_s: from the request to end until the remaining processes are killed.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, words: list[str], patience_s: float) -> None:
        self._owner, self._patience_s = os.getppid(), patience_s
        self._wake, write = os.pipe()
        for end in (self._wake, write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._asked = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._ask)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # wakes
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._started = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            process_group=0,
            preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
        )
        self._server = self._started.pid
        self._status: int | None = None

    def _ask(self, number: int, frame: object) -> None:
        self._asked = True

    def keep(self) -> int:
        """Until the server has ended, or is to end; returns its status as `os.waitpid` tells it."""
        while not (self._collect() or self._asked or self._owner_gone()):
            continue
        for number, seconds in ((signal.SIGTERM, self._patience_s), (signal.SIGKILL, KILL_S)):
            if not self._end(number, seconds):
                break
        return self._status if self._status is not None else signal.SIGKILL

    def _owner_gone(self) -> bool:
        """Wait for something to happen, and look whether it was the end of the owner."""
        ready, _, _ = select.select([0, self._wake], [], [], OWNER_S)
        with suppress(BlockingIOError):
            os.read(self._wake, 4096)
        return os.getppid() != self._owner or (0 in ready and not os.read(0, 4096))

    def _collect(self) -> bool:
        """Reap ended processes, and return whether the server has ended."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._server:
                    self._status = ended[1]
        return self._status is not None

    def _end(self, number: signal.Signals, seconds: float) -> bool:
        """Send a signal to the server and all below it; returns whether some are left after a time."""
        until = time.monotonic() + seconds
        asked: set[int] = set()
        while True:
            self._collect()
            left = self._left()
            for pid in left - asked:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            asked |= left
            if not left or time.monotonic() > until:
                return bool(left)
            select.select([self._wake], [], [], 0.05)
            with suppress(BlockingIOError):
                os.read(self._wake, 4096)

    def _left(self) -> set[int]:
        """Return the processes that are to end: all below this one, or those of the server's group without /proc."""
        if PROC.is_dir():
            return descendants(os.getpid())
        try:
            os.killpg(self._server, 0)
        except (ProcessLookupError, PermissionError):
            return set()
        return {-self._server}  # os.kill sends to the group


def descendants(root: int) -> set[int]:
    """Processes below one, without those that have ended and wait to be collected."""
    below: dict[int, list[int]] = {}
    ended = set()
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                state, parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
                below.setdefault(int(parent), []).append(int(folder.name))
                ended |= {int(folder.name)} if state in "ZX" else set()
    all_below, todo = set(), [root]
    while todo:
        children = below.get(todo.pop(), [])
        all_below.update(children)
        todo += children
    return all_below - ended


def main() -> int:
    """The program."""
    try:
        status = ServerKeeper(sys.argv[2:], float(sys.argv[1])).keep()
    except OSError as error:
        print(f"{sys.argv[2]} cannot be started: {error}", file=sys.stderr)
        return NOT_STARTED
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main())
