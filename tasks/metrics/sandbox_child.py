"""The child of the sandbox: a script that uses the standard library only. The harness never imports it.

It has up to three processes. The guard's parent unshares what the kernel allows and waits. The guard (process 1 of its
own process namespace, where there is one) starts the confined process and outlives it. The confined process drops every
right and runs the program. When the guard ends, the kernel ends all other processes of the namespace.

Standard input has one JSON object: program, nonce, parent, channel (a file descriptor) and the limits. The channel gets
two JSON lines: what is isolated, then how the program ended, with the nonce.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import random
import resource
import signal
import struct
import sys
import time
import types
from typing import Any, NoReturn

# The range that systemd gives to services without their own user. Simultaneous sandboxes then have different users, so
# that none can signal another one or use up its processes.
FIRST_USER, USERS = 61184, 4336
LINUX = sys.platform.startswith("linux")

NEW_IPC, NEW_USER, NEW_PID, NEW_NET = 0x08000000, 0x10000000, 0x20000000, 0x40000000
DEATH_SIGNAL, KEEP_CAPABILITIES, SUBREAPER, NO_NEW_PRIVILEGES = 1, 8, 36, 38
CAPABILITY_VERSION, READ_ANY_FILE = 0x20080522, 1 << 2

# Landlock: its three system calls are the same on every architecture; its versions differ in their rights.
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
WRITE_FILE, READ_FILE, READ_DIR, EXECUTE, TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 0, 1 << 14
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/etc/ld.so.cache")


# Seccomp filters: instructions of classic BPF, and what they return.
SECCOMP, FILTER = 22, 2
LOAD, EQUAL, GREATER, AND, RETURN = 0x20, 0x15, 0x25, 0x54, 0x06
ALLOW, REFUSE, KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
OWN_PROCESS = -2


class Kernel:
    """System calls that Python does not have; each raises OSError where it fails."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)

    def call(self, name: str, *arguments: Any) -> int:
        """Call a libc function; integers are passed as longs."""
        function = getattr(self._libc, name)
        function.restype = ctypes.c_long
        wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
        result = int(function(*wide))
        if result == -1:
            raise OSError(ctypes.get_errno(), name)
        return result

    def control(self, option: int, value: int) -> None:
        """Call ``prctl`` with one argument."""
        if LINUX:
            self.call("prctl", option, value, 0, 0, 0)

    def capabilities(self, mask: int) -> None:
        """Drop every capability that is not in the mask."""
        head = ctypes.create_string_buffer(struct.pack("=Ii", CAPABILITY_VERSION, 0))
        sets = ctypes.create_string_buffer(struct.pack("=6I", mask, mask, 0, 0, 0, 0))
        self.call("capset", head, sets)


def unshare(kernel: Kernel, isolate: bool) -> int:
    """Enter new network, process and IPC namespaces; return the flags that the kernel granted, or 0."""
    if not (LINUX and isolate):
        return 0
    flags = NEW_NET | NEW_PID | NEW_IPC | (0 if os.geteuid() == 0 else NEW_USER)
    try:
        # An int argument: the kernel takes this one as a C int.
        kernel.call("unshare", ctypes.c_int(flags))
    except OSError:
        return 0
    return flags


def restrict_files(kernel: Kernel) -> bool:
    """Restrict files with Landlock: write below the current folder, read interpreter and libraries, execute nothing."""
    try:
        version = kernel.call("syscall", LANDLOCK_CREATE, None, 0, 1)
    except OSError:
        return False
    rights = (1 << FILE_RIGHTS.get(version, 16)) - 1
    fields = [rights] + [0b11] * (version >= 4) + [0b11] * (version >= 6)
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    rules = kernel.call("syscall", LANDLOCK_CREATE, ctypes.c_char_p(attributes), len(attributes), 0)
    allowed = {path: READ_FILE | READ_DIR for path in (sys.base_prefix, sys.base_exec_prefix, *LIBRARIES)}
    allowed |= dict.fromkeys(DEVICES, READ_FILE | WRITE_FILE | (TRUNCATE & rights))
    allowed["."] = rights & ~EXECUTE
    for path, mask in allowed.items():
        if os.path.exists(path):
            node = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rule = ctypes.c_char_p(struct.pack("=Qi", mask, node))
            kernel.call("syscall", LANDLOCK_ADD, rules, 1, rule, 0)
            os.close(node)
    kernel.call("syscall", LANDLOCK_RESTRICT, rules, 0)
    os.close(rules)
    return True


def instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Return one instruction of a BPF program."""
    return struct.pack("=HBBI", code, if_true, if_false, value & 0xFFFFFFFF)


def assembled(audit: int, latest: int, rules: list[list[int]]) -> bytes:
    """Return the BPF program of rules [number, error, argument or -1, mask, value, refuse where equal]."""
    load_number = instruction(LOAD, 0)
    parts = [instruction(LOAD, 4), instruction(EQUAL, audit, 1, 0), instruction(RETURN, KILL_PROCESS), load_number]
    parts += [instruction(GREATER, latest, 0, 1), instruction(RETURN, REFUSE | errno.ENOSYS)]
    for number, error, argument, mask, value, if_equal in rules:
        refusal = instruction(RETURN, REFUSE | error)
        if argument < 0:
            parts += [instruction(EQUAL, number, 0, 1), refusal]
            continue
        compared = os.getpid() if value == OWN_PROCESS else value
        parts += [
            instruction(EQUAL, number, 0, 5),
            instruction(LOAD, 16 + 8 * argument),
            instruction(AND, mask),
            instruction(EQUAL, compared, 0 if if_equal else 1, 1 if if_equal else 0),
            refusal,
            load_number,
        ]
    return b"".join([*parts, instruction(RETURN, ALLOW)])


def restrict_calls(kernel: Kernel, calls: dict[str, Any] | None, flags: int, private_files: bool) -> bool:
    """Refuse system calls with a seccomp filter; False where the kernel or its architecture has none."""
    if calls is None:
        return False
    rules = [*calls["always"]]
    if not flags & NEW_PID:
        rules += calls["shared_processes"]
    if not private_files:
        rules += calls["shared_files"]
    program = assembled(calls["audit"], calls["latest"], rules)
    buffer = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer)))
    try:
        kernel.call("prctl", SECCOMP, FILTER, header, 0, 0)
    except OSError:
        return False
    return True


def drop_user(kernel: Kernel, user: int) -> bool:
    """Change to that user where this is root; reading stays allowed if the user cannot read the interpreter."""
    if not LINUX or os.geteuid() != 0:
        return False
    try:
        os.chown(".", user, user)
        os.setgroups([])
        os.setresgid(user, user, user)
        capabilities = 0 if interpreter_readable(user) else READ_ANY_FILE
        kernel.control(KEEP_CAPABILITIES, 1)
        os.setresuid(user, user, user)
        kernel.capabilities(capabilities)
    except PermissionError:  # root of a container without these rights
        return False
    return True


def interpreter_readable(user: int) -> bool:
    """Return whether that user can read the standard library; the caller is root."""
    os.seteuid(user)
    try:
        with open(os.__file__, "rb"):
            return True
    except PermissionError:
        return False
    finally:
        os.seteuid(0)


def tasks_of(user: int) -> int:
    """Count the processes and threads of a user, to which the limit of processes applies."""
    count = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if os.stat(f"/proc/{name}").st_uid == user:
                count += len(os.listdir(f"/proc/{name}/task"))
    return count


def limit(spec: dict[str, Any], processes: int) -> None:
    """Set the resource limits of the confined process; its children inherit each of them."""
    seconds, memory = int(spec["timeout_s"]) + 1, spec["memory_mb"] << 20
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: spec["file_mb"] << 20,
        resource.RLIMIT_NOFILE: spec["open_files"],
        resource.RLIMIT_NPROC: processes,
        resource.RLIMIT_AS: memory,
    }
    for resource_id, highest in limits.items():
        hard = resource.getrlimit(resource_id)[1]
        value = highest if hard == resource.RLIM_INFINITY else min(highest, hard)
        try:
            resource.setrlimit(resource_id, (value, value))
        except (OSError, ValueError):
            if LINUX:  # elsewhere an address space or a user with more processes cannot be limited
                raise


def confine(kernel: Kernel, spec: dict[str, Any], flags: int) -> None:
    """Drop every right that can be dropped, then write to the channel what is isolated."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    dropped = drop_user(kernel, spec["user"])
    kernel.control(DEATH_SIGNAL, signal.SIGKILL)  # after the change of user, which clears it
    kernel.control(NO_NEW_PRIVILEGES, 1)
    if flags & NEW_USER:
        kernel.capabilities(0)
    counted_alone = dropped or flags & NEW_USER or not LINUX
    processes = spec["processes"] + (0 if counted_alone else tasks_of(os.getuid()))
    restricted = LINUX and restrict_files(kernel)
    limit(spec, processes)
    # A user that owns nothing can change the mode of nothing outside the folder.
    filtered = restrict_calls(kernel, spec["calls"], flags, private_files=dropped)
    isolated = {
        "network": bool(flags & NEW_NET),
        "processes": bool(flags & NEW_PID),
        "files": restricted or dropped,
        "sockets": filtered,
        "calls": filtered,
    }
    os.write(spec["channel"], json.dumps(isolated).encode() + b"\n")
    os.dup2(null, 2)  # last, so that a failure above is reported
    os.close(null)


