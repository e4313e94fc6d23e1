"""Run a program written by a model in a confined child process, and tell how it ended.

What confines it, where the kernel allows: its own network, process and IPC namespaces; an unprivileged user
(where the harness runs as root); Landlock rules (write below an empty temporary folder, read the interpreter
and its libraries, execute nothing); resource limits; a wall limit. `isolation` tells what holds here.
RLIMIT_NPROC binds no root user, so a root harness whose user cannot be dropped has the wall limit alone
against a fork bomb; for other users it counts all that the user runs where there are no namespaces.

This keeps accidents away: an endless loop, a deleted file, a full disk. It is no security boundary against an
adversary. A program that inspects the interpreter it runs in can also claim to have passed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from harness.errors import UsageError

Reason = Literal["passed", "assertion", "error", "exit", "timeout", "memory", "killed"]

CHILD = Path(__file__).with_name("sandbox_child.py")
START_S = 30.0
LINE_BYTES = 1 << 16
LEAST_MEMORY_MB = 64


@dataclass(frozen=True)
class Limits:
    """What one program may use.

    Args:
        timeout_s: wall time of the program, its start not counted; CPU time per process is one second more.
        memory_mb: address space of a process, in MiB. file_mb: size of a file, in MiB.
        open_files, processes: at once; threads count as processes.
        namespaces: False: ask for none, as on a kernel that refuses them.
    """

    timeout_s: float = 5.0
    memory_mb: int = 1024
    file_mb: int = 16
    open_files: int = 64
    processes: int = 32
    namespaces: bool = True

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            UsageError: a limit under which no program could start.
        """
        if self.timeout_s <= 0 or self.memory_mb < LEAST_MEMORY_MB:
            raise UsageError(
                f"the sandbox was given {self.timeout_s} s and {self.memory_mb} MiB; the interpreter needs "
                f"a time above 0 and at least {LEAST_MEMORY_MB} MiB. Raise timeout_s or memory_mb."
            )


@dataclass(frozen=True)
class Isolation:
    """What a program was kept from.

    Args:
        network: it has a network namespace of its own, empty.
        processes: it sees no process but its own, and none outlives it.
        files: it cannot write outside its folder, or only what every user may write.
    """

    network: bool
    processes: bool
    files: bool


@dataclass(frozen=True)
class Outcome:
    """How a program ended.

    Args:
        passed: it ran to its end. reason: "passed"; "assertion"; "error" for any other exception; "exit" when
            it ended its process before its end; "timeout"; "memory" past the limit; "killed" by a signal.
        detail: the exception or signal, at most 300 characters.
        isolation: what held while it ran.
    """

    passed: bool
    reason: Reason
    detail: str
    isolation: Isolation


def run(program: str, *, limits: Limits | None = None) -> Outcome:
    """Run a program to its end, alone in an empty folder that is removed afterwards.

    It sees the standard library only, an empty environment, an empty standard input, ``random`` seeded and
    string hashes fixed, so that the same program ends the same way. What it prints is discarded.

    Args:
        program: Python source, run as ``__main__``.
        limits: the defaults of `Limits` where None.

    Raises:
        UsageError: the sandbox itself could not start.
    """
    limits = limits or Limits()
    nonce = secrets.token_hex(16)
    with _folder() as folder, _Child(folder, program, nonce, limits) as child:
        isolation = _started(child, limits)
        try:
            last = child.line(limits.timeout_s)
            if last is None:
                return _unreported(child.exit_code(limits.timeout_s), isolation)
        except TimeoutError:
            return Outcome(False, "timeout", f"more than {limits.timeout_s:g} s", isolation)
    return _reported(last, nonce, isolation)


def _started(child: _Child, limits: Limits) -> Isolation:
    """What holds, once the program is about to run."""
    try:
        first = child.line(START_S)
    except TimeoutError:
        first, why = None, f"nothing was heard of it for {START_S:.0f} s"
    else:
        why = "" if first else child.complaint()
    if not first:
        raise UsageError(
            f"the sandbox for programs written by models did not start: {why}. "
            f"Raise memory_mb (now {limits.memory_mb}), or check that {sys.executable} runs by itself."
        )
    return Isolation(**json.loads(first))


@functools.cache
def isolation() -> Isolation:
    """What programs are kept from on this machine; runs an empty one, once.

    Raises:
        UsageError: the sandbox cannot start here.
    """
    return run("pass").isolation


def network_isolated() -> bool:
    """Whether this machine's kernel lets programs be cut off from the network."""
    return isolation().network


