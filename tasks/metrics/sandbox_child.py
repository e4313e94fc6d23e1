"""The processes of the sandbox: a script that uses the standard library only. The harness never imports it.

Standard input has one JSON object with a role. "program" confines itself, writes its isolation to standard output, runs
the program and then answers calls on the channel. "check" calls it there and writes the verdict to standard output.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import ctypes
import json
import os
import pickle
import random
import resource
import signal
import socket
import struct
import sys
import types
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from io import BufferedRWPair
from typing import Any

LINUX = sys.platform.startswith("linux")
NEW_USER, NEW_NET = 0x10000000, 0x40000000
DEATH_SIGNAL, DUMPABLE, KEEP_CAPABILITIES, NO_NEW_PRIVILEGES = 1, 4, 8, 38
CAPABILITY_VERSION, READ_ANY_FILE = 0x20080522, 1 << 2
BASES: tuple[Any, ...] = (bool, int, float, complex, str, bytes, bytearray, tuple, list, dict, set, frozenset, range)
# None of these can be changed from a message: a class of Python could be given another ``__eq__``.
NAMED = (*BASES, collections.deque, date, datetime, timedelta, Decimal, iter)
PLAIN = {*NAMED[:-1], type(None)}
VIEWS: tuple[type, ...] = (type({}.keys()), type({}.items()), type({}.values()))


def call(name: str, *arguments: Any) -> int:
    """Call a function of the C library; integers are passed as longs, or raise OSError if it failed."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    function.restype = ctypes.c_long
    result = int(function(*(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)))
    if result == -1:
        raise OSError(ctypes.get_errno(), name)
    return result


def control(option: int, value: int) -> None:
    """Call ``prctl``, which Linux alone has."""
    if LINUX:
        call("prctl", option, value, 0, 0, 0)


def leave_network() -> bool:
    """Enter an empty network namespace, and return whether the kernel allows it."""
    user, group = os.geteuid(), os.getegid()
    try:
        call("unshare", ctypes.c_int(NEW_NET | (NEW_USER if user else 0)))  # an int: the kernel takes it as a C int
    except (OSError, AttributeError):  # other systems have no such function
        return False
    if user:
        with contextlib.suppress(OSError):
            for name, text in ("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1"):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
    return True


def drop_user(user: int) -> bool:
    """Change to that user if this is root, and drop all capabilities.

    The right to read stays if the user cannot read the interpreter. Root of a container that cannot change its user
    drops its capabilities only, and the result is False.
    """
    if not LINUX:
        return False
    kept, dropped = 0, os.geteuid() == 0
    if dropped:
        try:
            os.chown(".", user, user)
            os.seteuid(user)
            kept = 0 if os.access(os.__file__, os.R_OK, effective_ids=True) else READ_ANY_FILE
            os.seteuid(0)
            os.setgroups([])
            os.setresgid(user, user, user)
            control(KEEP_CAPABILITIES, 1)
            os.setresuid(user, user, user)
        except OSError:
            dropped = False
            with contextlib.suppress(OSError):
                os.chown(".", os.geteuid(), os.getegid())
    sets = struct.pack("=6I", kept, kept, 0, 0, 0, 0)
    call("capset", struct.pack("=Ii", CAPABILITY_VERSION, 0), sets)
    return dropped


def tasks_of(user: int) -> int:
    """Count the processes and threads of a user, to which the limit of processes applies."""
    count = 0
    for name in filter(str.isdigit, os.listdir("/proc") if LINUX else ()):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if os.stat(f"/proc/{name}").st_uid == user:
                count += len(os.listdir(f"/proc/{name}/task"))
    return count


def limit(spec: dict[str, Any], processes: int) -> None:
    """Set the resource limits of this process; its children inherit each of them."""
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: int(spec["timeout_s"]) + 1,
        resource.RLIMIT_FSIZE: spec["file_mb"] << 20,
        resource.RLIMIT_NOFILE: spec["open_files"],
        resource.RLIMIT_NPROC: processes,
        resource.RLIMIT_AS: spec["memory_mb"] << 20,
    }
    for resource_id, highest in limits.items():
        hard = resource.getrlimit(resource_id)[1]
        value = highest if hard == resource.RLIM_INFINITY else min(highest, hard)
        try:
            resource.setrlimit(resource_id, (value, value))
        except (OSError, ValueError):
            if LINUX:  # elsewhere an address space or a user with more processes cannot be limited
                raise


def confine(spec: dict[str, Any]) -> None:
    """Drop every right that can be dropped; if this is the program, write its isolation to standard output."""
    inside, named = spec["bubblewrap"], os.geteuid() != 0
    alone = spec["namespaces"] and not inside and leave_network()
    dropped = drop_user(spec["user"])
    control(DEATH_SIGNAL, signal.SIGKILL)  # after the change of user, which clears it
    control(NO_NEW_PRIVILEGES, 1)
    counted = dropped or inside or (alone and named)  # a user of this namespace has no other processes
    limit(spec, spec["processes"] + (0 if counted else tasks_of(os.getuid())))
    if spec["role"] == "check":
        return
    isolated = {"network": inside or alone, "processes": inside, "files": inside or dropped, "bubblewrap": inside}
    os.write(1, json.dumps(isolated).encode() + b"\n")
    silence(0, 1, 2)


