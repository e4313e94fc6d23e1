"""Programs that try to leave the sandbox. A program ends with an assertion where something was possible.

Run as a script, as the user of its first argument and with the layer of its third one, it prints the attacks that
succeeded; what they left outside is checked by the process that runs it.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import stat
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from stridebench.tasks.metrics import sandbox, sandbox_calls, sandbox_layers
from stridebench.tasks.metrics.sandbox import Limits, run

PRELUDE = """
import array, ctypes, fcntl, os, signal, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return result if result >= 0 else -ctypes.get_errno()
"""
LAYERS = ("namespaces", "none", "without Landlock", "bubblewrap", "bubblewrap alone")
FEW = (
    "mount", "unshare", "io_uring_setup", "ptrace", "execve", "clone 0x10000000", "write", "remove", "symbolic link",
    "change mode", "signal", "connect", "send", "socket INET", "shell", "status",
)  # fmt: skip
FAMILIES = ("UNIX", "INET", "INET6", "NETLINK", "PACKET", "VSOCK", "ALG", "TIPC", "BLUETOOTH", "CAN")


def refused_calls() -> dict[str, str]:
    """Return one attack for each call that is refused always: it must end with EPERM whatever its arguments."""
    machine = platform.machine()
    table = sandbox_calls.numbers(sandbox_calls.REFUSED, machine)
    other = sandbox_calls.numbers(sandbox_calls.OTHER, machine)
    attacks = {name: f"assert call({number}, 0, 0, 0, 0, 0) == -1" for name, number in table.items()}
    attacks |= {name: f"assert call({other[name]}, 0, 0, 0, 0, 0) == -13" for name in ("execve", "execveat")}
    attacks["clone3"] = f"assert call({other['clone3']}, 0, 0) == -38"
    attacks["a later call"] = "assert call(463, 0, 0) == -38 and call(0x40000000, 0, 0) == -38"
    for bit in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        attacks[f"clone {bit:#x}"] = f"assert call({other['clone']}, {bit | 17}, 0, 0, 0, 0) == -1"
    return attacks


def outside(victim: Path, server: Path, datagrams: Path, pid: int) -> dict[str, str]:
    """Return attacks on a file of the user, its sockets and one of its processes."""
    name, stream, datagram = repr(str(victim)), repr(str(server)), repr(str(datagrams))
    acts = {
        "write": f"open({name}, 'w')",
        "append": f"open({name}, 'a')",
        "truncate": f"os.truncate({name}, 0)",
        "remove": f"os.remove({name})",
        "rename": f"os.rename({name}, 'mine')",
        "replace": f"open('mine', 'w').close(); os.replace('mine', {name})",
        "hard link": f"os.link({name}, 'link'); open('link', 'w')",
        "symbolic link": f"os.symlink({name}, 'symbolic'); open('symbolic', 'w')",
        "read": f"open({name}).read()",
        "new folder": f"os.mkdir({name} + '.new')",
        "new fifo": f"os.mkfifo({name} + '.fifo')",
        "set attribute": f"os.setxattr({name}, 'user.stride', b'x')",
        "change owner": f"os.chown({name}, os.getuid(), os.getgid())",
        "signal": f"os.kill({pid}, 9)",
        "signal a thread": f"signal.pidfd_send_signal(os.pidfd_open({pid}), 9)",
        "trace": f"assert libc.ptrace(16, {pid}, 0, 0) == 0",
        "limit": f"import resource; resource.prlimit({pid}, resource.RLIMIT_NOFILE, (5, 5))",
        "affinity": f"os.sched_setaffinity({pid}, {{0}})",
        "priority": f"os.setpriority(os.PRIO_PROCESS, {pid}, 19)",
        "memory of a process": f"open('/proc/{pid}/mem', 'rb')",
        "environment": f"open('/proc/{pid}/environ', 'rb').read()",
        "connect": f"socket.socket(socket.AF_UNIX).connect({stream})",
        "send": f"socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', {datagram})",
        "pair of datagrams": f"socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', {datagram})",
        "pair of packets": "socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)",
        "pair, connected": f"socket.socketpair()[0].connect({stream})",
        "pair, sent": f"socket.socketpair()[0].sendto(b'x', {datagram})",
        "owner of a pipe": f"r, w = os.pipe(); fcntl.fcntl(r, 8, {pid})",
        "shell": "assert os.system('true') == 0",
        "program": "import subprocess; subprocess.run(['/bin/true'])",
        "code in memory": "os.memfd_create('x')",
        "user namespace": "assert libc.unshare(0x10000000) == 0",
        "device": "os.mknod('device', 0o20666, os.makedev(1, 5))",
    }
    acts |= {f"socket {name}": f"socket.socket(socket.AF_{name}, socket.SOCK_RAW)" for name in FAMILIES}
    failed = "except (OSError, AssertionError, AttributeError):\n    done = False\n"
    return {title: f"try:\n    {act}\n    done = True\n{failed}assert not done" for title, act in acts.items()} | {
        "change mode": f"try:\n    os.chmod({name}, 0)\nexcept OSError:\n    pass",
        "change times": f"try:\n    os.utime({name}, (1, 1))\nexcept OSError:\n    pass",
        "signal all": "try:\n    os.kill(-1, 0)\nexcept OSError:\n    pass",
    }


def seen(victim: Path, pid: int) -> dict[str, str]:
    """Return attacks on what a program cannot see in a view of the file system."""
    name, folder = repr(str(victim)), repr(str(victim.parent))
    acts = {
        "status": f"os.stat({name})",
        "list": f"os.listdir({folder})",
        "from above": f"os.stat('../../../..' + {name})",
        "change folder": f"os.chdir({folder})",
        "other processes": f"os.stat('/proc/{pid}')",
        "users": "os.stat('/etc/passwd')",
        "devices": "os.stat('/dev/mem')",
        "library": f"open({json.__file__!r}, 'a')",
        "new file in the root folder": "open('/new', 'w')",
        "new file beside the library": f"open({json.__file__!r} + '.new', 'w')",
    }
    return {title: f"try:\n    {act}\nexcept OSError:\n    pass\nelse:\n    assert 0" for title, act in acts.items()}


def on_library(path: Path) -> dict[str, str]:
    """Return attacks on a library of the user, which a program may read."""
    name = repr(str(path))
    acts = {
        "write": f"open({name}, 'w')",
        "append": f"open({name}, 'r+')",
        "remove": f"os.remove({name})",
        "rename": f"os.rename({name}, {name} + '.old')",
        "new file": f"open({name} + '.new', 'w')",
        "link": f"os.link({name}, 'link'); open('link', 'w')",
        "mode": f"os.chmod({name}, 0o777)",
        "times": f"os.utime({name}, (1, 1))",
        "attribute": f"os.setxattr({name}, 'user.stride', b'x')",
        "mode by descriptor": f"os.fchmod(os.open({name}, os.O_RDONLY), 0o777)",
        "times by descriptor": f"os.utime(os.open({name}, os.O_RDONLY), (1, 1))",
    }
    attacks = {title: f"try:\n    {act}\nexcept OSError:\n    pass" for title, act in acts.items()}
    return {"read": f"assert open({name}).read() == 'whole'"} | attacks


def attempt_on_library(folder: Path, namespaces: bool) -> list[str]:
    """Make the attacks on a library in this folder; return what was possible."""
    path = folder / "library"
    path.write_text("whole")
    path.chmod(0o644)
    os.utime(path, (10, 10))
    outcome = run(wrapped(on_library(path)), limits=Limits(timeout_s=30, namespaces=namespaces))
    status = path.stat()
    state = (stat.S_IMODE(status.st_mode), status.st_mtime, path.read_text(), [item.name for item in folder.iterdir()])
    problems = [] if state == (0o644, 10, "whole", ["library"]) else [f"the library changed: {state}"]
    return problems + ([] if outcome.passed else [f"{outcome.reason}: {outcome.detail}"])


def wrapped(attacks: dict[str, str]) -> str:
    """Return one program that makes independent attacks and ends with the names of those that succeeded."""
    return (
        f"{PRELUDE}\nbad = []\nfor title, attack in {attacks!r}.items():\n"
        "    try:\n        exec(attack, dict(globals()))\n"
        "    except BaseException as error:\n        bad.append(f'{title}: {type(error).__name__} {error}')\n"
        "assert not bad, bad\n"
    )


def programs(victim: Path, server: Path, datagrams: Path, titles: tuple[str, ...] | None, view: bool) -> list[str]:
    """Return the programs that make the attacks of these titles, or all of them."""
    groups = [
        refused_calls(),
        outside(victim, server, datagrams, os.getpid()) | (seen(victim, os.getpid()) if view else {}),
    ]
    if titles is None:
        return [wrapped(group) for group in groups]
    attacks = groups[0] | groups[1]
    return [wrapped({title: attacks[title] for title in titles})]


def attempt(folder: Path, namespaces: bool, titles: tuple[str, ...] | None = None) -> list[str]:
    """Make every attack, or those of these titles, in a few programs; return what was possible."""
    victim, server, datagrams = folder / "victim", folder / "stream", folder / "datagrams"
    victim.write_text("whole")
    victim.chmod(0o640)
    os.utime(victim, (10, 10))
    problems: list[str] = []
    with socket.socket(socket.AF_UNIX) as stream, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        stream.bind(str(server))
        stream.listen()
        stream.setblocking(False)
        inbox.bind(str(datagrams))
        inbox.setblocking(False)
        names = sorted(entry.name for entry in folder.iterdir())
        limits = Limits(timeout_s=30, namespaces=namespaces)
        view = run("pass", limits=limits).isolation.view
        with ThreadPoolExecutor(2) as pool:
            sources = programs(victim, server, datagrams, titles, view)
            outcomes = list(pool.map(lambda program: run(program, limits=limits), sources))
        problems += [f"{outcome.reason}: {outcome.detail}" for outcome in outcomes if not outcome.passed]
        for queue, receive in (("connection", stream.accept), ("datagram", lambda: inbox.recv(8))):
            try:
                receive()
                problems.append(f"a {queue} arrived")
            except BlockingIOError:
                pass
        status = victim.stat()
        if (stat.S_IMODE(status.st_mode), status.st_mtime, victim.read_text()) != (0o640, 10, "whole"):
            problems.append(f"the victim changed: {status}")
        if sorted(entry.name for entry in folder.iterdir()) != names:
            problems.append(f"new or lost files: {list(folder.iterdir())}")
    return problems


def without_landlock(copy: Path) -> Path:
    """Write a copy of the sandbox's child that has no Landlock rules."""
    source = sandbox.CHILD.read_text()
    rules = "restricted = LINUX and restrict_files(kernel, spec)"
    assert rules in source
    copy.write_text(source.replace(rules, "restricted = False"))
    return copy


def main() -> None:
    """Become an ordinary user where one is named, attack, and print the problems as JSON."""
    user, folder, layer = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    namespaces = layer != "none"
    if layer == "without Landlock":
        sandbox.CHILD = without_landlock(folder.with_name(f"{folder.name}.py"))
    if layer == "bubblewrap alone":
        sandbox_layers.FOR_OTHERS = ("--unshare-user", "--disable-userns")
    if not layer.startswith("bubblewrap"):
        os.environ["PATH"] = ""
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    isolation = run("pass", limits=Limits(namespaces=namespaces)).isolation
    problems = attempt(folder, namespaces)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as library:
        sandbox_layers.LIBRARIES = (*sandbox_layers.LIBRARIES, library)
        os.chmod(library, 0o755)
        problems += attempt_on_library(Path(library), namespaces)
    print(json.dumps({"problems": problems, "missing": isolation.missing(), "isolation": asdict(isolation)}))


if __name__ == "__main__":
    assert sandbox_calls.architecture() and sandbox.CHILD.exists()
    main()