def _reported(line: bytes, nonce: str, isolation: Isolation) -> Outcome:
    """The outcome that the confined process wrote; anything without the nonce was written by the program."""
    try:
        plain: Any = json.loads(line)
    except ValueError:
        plain = None
    if not isinstance(plain, dict) or plain.get("nonce") != nonce:
        return Outcome(False, "error", "the program wrote to the sandbox's own channel", isolation)
    reason: Reason = plain["reason"]
    return Outcome(reason == "passed", reason, plain["detail"], isolation)


def _unreported(code: int, isolation: Isolation) -> Outcome:
    """The outcome of a process that ended without a report, from its exit code (128 + signal)."""
    if code <= 128:
        return Outcome(False, "exit", f"its process ended with code {code} before its end", isolation)
    number = code - 128
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    return Outcome(False, "timeout" if number == signal.SIGXCPU else "killed", name, isolation)


def _start(folder: Path, spec: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start the child in a session of its own; its standard input is the specification."""
    with tempfile.TemporaryFile() as given:
        given.write(json.dumps(spec).encode())
        given.seek(0)
        return subprocess.Popen(
            [sys.executable, "-s", "-S", "-P", "-B", str(CHILD)],
            stdin=given,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={"PYTHONHASHSEED": "0"},
            pass_fds=(spec["channel"],),
            start_new_session=True,
        )


class _Child:
    """The child process and our end of its channel; a context that leaves nothing running."""

    def __init__(self, folder: Path, program: str, nonce: str, limits: Limits) -> None:
        self._read, write = os.pipe()
        self._buffer = b""
        spec = {"program": program, "nonce": nonce, "parent": os.getpid(), "channel": write, **asdict(limits)}
        try:
            self._process = _start(folder, spec)
        except OSError as error:
            os.close(self._read)
            raise UsageError(
                f"the sandbox for programs written by models did not start: {sys.executable!r} cannot be run "
                f"({error.strerror}). Check the Python installation, and how many processes you may start."
            ) from error
        finally:
            os.close(write)

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()  # without namespaces, the guard then ends what left its group
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._read)
        if self._process.stderr:
            self._process.stderr.close()

    def line(self, seconds: float) -> bytes | None:
        """The next line of the channel; None when every process that held it has ended.

        Raises:
            TimeoutError: neither came in time.
        """
        end = time.monotonic() + seconds
        while b"\n" not in self._buffer and len(self._buffer) < LINE_BYTES:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError
            more = os.read(self._read, LINE_BYTES)
            if not more:
                return None
            self._buffer += more
        found, _, self._buffer = self._buffer.partition(b"\n")
        return found

    def exit_code(self, seconds: float) -> int:
        """Of the confined process, as its guard passes it on: 128 + signal.

        Raises:
            TimeoutError: it closed the channel and goes on.
        """
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError from error
        return code if code >= 0 else 128 - code

    def complaint(self) -> str:
        """The last line that an ended child wrote to its standard error."""
        self._process.wait(START_S)
        written = self._process.stderr.read() if self._process.stderr else b""
        lines = [line for line in written.decode(errors="replace").split("\n") if line.strip()]
        return lines[-1] if lines else f"it ended with code {self._process.returncode}"


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A fresh empty folder, removed afterwards whatever was put into it."""
    folder = Path(tempfile.mkdtemp(prefix="stride-sandbox-"))
    try:
        yield folder
    finally:
        folder.chmod(0o700)
        # Without namespaces a process may outlive its guard and still write here: no reason to lose a score.
        with contextlib.suppress(OSError):
            _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a tree that may be nested without end, from within: no recursion, no path but a name."""
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    names: list[str] = []
    waiting = [_empty(here)]
    while names or waiting[-1]:
        inward = bool(waiting[-1])
        if inward:
            names.append(waiting[-1].pop())
            os.chmod(names[-1], 0o700, dir_fd=here)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        beside = os.open(names[-1] if inward else "..", flags, dir_fd=here)
        os.close(here)
        here = beside
        if inward:
            waiting.append(_empty(here))
        else:
            waiting.pop()
            os.rmdir(names.pop(), dir_fd=here)
    os.close(here)
    folder.rmdir()


def _empty(descriptor: int) -> list[str]:
    """Unlink the files of an open folder; returns the names of the folders in it."""
    with os.scandir(descriptor) as found:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
    for name, is_folder in entries:
        if not is_folder:
            os.unlink(name, dir_fd=descriptor)
    return [name for name, is_folder in entries if is_folder]
