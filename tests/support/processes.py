"""Whether processes still run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def alive(pids: Iterable[int]) -> list[int]:
    """Those that have not ended; one that nobody has waited for yet has."""
    return [pid for pid in pids if Path(f"/proc/{pid}").is_dir() and state(pid) not in "ZX"]


def state(pid: int) -> str:
    """Its letter in /proc: R, S, Z, ...; X where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
