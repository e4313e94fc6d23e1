"""What surrounds a sandboxed program where a machine has it: a view of the file system, bubblewrap, a control group."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/etc/ld.so.cache")
CONTROL_GROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = ("memory", "pids")
NAMESPACES = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
FOR_ROOT = ("--cap-add", "ALL")  # the child then changes to another user
FOR_OTHERS = ("--unshare-user-try",)
FOLDER = "/tmp"  # of a program, in its own file system
SCRIPT = "/stride-child.py"  # there; its own place may lie below /tmp, which is empty there
STOP_S = 2.0
TRIAL_S = 20.0


def readable() -> list[str]:
    """Return the folders that a program may read: the interpreter and system libraries; none lies below another."""
    folders = {os.path.abspath(path) for path in (sys.base_prefix, sys.base_exec_prefix, *LIBRARIES)}
    if "/" in folders:
        folders = folders - {"/"} | {os.path.dirname(os.__file__)}
    upper = sorted(path for path in folders if os.path.isdir(path))
    return [path for path in upper if not any(path.startswith(f"{above}/") for above in upper)]


def devices() -> list[str]:
    """Return the files outside these folders that a program may open."""
    return [path for path in DEVICES if os.path.exists(path)]


def bubblewrap() -> str | None:
    """Return the path of bubblewrap where it is installed and can make a sandbox for this user."""
    path = shutil.which("bwrap")
    return path if path and _works(path) else None


@functools.cache
def _works(path: str) -> bool:
    """Whether bubblewrap can start this interpreter; it is tried once."""
    script = Path(os.devnull)
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command = wrapped(path, [os.path.realpath(sys.executable), "-S", "-c", "pass"], script, disk_mb=1)
        return subprocess.run(command, capture_output=True, timeout=TRIAL_S, env={}).returncode == 0
    return False


def wrapped(bubblewrap: str, command: list[str], script: Path, disk_mb: int) -> list[str]:
    """Return the command line that runs a command as process 1 of a sandbox of bubblewrap.

    It has new namespaces, the interpreter and libraries read only, and an empty /tmp, which is its current folder.

    Args:
        bubblewrap: the program.
        command: it starts with the path of the interpreter.
        script: a file that the command names, which is read at ``SCRIPT``.
        disk_mb: the size of /tmp in MiB.
    """
    words = [bubblewrap, *NAMESPACES, *(FOR_ROOT if os.geteuid() == 0 else FOR_OTHERS)]
    for path in readable():
        words += ["--ro-bind", path, path]
    words += ["--ro-bind", command[0], command[0], "--ro-bind", str(script), SCRIPT]
    for path in devices():
        words += ["--dev-bind", path, path]
    inside = [SCRIPT if word == str(script) else word for word in command]
    words += ["--proc", "/proc", "--size", str(disk_mb << 20), "--tmpfs", FOLDER, "--chdir", FOLDER]
    return [*words, "--remount-ro", "/", "--die-with-parent", "--as-pid-1", "--", *inside]


def delegated(mount: Path = CONTROL_GROUPS, membership: Path = Path("/proc/self/cgroup")) -> Path | None:
    """Return the control group (version 2) in which this user may make groups that limit memory and processes.

    It is the group of this process, or the one above. None where there is none.

    Args:
        mount: where control groups are mounted.
        membership: the file that names the group of this process.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    own = next((line[3:] for line in lines if line.startswith("0::/") and ".." not in line), None)
    root = mount if (mount / "cgroup.controllers").exists() else mount / "unified"
    if own is None or not (root / "cgroup.controllers").exists():
        return None
    group = root / own.strip("/")
    for candidate in (group, *([group.parent] if group != root else [])):
        with contextlib.suppress(OSError):
            ready = set(CONTROLLERS) <= set((candidate / "cgroup.subtree_control").read_text().split())
            if ready and os.access(candidate, os.W_OK) and os.access(candidate / "cgroup.procs", os.W_OK):
                return candidate
    return None


@dataclass(frozen=True)
class ControlGroup:
    """A control group of one program.

    Args:
        folder: of the group.
    """

    folder: Path

    def limit(self, memory_mb: int, processes: int) -> None:
        """Limit memory, without swap, and processes; a group that is out of memory is killed at once.

        Raises:
            OSError: the kernel refuses a limit.
        """
        values = {
            "memory.max": memory_mb << 20,
            "memory.swap.max": 0,
            "memory.oom.group": 1,
            "pids.max": processes,
        }
        for name, value in values.items():
            if name != "memory.swap.max" or (self.folder / name).exists():  # a kernel without swap has no such file
                (self.folder / name).write_text(str(value))

    def out_of_memory(self) -> bool:
        """Return whether the kernel killed a process of the group for its memory."""
        try:
            rows = [row.split() for row in (self.folder / "memory.events").read_text().splitlines()]
        except OSError:
            return False
        return any(row[0] == "oom_kill" and int(row[1]) > 0 for row in rows)

    def end(self) -> None:
        """Kill all processes of the group and remove it; give up after `STOP_S` seconds."""
        end = time.monotonic() + STOP_S
        with contextlib.suppress(OSError), open(self.folder / "cgroup.kill", "r+") as file:
            file.write("1")
        while time.monotonic() < end:
            try:
                self.folder.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.005)


@contextlib.contextmanager
def control_group(parent: Path | None, memory_mb: int, processes: int) -> Iterator[ControlGroup | None]:
    """A new control group with these limits, which is ended afterwards; None where the machine has none.

    Args:
        parent: as `delegated` returns it.
        memory_mb: of all processes together, files in memory included, in MiB.
        processes: at once.
    """
    group = ControlGroup(parent / f"stride-sandbox-{secrets.token_hex(8)}") if parent else None
    if group:
        try:
            group.folder.mkdir()
            group.limit(memory_mb, processes)
        except OSError:
            group.end()
            group = None
    try:
        yield group
    finally:
        if group:
            group.end()
