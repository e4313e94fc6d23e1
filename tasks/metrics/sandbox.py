"""Run a program of a model in a confined child process and report how it ended.

Where the kernel allows it, the program has its own network, process, mount and IPC namespaces; a read-only view of the
interpreter and its libraries, with an empty /tmp of limited size as its folder; bubblewrap around it where that is
installed; a control group where one is delegated (`sandbox_layers`); an unprivileged user (where the harness runs as
root); Landlock rules (write below its folder, read the interpreter and its libraries, execute nothing); a seccomp
filter (no socket, no code from memory, no other process: `sandbox_calls`); limits of memory and disk for all processes
of the program (`sandbox_usage`); resource limits of one process; a wall limit. `isolation` says what holds on this
machine. RLIMIT_NPROC does not bind root, so a root harness that cannot change its user has only the wall limit against
a fork bomb. For other users without namespaces the limit counts all processes of the user.

This prevents accidents: an endless loop, a deleted file, a full disk. It is no security boundary against an adversary.
A program that inspects its interpreter can also claim to have passed.
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
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from stridebench.harness.errors import UsageError
from stridebench.tasks.metrics.sandbox_calls import filter_rules
from stridebench.tasks.metrics.sandbox_layers import (
    ControlGroup,
    bubblewrap,
    control_group,
    delegated,
    devices,
    readable,
    wrapped,
)
from stridebench.tasks.metrics.sandbox_usage import ENTRIES, Usage, descendants, measurable

Reason = Literal["passed", "assertion", "error", "exit", "timeout", "memory", "disk", "killed"]

CHILD = Path(__file__).with_name("sandbox_child.py")
START_S = 30.0
LINE_BYTES = 1 << 16
LEAST_MEMORY_MB = 64
POLL_S = 0.05
STOP_S = 30.0
REMOVE_S = 5.0


@dataclass(frozen=True)
class Limits:
    """Limits of one program.

    Args:
        timeout_s: wall time of the program without its start; the CPU time of a process is one second more.
        memory_mb: memory of all processes together, and address space of one, in MiB.
        file_mb: size of a file, in MiB.
        disk_mb: size of all files together, in MiB; with a view of the file system they lie in memory.
        open_files: at once.
        processes: at once; threads count as processes.
        namespaces: False uses none, and no bubblewrap, as on a kernel that refuses them.
    """

    timeout_s: float = 5.0
    memory_mb: int = 1024
    file_mb: int = 16
    open_files: int = 64
    processes: int = 32
    namespaces: bool = True
    disk_mb: int = 64

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            UsageError: no program could start under a limit.
        """
        if self.timeout_s <= 0 or self.memory_mb < LEAST_MEMORY_MB:
            raise UsageError(
                f"the sandbox was given {self.timeout_s} s and {self.memory_mb} MiB; the interpreter needs "
                f"a time above 0 and at least {LEAST_MEMORY_MB} MiB. Raise timeout_s or memory_mb."
            )


MISSING = {
    "network": "a program can reach the network",
    "processes": "a program sees other processes, and one may outlive it",
    "files": "a program can write the files of this user",
    "view": "a program sees names and sizes of all files (no mount namespace; allow user namespaces or install bwrap)",
    "sockets": "a program can connect to servers of this machine",
    "calls": "a program can use every system call (no seccomp filter for this kernel or architecture)",
    "resources": "memory and disk are limited for a process and a file only, not for the whole program",
    "group": "memory of the whole program is measured, not limited by the kernel (no control group, see SECURITY.md)",
}


@dataclass(frozen=True)
class Isolation:
    """What a program cannot reach.

    Args:
        network: it has its own, empty network namespace.
        processes: it sees only its own processes, and no process outlives it.
        files: it cannot write outside its folder, or only what every user may write.
        sockets: it can open no socket of any kind, so that it reaches no server of this machine either.
        calls: it can neither run code from memory nor call io_uring, namespaces, mounts, other processes or the
            kernel's settings; utime, and where it runs as the harness's user chmod, succeed without effect.
        resources: memory and disk are limited for all its processes together, measured twenty times a second.
        view: it sees the interpreter and system libraries only, read only, and an empty folder whose size the kernel
            limits.
        group: the kernel limits memory and processes of the whole program, by a control group.
        bubblewrap: it runs inside bubblewrap.
    """

    network: bool
    processes: bool
    files: bool
    sockets: bool = False
    calls: bool = False
    resources: bool = False
    view: bool = False
    group: bool = False
    bubblewrap: bool = False

    def missing(self) -> list[str]:
        """Return what does not hold, one sentence part each."""
        holds = asdict(self)
        holds["network"] = self.network or self.sockets
        return [words for name, words in MISSING.items() if not holds[name]]