def execute(spec: dict[str, Any]) -> NoReturn:
    """Run the program as a fresh ``__main__`` and report how it ended; never returns."""
    channel = spec["channel"]
    # Reports are prepared now, because after a memory error there may be no memory for one.
    reports = {
        reason: json.dumps({"nonce": spec["nonce"], "reason": reason, "detail": detail}).encode() + b"\n"
        for reason, detail in (("passed", ""), ("memory", "MemoryError"))
    }
    ballast = bytearray(1 << 20)
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    os.environ.clear()
    random.seed(0)
    try:
        exec(compile(spec["program"], "<program>", "exec"), main.__dict__)
        os.write(channel, reports["passed"])
    except MemoryError:
        del ballast
        os.write(channel, reports["memory"])
    except BaseException as error:
        plain = {"nonce": spec["nonce"], "reason": reason_of(error), "detail": describe(error)}
        os.write(channel, json.dumps(plain).encode() + b"\n")
    finally:
        os._exit(0)  # no thread or exit handler of the program continues


def reason_of(error: BaseException) -> str:
    """Return the word for an exception."""
    if isinstance(error, AssertionError):
        return "assertion"
    return "exit" if isinstance(error, SystemExit) else "error"


def describe(error: BaseException) -> str:
    """Return type and message in at most 300 characters."""
    message = ""
    with contextlib.suppress(Exception):  # str() runs code of the program
        message = str(error)[:200]
    return f"{type(error).__name__[:80]}: {message}"


def descendants() -> set[int]:
    """Return the living processes below this one, from /proc."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):  # it ended meanwhile, or is no process
            with open(f"/proc/{int(name) if name.isdigit() else 'none'}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
            if state != b"Z":
                parents[int(name)] = int(parent)
    below = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return below - {os.getpid()}


def end_descendants() -> None:
    """Kill all processes below this one, also new ones, until none is left; give up after two seconds."""
    for _ in range(200):
        for pid in descendants():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            # A process that ended counts against its user's limit until it is collected.
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def guard(kernel: Kernel, spec: dict[str, Any], flags: int) -> int:
    """Start the confined process, collect all processes that end, and return its exit code (128 + signal)."""
    child = os.fork()
    if child == 0:
        confine(kernel, spec, flags)
        execute(spec)
    os.close(spec["channel"])
    alone = LINUX and not flags & NEW_PID
    if alone:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        pid, status = os.wait()
        while pid != child:
            pid, status = os.wait()
        return exit_code(status)
    finally:
        if alone:
            end_descendants()


def exit_code(status: int) -> int:
    """Return an exit status as a shell does."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def main() -> int:
    """Read the specification, unshare, guard; return the confined process's exit code."""
    spec = json.load(sys.stdin)
    kernel = Kernel()
    kernel.control(DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != spec["parent"]:
        return 1  # the harness ended before the signal was requested
    spec["user"] = FIRST_USER + os.getpid() % USERS
    flags = unshare(kernel, spec["namespaces"])
    if not flags & NEW_PID:
        kernel.control(SUBREAPER, 1)
        return guard(kernel, spec, flags)
    child = os.fork()
    if child == 0:
        kernel.control(DEATH_SIGNAL, signal.SIGKILL)
        return guard(kernel, spec, flags)
    # The guard is collected only when its whole namespace is empty, so no process outlives this one.
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    os.close(spec["channel"])
    return exit_code(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
