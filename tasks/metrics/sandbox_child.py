"""The child of the sandbox: a script that uses the standard library only. The harness never imports it.

It has up to three processes. The guard's parent unshares what the kernel allows, replaces the file system by a view and
waits. The guard (process 1 of its own process namespace, where there is one) starts the confined process and outlives
it. The confined process joins its control group, drops every right and runs the program. When the guard ends, the
kernel ends all other processes of the namespace.

Standard input has one JSON object: program, nonce, parent (None below bubblewrap), channel and group (file descriptors;
group is None without a control group), readable and devices (paths), outer (what already holds) and the limits. The
channel gets two JSON lines: what is isolated, then how the program ended, with the nonce.
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

NEW_MOUNT, NEW_IPC, NEW_USER, NEW_PID, NEW_NET = 0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
DEATH_SIGNAL, KEEP_CAPABILITIES, SUBREAPER, NO_NEW_PRIVILEGES = 1, 8, 36, 38
CAPABILITY_VERSION, READ_ANY_FILE = 0x20080522, 1 << 2

# Landlock: its three system calls are the same on every architecture; its versions differ in their rights.
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
WRITE_FILE, READ_FILE, READ_DIR, EXECUTE, TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 0, 1 << 14

# Mounts: flags of mount and umount2; mount_setattr has one number on every architecture.
NO_SUID, NO_DEVICES, NO_EXECUTION, BIND, RECURSIVE, PRIVATE, DETACH = 2, 4, 8, 0x1000, 0x4000, 0x40000, 2
MOUNT_SETATTR, HERE, WITH_SUBMOUNTS, READ_ONLY = 442, -100, 0x8000, 1

# Seccomp filters: instructions of classic BPF, and what they return.
SECCOMP, FILTER = 22, 2
LOAD, EQUAL, GREATER, AND, RETURN = 0x20, 0x15, 0x25, 0x54, 0x06
ALLOW, REFUSE, KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
OWN_PROCESS = -2

END_S = 20.0


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
    """Enter new network, process, mount and IPC namespaces; return the flags that the kernel granted, or 0."""
    if not (LINUX and isolate):
        return 0
    user, group = os.geteuid(), os.getegid()
    flags = NEW_MOUNT | NEW_NET | NEW_PID | NEW_IPC | (0 if user == 0 else NEW_USER)
    try:
        # An int argument: the kernel takes this one as a C int.
        kernel.call("unshare", ctypes.c_int(flags))
    except OSError:
        return 0
    if flags & NEW_USER:
        with contextlib.suppress(OSError):  # then no file can be made in a new mount, and there is no view
            maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
            for name, text in maps.items():
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
    return flags


def build_view(kernel: Kernel, spec: dict[str, Any]) -> bool:
    """Replace the file system by interpreter and libraries, read only, some devices, and an empty /tmp of limited size.

    The current folder is then /tmp. False, and nothing changed for the program, where the kernel refuses a mount.
    """
    old = os.open(".", os.O_PATH)
    root = os.getcwd()
    os.umask(0o022)
    size = f"size={spec['disk_mb']}m,nr_inodes={spec['entries']},mode=700"
    try:
        kernel.call("mount", None, b"/", None, RECURSIVE | PRIVATE, None)
        kernel.call("mount", b"tmpfs", root.encode(), b"tmpfs", NO_SUID | NO_DEVICES, b"size=1m,mode=755")
        os.mkdir(root + "/tmp")
        flags = NO_SUID | NO_DEVICES | NO_EXECUTION
        kernel.call("mount", b"tmpfs", f"{root}/tmp".encode(), b"tmpfs", flags, size.encode())
        for path in spec["readable"]:
            bind(kernel, root, path, READ_ONLY | NO_SUID | NO_DEVICES)
        for path in spec["devices"]:
            bind(kernel, root, path, READ_ONLY | NO_SUID | NO_EXECUTION)
        os.chdir(root)
        kernel.call("pivot_root", b".", b".")
    except OSError:
        os.fchdir(old)
        with contextlib.suppress(OSError):  # nothing was mounted
            kernel.call("umount2", root.encode(), DETACH)
        return False
    finally:
        os.close(old)
    kernel.call("umount2", b".", DETACH)
    set_attributes(kernel, "/", READ_ONLY | NO_SUID | NO_DEVICES, 0)
    os.chdir("/tmp")
    return True


def bind(kernel: Kernel, root: str, path: str, attributes: int) -> None:
    """Show a file or folder at the same path below another root."""
    target = root + path
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    kernel.call("mount", path.encode(), target.encode(), None, BIND | RECURSIVE, None)
    set_attributes(kernel, target, attributes, WITH_SUBMOUNTS)


def set_attributes(kernel: Kernel, path: str, attributes: int, flags: int) -> None:
    """Add attributes to a mount."""
    structure = struct.pack("=4Q", attributes, 0, 0, 0)
    kernel.call("syscall", MOUNT_SETATTR, HERE, path.encode(), flags, structure, len(structure))


def restrict_files(kernel: Kernel, spec: dict[str, Any]) -> bool:
    """Restrict files with Landlock: write below the current folder, read interpreter and libraries, execute nothing."""
    try:
        version = kernel.call("syscall", LANDLOCK_CREATE, None, 0, 1)
    except OSError:
        return False
    rights = (1 << FILE_RIGHTS.get(version, 16)) - 1
    fields = [rights] + [0b11] * (version >= 4) + [0b11] * (version >= 6)
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    rules = kernel.call("syscall", LANDLOCK_CREATE, ctypes.c_char_p(attributes), len(attributes), 0)
    allowed = dict.fromkeys(spec["readable"], READ_FILE | READ_DIR)
    allowed |= dict.fromkeys(spec["devices"], READ_FILE | WRITE_FILE | (TRUNCATE & rights))
    allowed["."] = rights & ~EXECUTE
    for path, mask in allowed.items():
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


def restrict_calls(kernel: Kernel, calls: dict[str, Any] | None, groups: dict[str, bool]) -> bool:
    """Refuse system calls with a seccomp filter; False where the kernel or its architecture has none."""
    if calls is None:
        return False
    rules = [*calls["always"]]
    for group, applies in groups.items():
        rules += calls[group] if applies else []
    program = assembled(calls["audit"], calls["latest"], rules)
    buffer = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer)))
    try:
        kernel.call("prctl", SECCOMP, FILTER, header, 0, 0)
    except OSError:
        return False
    return True


def drop_user(kernel: Kernel, user: int) -> bool:
    """Change to that user where this is root; reading stays allowed if the user cannot read the interpreter.

    Root of a container that cannot change its user drops its capabilities only, and the result is False.
    """
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
    except OSError:  # root of a container without these rights, or without that user
        with contextlib.suppress(OSError):
            os.chown(".", os.geteuid(), os.getegid())
        kernel.capabilities(0)
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


def join_group(descriptor: int | None) -> bool:
    """Move this process into the control group whose process list is open; False where there is none."""
    if descriptor is None:
        return False
    try:
        os.write(descriptor, b"0")
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def confine(kernel: Kernel, spec: dict[str, Any], flags: int, view: bool) -> None:
    """Drop every right that can be dropped, then write to the channel what is isolated."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    grouped = join_group(spec["group"])
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    dropped = drop_user(kernel, spec["user"])
    kernel.control(DEATH_SIGNAL, signal.SIGKILL)  # after the change of user, which clears it
    kernel.control(NO_NEW_PRIVILEGES, 1)
    if flags & NEW_USER:
        kernel.capabilities(0)
    counted_alone = dropped or view or flags & NEW_USER or not LINUX
    processes = spec["processes"] + (0 if counted_alone else tasks_of(os.getuid()))
    restricted = LINUX and restrict_files(kernel, spec)
    limit(spec, processes)
    outer = spec["outer"]
    alone, view = bool(flags & NEW_PID) or "processes" in outer, view or "view" in outer
    # A user that owns nothing can change the mode of nothing outside the folder.
    groups = {"shared_processes": not alone, "shared_modes": not (dropped or view), "shared_times": not view}
    filtered = restrict_calls(kernel, spec["calls"], groups)
    isolated = {
        "network": bool(flags & NEW_NET) or "network" in outer,
        "processes": alone,
        "files": restricted or dropped or view,
        "sockets": filtered,
        "calls": filtered,
        "view": view,
        "group": grouped,
        "helpers": ("processes" in outer) + bool(flags & NEW_PID),
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
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "disk"
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
    """Stop and then kill all processes below this one until none is left; give up after `END_S` seconds.

    A stopped process starts no other one, and keeps its place in its user's limit of processes. So a program that
    starts processes faster than they are listed runs out of places.
    """
    end = time.monotonic() + END_S
    stopped: set[int] = set()
    while time.monotonic() < end:
        below = descendants()
        for pid in below if below <= stopped else below - stopped:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL if below <= stopped else signal.SIGSTOP)
        stopped |= below
        try:
            # A process that ended counts against its user's limit until it is collected.
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def guard(kernel: Kernel, spec: dict[str, Any], flags: int, view: bool) -> int:
    """Start the confined process, collect all processes that end, and return its exit code (128 + signal).

    SIGTERM ends the confined process, and then what it left behind as after any other end.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    child = os.fork()
    if child == 0:
        confine(kernel, spec, flags, view)
        execute(spec)
    close(spec)
    alone = LINUX and not (flags & NEW_PID or "processes" in spec["outer"])
    if alone:
        signal.signal(signal.SIGTERM, lambda *_: kill(child))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    pid, status = os.wait()
    while pid != child:
        pid, status = os.wait()
    if alone:
        end_descendants()
    return exit_code(status)


def close(spec: dict[str, Any]) -> None:
    """Close what only the confined process uses."""
    os.close(spec["channel"])
    if spec["group"] is not None:
        os.close(spec["group"])


def kill(pid: int) -> None:
    """Kill a process that may have ended already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def exit_code(status: int) -> int:
    """Return an exit status as a shell does."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def main() -> int:
    """Read the specification, unshare, guard; return the confined process's exit code."""
    spec = json.load(sys.stdin)
    kernel = Kernel()
    kernel.control(DEATH_SIGNAL, signal.SIGKILL)
    if spec["parent"] not in (None, os.getppid()):
        return 1  # the harness ended before the signal was requested
    spec["user"] = FIRST_USER + os.getpid() % USERS
    flags = unshare(kernel, spec["namespaces"])
    view = bool(flags & NEW_MOUNT) and build_view(kernel, spec)
    if not flags & NEW_PID:
        kernel.control(SUBREAPER, 1)
        return guard(kernel, spec, flags, view)
    child = os.fork()
    if child == 0:
        kernel.control(DEATH_SIGNAL, signal.SIGKILL)
        return guard(kernel, spec, flags, view)
    # The guard is collected only when its whole namespace is empty, so no process outlives this one.
    signal.signal(signal.SIGTERM, lambda *_: kill(child))
    close(spec)
    return exit_code(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
