"""Run a program of a model in a confined process, and check it from another one.

The program defines functions. The check calls them over a socket and compares plain data, so the program never holds
the channel of the verdict, and cannot change how the check compares. If bubblewrap is installed, the program runs
inside it. Otherwise it gets an unprivileged user (if the harness runs as root) and no network (if the kernel allows
that). Limits of time, memory, files and processes always hold. `isolation` measures what holds on a machine.

This prevents accidents: an endless loop, a deleted file, a full disk. It is not a security boundary.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any, Literal

from stridebench.harness.errors import UsageError

Reason = Literal["passed", "assertion", "error", "exit", "timeout", "memory", "killed"]

CHILD = Path(__file__).with_name("sandbox_child.py")
INSIDE = "/stride-child.py"  # the same file inside bubblewrap
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/etc/ld.so.cache")
NAMESPACES = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
# The range that systemd gives to services without a user. Programs that run at once then have different users.
FIRST_USER, USERS = 61184, 4336
LEAST_MEMORY_MB = 64
START_S = 30.0
TRIAL_S = 20.0
MISSING = {
    "network": "a program can reach the network",
    "processes": "a program sees other processes, and one may outlive it",
    "files": "a program can write the files of this user",
    "bubblewrap": "a program can read the files and reach the socket files that its user can (install bubblewrap)",
}


@dataclass(frozen=True)
class Limits:
    """Limits of one program.

    Args:
        timeout_s: wall time of the program and its check; the CPU time of a process is one second more.
        memory_mb: address space of a process, in MiB.
        file_mb: size of a file, and of all files inside bubblewrap, in MiB.
        open_files: at once.
        processes: at once; threads count as processes.
        namespaces: False uses neither bubblewrap nor an empty network, as on a kernel that refuses them.
    """

    timeout_s: float = 5.0
    memory_mb: int = 1024
    file_mb: int = 16
    open_files: int = 64
    processes: int = 32
    namespaces: bool = True

    def __post_init__(self) -> None:
        if self.timeout_s <= 0 or self.memory_mb < LEAST_MEMORY_MB:
            raise UsageError(
                f"the sandbox was given {self.timeout_s} s and {self.memory_mb} MiB; the interpreter needs "
                f"a time above 0 and at least {LEAST_MEMORY_MB} MiB. Raise timeout_s or memory_mb."
            )


@dataclass(frozen=True)
class Isolation:
    """Things that a program cannot reach.

    Args:
        network: it has an empty network namespace.
        processes: it cannot signal other processes, and none of its processes outlives it.
        files: it cannot write outside its folder, or only files that every user may write.
        bubblewrap: it runs inside bubblewrap and sees the interpreter and system libraries only.
    """

    network: bool
    processes: bool
    files: bool
    bubblewrap: bool = False

    def missing(self) -> list[str]:
        """Return what does not hold, one sentence part each."""
        return [words for name, words in MISSING.items() if not getattr(self, name)]


@dataclass(frozen=True)
class ProgramOutcome:
    """How a program ended.

    Args:
        reason: "passed"; "assertion"; "error" for any other exception; "exit" if the program ended its process early;
            "timeout"; "memory"; "killed" by a signal.
        detail: the exception or signal, at most 300 characters.
    """

    passed: bool
    reason: Reason
    detail: str
    isolation: Isolation


def run(program: str, check: str = "", names: Sequence[str] = (), *, limits: Limits | None = None) -> ProgramOutcome:
    """Run a program to its end in an empty folder, then the check in another process.

    Both have the standard library only and an empty environment. ``random`` is seeded and string hashes are fixed, so
    that a program always ends the same way. Output is discarded.

    Args:
        program: Python source, run as ``__main__``.
        check: trusted Python source that raises if the program is wrong. ``remote(name)`` returns a function that calls
            the program's function of that name. Arguments and results are copied; only plain data comes back, anything
            else as a handle that can be passed on but equals nothing.
        names: names of the program that the check uses as ``remote(name)`` without saying so.

    Raises:
        UsageError: the sandbox itself could not start.
    """
    limits = limits or Limits()
    to_check, to_program = socket.socketpair()
    verdict, told = socket.socketpair()  # not a pipe, which another process could open through /proc
    with to_check, to_program, verdict, told, _folder() as place, _folder() as folder:
        confined = asdict(limits)
        checking = {**confined, "role": "check", "check": check, "names": list(names), "channel": to_check.fileno()}
        running = {**confined, "role": "program", "program": program, "channel": to_program.fileno()}
        with _process(checking, place, to_check, told) as checker:
            to_check.close()
            told.close()
            with _process(running, folder, to_program) as child:  # it is not told the check, which has the answers
                to_program.close()
                isolation = _isolation(child, limits)
                ready = connection.wait([verdict], limits.timeout_s)
                if not ready:
                    return ProgramOutcome(False, "timeout", f"more than {limits.timeout_s:g} s", isolation)
                said = verdict.recv(1 << 16)
                if not said:
                    detail = f"the check ended with code {checker.wait(START_S)}"
                    return ProgramOutcome(False, "error", detail, isolation)
                reason, detail = json.loads(said)
                if reason == "exit":
                    reason, detail = _ended(child, limits, detail)
                return ProgramOutcome(reason == "passed", reason, detail, isolation)


def _ended(child: subprocess.Popen[bytes], limits: Limits, detail: str) -> tuple[Reason, str]:
    """Return why a program that closed its channel ended."""
    try:
        code = child.wait(limits.timeout_s)
    except subprocess.TimeoutExpired:
        return "timeout", f"more than {limits.timeout_s:g} s"
    number = -code if code < 0 else code - 128
    if number <= 0:
        return "exit", detail or f"its process ended with code {code} before its end"
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    return ("timeout" if number == signal.SIGXCPU else "killed"), name


def _isolation(child: subprocess.Popen[bytes], limits: Limits) -> Isolation:
    """Return the isolation that holds when the program starts."""
    assert child.stdout and child.stderr
    ready = connection.wait([child.stdout.fileno()], START_S)
    line = child.stdout.readline() if ready else b""
    if line:
        return Isolation(**json.loads(line))
    why = f"nothing was heard of it for {START_S:.0f} s"
    if ready:
        child.wait(START_S)
        written = child.stderr.read().decode(errors="replace").strip().splitlines()
        why = written[-1] if written else f"it ended with code {child.returncode}"
    raise UsageError(
        f"the sandbox for programs written by models did not start: {why}. "
        f"Raise memory_mb (now {limits.memory_mb}), or check that {sys.executable} runs by itself."
    )


@functools.cache
def isolation() -> Isolation:
    """Return the isolation of this machine, measured once with an empty program."""
    return run("pass").isolation


def _readable() -> list[str]:
    """Return the folders that a program inside bubblewrap may read: the interpreter and system libraries."""
    folders = {os.path.abspath(path) for path in (sys.base_prefix, sys.base_exec_prefix, *LIBRARIES)}
    if "/" in folders:
        folders = folders - {"/"} | {os.path.dirname(os.__file__)}
    upper = sorted(path for path in folders if os.path.isdir(path))
    return [path for path in upper if not any(path.startswith(f"{above}/") for above in upper)]


def bubblewrap() -> str | None:
    """Return the path of bubblewrap if it is installed and can make a sandbox for this user."""
    path = shutil.which("bwrap")
    return path if path and _works(path) else None


@functools.cache
def _works(path: str) -> bool:
    """Return whether bubblewrap can start this interpreter; it is tried once."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command = wrapped(path, [os.path.realpath(sys.executable), "-S", "-c", "pass"], file_mb=1)
        return subprocess.run(command, capture_output=True, timeout=TRIAL_S, env={}).returncode == 0
    return False