@dataclass(frozen=True)
class Outcome:
    """How a program ended.

    Args:
        passed: it ran to its end.
        reason: "passed"; "assertion"; "error" for any other exception; "exit" where it ended its process early;
            "timeout"; "memory" or "disk" above the limit; "killed" by a signal.
        detail: the exception or signal, at most 300 characters.
        isolation: what held while it ran.
    """

    passed: bool
    reason: Reason
    detail: str
    isolation: Isolation


def run(program: str, *, limits: Limits | None = None) -> Outcome:
    """Run a program to its end in an empty folder, which is removed afterwards.

    It has the standard library only, an empty environment and an empty standard input. ``random`` is seeded and string
    hashes are fixed, so that a program always ends the same way. Its output is discarded.

    Args:
        program: Python source, run as ``__main__``.
        limits: the defaults of `Limits` where None.

    Raises:
        UsageError: the sandbox itself could not start.
    """
    limits = limits or Limits()
    nonce = secrets.token_hex(16)
    memory_mb = limits.memory_mb + limits.disk_mb  # a group's memory holds the files of a view too
    with (
        _folder() as folder,
        control_group(delegated(), memory_mb, limits.processes) as group,
        _Child(folder, program, nonce, limits, group) as child,
    ):
        isolation = _started(child, limits)
        if isolation.resources:
            child.watch(Usage(None if isolation.view else folder, limits.memory_mb, limits.disk_mb))
        try:
            last = child.line(limits.timeout_s)
            if last is None:
                code = child.exit_code(limits.timeout_s)
                if group and group.out_of_memory():
                    return Outcome(False, "memory", f"more than {memory_mb} MiB in all its processes", isolation)
                return _unreported(code, isolation)
        except TimeoutError:
            return Outcome(False, "timeout", f"more than {limits.timeout_s:g} s", isolation)
        except _Excess as excess:
            return Outcome(False, excess.reason, excess.detail, isolation)
    return _reported(last, nonce, isolation)


def _started(child: _Child, limits: Limits) -> Isolation:
    """Return the isolation that holds when the program starts."""
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
    said = json.loads(first)
    child.helpers = said.pop("helpers")
    return Isolation(**said, resources=measurable(), bubblewrap=child.bubblewrap)


@functools.cache
def isolation() -> Isolation:
    """Return the isolation of this machine, measured once with an empty program.

    Raises:
        UsageError: the sandbox cannot start here.
    """
    return run("pass").isolation


def network_isolated() -> bool:
    """Return whether this machine's kernel can isolate programs from the network."""
    return isolation().network


def _reported(line: bytes, nonce: str, isolation: Isolation) -> Outcome:
    """Return the outcome that the confined process wrote. A line without the nonce was written by the program."""
    try:
        plain: Any = json.loads(line)
    except ValueError:
        plain = None
    if not isinstance(plain, dict) or plain.get("nonce") != nonce:
        return Outcome(False, "error", "the program wrote to the sandbox's own channel", isolation)
    reason: Reason = plain["reason"]
    return Outcome(reason == "passed", reason, plain["detail"], isolation)


def _unreported(code: int, isolation: Isolation) -> Outcome:
    """Return the outcome of a process that ended without a report, from its exit code (128 + signal)."""
    if code <= 128:
        return Outcome(False, "exit", f"its process ended with code {code} before its end", isolation)
    number = code - 128
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    return Outcome(False, "timeout" if number == signal.SIGXCPU else "killed", name, isolation)


def _start(folder: Path, spec: dict[str, Any], outer: str | None) -> subprocess.Popen[bytes]:
    """Start the child in its own session, inside bubblewrap where named; its standard input is the specification."""
    command = [sys.executable, "-s", "-S", "-P", "-B", str(CHILD)]
    if outer:
        os.stat(command[0])  # bubblewrap would say of a missing interpreter that a mount failed
        command = wrapped(outer, [os.path.realpath(command[0]), *command[1:]], CHILD, spec["disk_mb"])
    with tempfile.TemporaryFile() as specification:
        specification.write(json.dumps(spec).encode())
        specification.seek(0)
        return subprocess.Popen(
            command,
            stdin=specification,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={"PYTHONHASHSEED": "0"},
            pass_fds=[spec[name] for name in ("channel", "group") if spec[name] is not None],
            start_new_session=True,
        )


def _specification(program: str, nonce: str, limits: Limits, inside: bool) -> dict[str, Any]:
    """Return what the child is told, but for its descriptors."""
    return {
        **asdict(limits),
        "program": program,
        "nonce": nonce,
        "parent": None if inside else os.getpid(),
        "calls": filter_rules(),
        "readable": readable(),
        "devices": devices(),
        "entries": ENTRIES,
        "outer": ["network", "processes", "view"] if inside else [],
    }


