"""The verdicts of the soak: what grows, what is flat, and what cannot be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests import soak

LINE = [soak.Round(60.0 * minute, 500.0, 300.0, 9, 4, False, 100, True) for minute in range(40)]


def test_flat_lines_are_flat() -> None:
    words = soak.verdicts(LINE)
    assert all(words[name].startswith("flat") for name in soak.LIMITS)
    assert words["counts"] == "equal in all 40 rounds"


@pytest.mark.parametrize(
    ("change", "name", "word"),
    [
        (lambda one: replace(one, handles=9 + int(one.seconds / 60)), "handles", "grows: +60.00"),
        (lambda one: replace(one, memory_mib=500 + one.seconds / 60), "memory_mib", "grows: +60.00"),
        (lambda one: replace(one, memory_mib=500 + one.seconds / 60), "threads", "flat"),
        # what grows while it warms up alone
        (lambda one: replace(one, memory_mib=500 + min(one.seconds, 500) / 10), "memory_mib", "flat"),
        # a leak that begins after the first half
        (lambda one: replace(one, memory_mib=500 + max(0.0, one.seconds / 60 - 20)), "memory_mib", "grows"),
        # noise that hides the limit
        (lambda one: replace(one, memory_mib=500 + 200 * (7 * int(one.seconds / 60) % 11)), "memory_mib", "inconcl"),
        (lambda one: replace(one, equal=one.seconds != 600), "counts", "1 of 40 rounds differ"),
    ],
)
def test_what_grows_is_told_from_what_is_flat(change: Callable[[soak.Round], soak.Round], name: str, word: str) -> None:
    assert soak.verdicts([change(one) for one in LINE])[name].startswith(word)


def rough(minute: int) -> float:
    """A heap that reaches its largest size by steps within the first half, and moves by some MiB between rounds."""
    return 512 + 44 * min(1.0, (minute // 12 * 12) / 60) + 3 * ((7 * minute) % 3 - 1)


@pytest.mark.parametrize(("leak", "words"), [(0, {"flat"}), (20, {"grows", "inconclusive"}), (32, {"grows"})])
def test_a_planted_leak_beside_a_heap_that_settles_is_never_flat(leak: float, words: set[str]) -> None:
    """Two hours; the limit is 16 MiB an hour, and the heap alone rose by 44 MiB in the first one."""
    rounds = [replace(LINE[0], seconds=60.0 * m, memory_mib=rough(m) + leak * m / 60) for m in range(0, 120, 2)]
    assert soak.verdicts(rounds)["memory_mib"].split(":")[0] in words


def test_what_is_in_use_counts_a_block_and_not_a_hole() -> None:
    before = soak.in_use_mib()
    kept = [bytes(1 << 20) for _ in range(32)]
    assert soak.in_use_mib() - before > 31
    del kept
    assert abs(soak.in_use_mib() - before) < 1