def wrapped(path: str, command: list[str], file_mb: int) -> list[str]:
    """Return the command line that runs a command inside bubblewrap: libraries read only, and an empty /tmp."""
    # The child of root changes to another user, for which it needs its rights.
    words = [path, *NAMESPACES, *(("--cap-add", "ALL") if os.geteuid() == 0 else ("--unshare-user-try",))]
    for folder in _readable():
        words += ["--ro-bind", folder, folder]
    words += ["--ro-bind", command[0], command[0], "--ro-bind", str(CHILD), INSIDE]
    for device in filter(os.path.exists, DEVICES):
        words += ["--dev-bind", device, device]
    words += ["--proc", "/proc", "--size", str(file_mb << 20), "--perms", "777", "--tmpfs", "/tmp", "--chdir", "/tmp"]
    return [*words, "--remount-ro", "/", "--die-with-parent", "--", *command]


@contextlib.contextmanager
def _process(
    spec: dict[str, Any], folder: Path, channel: socket.socket, output: socket.socket | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the child script in a new session, and kill the session at the end."""
    command = [sys.executable, "-s", "-S", "-P", "-B", str(CHILD)]
    outer = bubblewrap() if spec["role"] == "program" and spec["namespaces"] else None
    with tempfile.TemporaryFile() as specification:
        more = {"bubblewrap": outer is not None, "user": FIRST_USER + secrets.randbelow(USERS)}
        specification.write(json.dumps({**spec, **more}).encode())
        specification.seek(0)
        try:
            if outer:
                os.stat(command[0])  # bubblewrap would say of a missing interpreter that a mount failed
                command = wrapped(outer, [os.path.realpath(command[0]), *command[1:-1], INSIDE], spec["file_mb"])
            process = subprocess.Popen(
                command,
                stdin=specification,
                stdout=output.fileno() if output else subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=folder,
                env={"PYTHONHASHSEED": "0", "TMPDIR": "." if outer else str(folder)},
                pass_fds=[channel.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            raise UsageError(
                f"the sandbox for programs written by models did not start: {sys.executable!r} cannot be run "
                f"({error.strerror}). Check the Python installation, and how many processes you may start."
            ) from error
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in filter(None, (process.stdout, process.stderr)):
            stream.close()


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Make an empty folder, and remove it afterwards with its content; ``rm`` is not stopped by deep trees."""
    folder = Path(tempfile.mkdtemp(prefix="stride-sandbox-"))
    try:
        yield folder
    finally:
        remove = ["rm", "-rf", "--", str(folder)]
        if subprocess.run(remove, stderr=subprocess.DEVNULL).returncode:
            subprocess.run(["chmod", "-R", "u+rwx", "--", str(folder)], stderr=subprocess.DEVNULL)
            subprocess.run(remove, stderr=subprocess.DEVNULL)
