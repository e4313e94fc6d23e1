"""What a running program uses in all its processes, read from outside: memory and disk."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

MEMORY_FIELDS = (b"RssAnon:", b"RssShmem:", b"VmSwap:")
ENTRIES = 4096


def measurable() -> bool:
    """Return whether this kernel lists the children of a process."""
    return Path(f"/proc/self/task/{os.getpid()}/children").exists()


def descendants(pid: int) -> list[int]:
    """Return the processes below one; those that end meanwhile may be left out."""
    below: list[int] = []
    waiting = [pid]
    while waiting:
        folder = f"/proc/{waiting.pop()}/task"
        children: list[int] = []
        with contextlib.suppress(OSError):
            for task in os.listdir(folder):
                with contextlib.suppress(OSError), open(f"{folder}/{task}/children", "rb") as file:
                    children += map(int, file.read().split())
        below += children
        waiting += children
    return below


def memory_bytes(pid: int) -> int:
    """Return the anonymous, shared and swapped memory of a process; 0 where it has ended."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            rows = [line.split() for line in file if line.startswith(MEMORY_FIELDS)]
    except OSError:
        return 0
    return sum(int(row[1]) for row in rows) << 10


def removed_files(pids: list[int]) -> int:
    """Return the bytes of files that are open in these processes and have no name any more."""
    sizes: dict[tuple[int, int], int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    status = os.stat(f"/proc/{pid}/fd/{name}")
                    if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
                        sizes[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(sizes.values())


def folder_bytes(folder: Path, most: int) -> int | None:
    """Return the bytes of a folder's files; None with more than `ENTRIES` entries, or deeper than a path is long.

    The sum ends above ``most``.
    """
    total = entries = 0
    waiting = [str(folder)]
    while waiting and total <= most:
        try:
            with os.scandir(waiting.pop()) as entries_of_folder:
                for entry in entries_of_folder:
                    entries += 1
                    if entries > ENTRIES:
                        return None
                    with contextlib.suppress(FileNotFoundError):
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
        except (FileNotFoundError, PermissionError, NotADirectoryError):
            continue
        except OSError:
            return None
    return total


@dataclass(frozen=True)
class Usage:
    """The limits of a whole program.

    Args:
        folder: where it writes; None where the kernel limits its files.
        memory_mb: of all its processes; a page that two of them share counts twice.
        disk_mb: of all its files.
    """

    folder: Path | None
    memory_mb: int
    disk_mb: int

    def excess(self, pid: int, helpers: int) -> tuple[Literal["memory", "disk"], str] | None:
        """Return "memory" or "disk" and a sentence where the program below a process uses too much.

        Args:
            pid: the sandbox's first process.
            helpers: how many processes below it belong to the sandbox.
        """
        pids = descendants(pid)[helpers:]
        if sum(map(memory_bytes, pids)) > self.memory_mb << 20:
            return "memory", f"more than {self.memory_mb} MiB in all its processes"
        if self.folder is None:
            return None
        most = self.disk_mb << 20
        used = folder_bytes(self.folder, most)
        if used is None:
            return "disk", f"more than {ENTRIES} files, or folders too deep"
        if used + removed_files(pids) > most:
            return "disk", f"more than {self.disk_mb} MiB of files"
        return None
