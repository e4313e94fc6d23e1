"""The system calls that the sandbox refuses, as rules of a seccomp filter that its child assembles and installs.

A table names each call with its number on x86_64 and on aarch64 ("-": the architecture has no such call).
"""

from __future__ import annotations

import errno
import platform
import struct
import sys
from dataclasses import dataclass
from typing import Any

# Sockets, code from memory, io_uring, namespaces and mounts, other processes, the kernel and IPC outside the folder.
REFUSED = """
bind 49 200, connect 42 203, listen 50 201, accept 43 202, accept4 288 242, memfd_create 319 279, memfd_secret 447 447,
io_uring_setup 425 425, io_uring_enter 426 426, io_uring_register 427 427, io_setup 206 0, unshare 272 97,
setns 308 268, mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, move_mount 429 429, open_tree 428 428,
fsopen 430 430, fsconfig 431 431, fsmount 432 432, fspick 433 433, mount_setattr 442 442, statmount 457 457,
listmount 458 458, ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, process_madvise 440 440,
process_mrelease 448 448, kcmp 312 272, pidfd_open 434 434, pidfd_getfd 438 438, pidfd_send_signal 424 424,
rt_sigqueueinfo 129 138,
rt_tgsigqueueinfo 297 240, tkill 200 130, setpriority 141 140, sched_setparam 142 118, sched_setscheduler 144 119,
sched_setattr 314 274, sched_setaffinity 203 122, ioprio_set 251 30, migrate_pages 256 238, move_pages 279 239,
bpf 321 280, perf_event_open 298 241, userfaultfd 323 282, keyctl 250 219, add_key 248 217, request_key 249 218,
open_by_handle_at 304 265, name_to_handle_at 303 264, fanotify_init 300 262, fanotify_mark 301 263, inotify_init 253 -,
inotify_init1 294 26, inotify_add_watch 254 27, shmget 29 194, shmat 30 196, shmctl 31 195, semget 64 190, semop 65 193,
semtimedop 220 192, semctl 66 191, msgget 68 186, msgsnd 69 189, msgrcv 70 188, msgctl 71 187, mq_open 240 180,
mq_unlink 241 181, quotactl 179 60, quotactl_fd 443 443, swapon 167 224, swapoff 168 225, reboot 169 142,
kexec_load 246 104, kexec_file_load 320 294, init_module 175 105, finit_module 313 273, delete_module 176 106,
acct 163 89, settimeofday 164 170, clock_settime 227 112, adjtimex 159 171, clock_adjtime 305 266, sethostname 170 161,
setdomainname 171 162, ioperm 173 -, iopl 172 -, modify_ldt 154 -, syslog 103 116, vhangup 153 58,
lookup_dcookie 212 18, personality 135 92,
chown 92 -, lchown 94 -, fchown 93 55, fchownat 260 54, setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7,
removexattr 197 14, lremovexattr 198 15, fremovexattr 199 16
"""
# Seccomp sees no paths. Copying files calls these, so they succeed without effect.
MODES = "chmod 90 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452"
TIMES = "utime 132 -, utimes 235 -, futimesat 261 -, utimensat 280 88"
OTHER = """
execve 59 221, execveat 322 281, socket 41 198, socketpair 53 199, clone 56 220, clone3 435 435, kill 62 129,
tgkill 234 131, prlimit64 302 261, ioctl 16 29, fcntl 72 25
"""
LATEST = 462  # calls with a larger number are not known here, and refused as a kernel without them does
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NEW_NAMESPACES = 0x7E020000
TERMINAL_AND_OWNER_IOCTLS = (0x5412, 0x541C, 0x8901, 0x8902, 0x40086602, 0x401C5820)  # inject input, signal, attributes
OWNER_FCNTLS = (8, 15)
ANY = -1
OWN_PROCESS = -2


@dataclass(frozen=True)
class Rule:
    """Refuse a call with an error number (0: it succeeds without effect), always or by one argument.

    Args:
        number: of the call.
        error: the error number.
        argument: its index, or `ANY` where the call is refused always.
        mask: of the argument's low 32 bits.
        value: what they are compared with; `OWN_PROCESS` is the id of the confined process.
        if_equal: whether to refuse where they are equal, or where they differ.
    """

    number: int
    error: int
    argument: int = ANY
    mask: int = 0xFFFFFFFF
    value: int = 0
    if_equal: bool = False


def architecture() -> str | None:
    """Return the name of this process's architecture where its numbers are known."""
    known = sys.platform.startswith("linux") and sys.byteorder == "little" and struct.calcsize("P") == 8
    return platform.machine() if known and platform.machine() in AUDIT else None


def numbers(table: str, machine: str) -> dict[str, int]:
    """Return the numbers of a table's calls on one architecture."""
    column = 1 + list(AUDIT).index(machine)
    rows = [entry.split() for entry in table.replace("\n", " ").split(",")]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


def filter_rules() -> dict[str, Any] | None:
    """Return the filter as JSON: the architecture and four groups of rules.

    They are for all programs, for one without its own process namespace, for one whose user has other files, and for
    one that sees files of others.

    None where the numbers of this architecture are not known.
    """
    machine = architecture()
    if machine is None:
        return None
    other = numbers(OTHER, machine)
    always = [Rule(number, errno.EPERM) for number in numbers(REFUSED, machine).values()]
    always += [Rule(other[name], errno.EACCES) for name in ("execve", "execveat")]
    always += [
        Rule(other["socket"], errno.EAFNOSUPPORT),
        # A pair of streams is connected for good; a datagram socket of a pair can send to any path.
        Rule(other["socketpair"], errno.EAFNOSUPPORT, 0, value=1),
        Rule(other["socketpair"], errno.EAFNOSUPPORT, 1, mask=0xF, value=1),
        Rule(other["clone"], errno.EPERM, 0, mask=NEW_NAMESPACES, value=0),
        Rule(other["clone3"], errno.ENOSYS),  # its flags cannot be seen; the C library then calls clone
    ]
    always += [Rule(other["ioctl"], errno.EPERM, 1, value=value, if_equal=True) for value in TERMINAL_AND_OWNER_IOCTLS]
    always += [Rule(other["fcntl"], errno.EPERM, 1, value=value, if_equal=True) for value in OWNER_FCNTLS]
    shared = [Rule(other[name], errno.EPERM, 0, value=OWN_PROCESS) for name in ("kill", "tgkill")]
    shared += [Rule(other["prlimit64"], errno.EPERM, 0, value=0)]
    modes = [Rule(number, 0) for number in numbers(MODES, machine).values()]
    times = [Rule(number, 0) for number in numbers(TIMES, machine).values()]
    groups = {"always": always, "shared_processes": shared, "shared_modes": modes, "shared_times": times}
    plain = {
        name: [[r.number, r.error, r.argument, r.mask, r.value, r.if_equal] for r in rules]
        for name, rules in groups.items()
    }
    return {"audit": AUDIT[machine], "latest": LATEST, **plain}