class _Excess(Exception):
    """The program uses more than a limit of the whole program."""

    def __init__(self, reason: Literal["memory", "disk"], detail: str) -> None:
        super().__init__(detail)
        self.reason: Reason = reason
        self.detail = detail


class _Child:
    """The child process and the reading end of its channel; a context that leaves no process running."""

    def __init__(self, folder: Path, program: str, nonce: str, limits: Limits, group: ControlGroup | None) -> None:
        self._buffer = b""
        self._usage: Usage | None = None
        self.helpers = 0
        outer = bubblewrap() if limits.namespaces else None
        self.bubblewrap = outer is not None
        spec = _specification(program, nonce, limits, self.bubblewrap)
        with contextlib.ExitStack() as writing:
            self._read, spec["channel"] = os.pipe()
            writing.callback(os.close, spec["channel"])
            spec["group"] = None
            if group:
                spec["group"] = os.open(group.folder / "cgroup.procs", os.O_WRONLY)
                writing.callback(os.close, spec["group"])
            try:
                self._process = _start(folder, spec, outer)
            except OSError as error:
                os.close(self._read)
                raise UsageError(
                    f"the sandbox for programs written by models did not start: {sys.executable!r} cannot be run "
                    f"({error.strerror}). Check the Python installation, and how many processes you may start."
                ) from error

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bubblewrap:
            self._kill_below()
        self._process.terminate()  # without namespaces, the guard then ends what left its group
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._read)
        if self._process.stderr:
            self._process.stderr.close()

    def _kill_below(self) -> None:
        """Kill the first process inside bubblewrap, which ends when all others are gone."""
        for pid in descendants(self._process.pid)[:1]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)

    def watch(self, usage: Usage) -> None:
        """Measure from now on, while waiting, what the program below the sandbox's own processes uses."""
        self._usage = usage

    def _readable(self, end: float) -> bool:
        """Wait for the channel until then; measure meanwhile, at most a fifth of the time.

        Raises:
            _Excess: the program uses too much.
        """
        pause = POLL_S
        while True:
            left = max(0.0, end - time.monotonic())
            ready, _, _ = select.select([self._read], [], [], min(left, pause) if self._usage else left)
            if ready or not left:
                return bool(ready)
            if self._usage:
                start = time.monotonic()
                if excess := self._usage.excess(self._process.pid, self.helpers):
                    raise _Excess(*excess)
                pause = max(POLL_S, 4 * (time.monotonic() - start))

    def line(self, seconds: float) -> bytes | None:
        """Return the next line of the channel; None when every process with the channel has ended.

        Raises:
            TimeoutError: neither happened in time. _Excess: the program uses too much.
        """
        end = time.monotonic() + seconds
        while b"\n" not in self._buffer and len(self._buffer) < LINE_BYTES:
            if not self._readable(end):
                raise TimeoutError
            more = os.read(self._read, LINE_BYTES)
            if not more:
                return None
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def exit_code(self, seconds: float) -> int:
        """Return the exit code of the confined process, as its guard passes it on: 128 + signal.

        Raises:
            TimeoutError: the process closed the channel and still runs.
        """
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError from error
        return code if code >= 0 else 128 - code

    def complaint(self) -> str:
        """Return the last line that an ended child wrote to its standard error."""
        self._process.wait(START_S)
        written = self._process.stderr.read() if self._process.stderr else b""
        lines = [line for line in written.decode(errors="replace").split("\n") if line.strip()]
        return lines[-1] if lines else f"it ended with code {self._process.returncode}"


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A new empty folder, which is removed afterwards with its content.

    A removal that takes more than `REMOVE_S` seconds goes on while the harness does, and ends before its process.
    """
    folder = Path(tempfile.mkdtemp(prefix="stride-sandbox-"))
    try:
        yield folder
    finally:
        removal = threading.Thread(target=_remove, args=(folder,), name=folder.name)
        removal.start()
        removal.join(REMOVE_S)


def _remove(folder: Path) -> None:
    """Remove a folder as far as possible.

    Without namespaces a process may outlive its guard and still write there; the score is valid all the same.
    """
    with contextlib.suppress(OSError):
        folder.chmod(0o700)
        _remove_tree(folder)


def _remove_tree(folder: Path) -> None:
    """Remove a tree of any depth from within, without recursion and without long paths."""
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
    """Unlink the files of an open folder and return the names of its folders."""
    with os.scandir(descriptor) as entries_of_folder:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries_of_folder]
    for name, is_folder in entries:
        if not is_folder:
            os.unlink(name, dir_fd=descriptor)
    return [name for name, is_folder in entries if is_folder]