def silence(*descriptors: int) -> None:
    """Replace these standard streams by an empty one."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(null, descriptor)
    os.close(null)


class Handle:
    """An object of the program that is not plain data, by its place in a list there."""

    def __init__(self, place: int) -> None:
        self.place = place


class Asking(pickle.Pickler):
    """Writes the arguments of a call."""

    def persistent_id(self, obj: Any) -> int | None:
        """Return the place of a handle."""
        return obj.place if isinstance(obj, Handle) else None


class Asked(pickle.Unpickler):
    """Reads a call; the check is trusted, so its arguments may be of any class of the standard library."""

    def __init__(self, stream: BufferedRWPair, kept: list[Any]) -> None:
        super().__init__(stream)
        self.kept = kept

    def persistent_load(self, place: Any) -> Any:
        """Return the object of a handle."""
        return self.kept[place]


class Answering(pickle.Pickler):
    """Writes plain data; other objects become handles, by their place in ``kept``."""

    def __init__(self, stream: BufferedRWPair, kept: list[Any]) -> None:
        super().__init__(stream)
        self.kept = kept

    def persistent_id(self, obj: Any) -> int | None:
        """Return the handle of an object that is not plain."""
        plain = type(obj) in PLAIN or isinstance(obj, (*BASES, *VIEWS)) or any(obj is one for one in NAMED)
        if plain or hasattr(type(obj), "__next__"):
            return None
        self.kept.append(obj)
        return len(self.kept) - 1

    def reducer_override(self, obj: Any) -> Any:
        """Send an instance of a subclass as its base, a view as a set or iterator, an iterator as one over a list."""
        if type(obj) in PLAIN or any(obj is one for one in NAMED):
            return NotImplemented
        for base in BASES:
            if isinstance(obj, base):
                return base, (base(obj),)
        return set if isinstance(obj, VIEWS[:2]) else iter, (list(obj),)


class Answered(pickle.Unpickler):
    """Reads plain data; a message can name no other class, so reading it runs no code of its sender."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a plain class, or ``iter``."""
        for found in NAMED:
            if (found.__module__, found.__name__) == (module, name):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is not plain data")

    def persistent_load(self, place: Any) -> Handle:
        """Return the handle of a place."""
        return Handle(place)


class Gone(BaseException):
    """The process of the program has ended."""


def serve(spec: dict[str, Any]) -> None:
    """Run the program as a fresh ``__main__``, then answer calls until the channel closes; never returns."""
    stream = socket.socket(fileno=spec["channel"]).makefile("rwb")
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    os.environ.clear()
    random.seed(0)
    kept: list[Any] = []
    ballast = [bytearray(1 << 20)]  # after a memory error there may be no memory for an answer

    def answer(act: Callable[[], Any]) -> None:
        try:
            message = ("value", act())
        except BaseException as error:
            ballast.clear()
            message = ("error", (type(error).__name__[:80], text_of(error)))
        Answering(stream, kept).dump(message)
        stream.flush()

    with contextlib.suppress(BaseException):
        answer(lambda: exec(compile(spec["program"], "<program>", "exec"), main.__dict__))
        while True:
            name, arguments, named = Asked(stream, kept).load()
            answer(lambda: getattr(main, name)(*arguments, **named))  # noqa: B023  # called at once
    os._exit(0)  # not a return: no thread or exit handler of the program continues


def text_of(error: BaseException) -> str:
    """Return the message of an exception, cut; ``str`` may run code of the program."""
    with contextlib.suppress(Exception):
        return str(error)[:200]
    return ""


def received(stream: BufferedRWPair) -> Any:
    """Return the value of an answer, or raise the exception that it names, or raise Gone if the program has ended."""
    try:
        kind, value = Answered(stream).load()
    except (EOFError, ConnectionError) as error:
        raise Gone from error
    if kind == "value":
        return value
    name, text = value
    known = getattr(builtins, name, None)
    if not (isinstance(known, type) and issubclass(known, BaseException)):
        known = type(name, (Exception,), {})
    raised: Any = known.__new__(known, text)
    raised.__dict__["told"] = text  # str() of a KeyError would quote it again
    raise raised


def check(spec: dict[str, Any]) -> None:
    """Wait for the end of the program, run the check, and write its verdict to standard output."""
    control(DUMPABLE, 0)  # the program must not reach this process through /proc
    output = os.dup(1)
    silence(0, 1)
    stream = socket.socket(fileno=spec["channel"]).makefile("rwb")
    gone = False

    def remote(name: str) -> Callable[..., Any]:
        def function(*arguments: Any, **named: Any) -> Any:
            nonlocal gone
            try:
                Asking(stream).dump((name, arguments, named))
                stream.flush()
                return received(stream)
            except (Gone, ConnectionError) as error:
                gone = True
                raise Gone from error

        return function

    reason, detail = "passed", ""
    try:
        received(stream)
        names = {name: remote(name) for name in spec["names"]}
        exec(compile(spec["check"], "<check>", "exec"), {"__name__": "__main__", "remote": remote, **names})
    except BaseException as error:
        kinds = {AssertionError: "assertion", MemoryError: "memory", SystemExit: "exit", Gone: "exit"}
        reason = next((word for kind, word in kinds.items() if isinstance(error, kind)), "error")
        if not isinstance(error, Gone):
            detail = f"{type(error).__name__[:80]}: {getattr(error, 'told', None) or text_of(error)}"
    os.write(output, json.dumps(["exit", ""] if gone else [reason, detail]).encode())


if __name__ == "__main__":
    spec = json.load(sys.stdin)
    confine(spec)
    (serve if spec["role"] == "program" else check)(spec)
    os._exit(0)
