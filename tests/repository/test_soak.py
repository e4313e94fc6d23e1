"""The verdicts of the soak: what grows, what is flat, and what cannot be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests import soak

LINE = [soak.Round(60.0 * minute, 500.0, 300.0, 9, 4, False, 100, True) for minute in range(40)]


def grown(change: Callable[[soak.Round], soak.Round]) -> dict[str, str]:
    return soak.verdicts([change(one) for one in LINE])


def test_flat_lines_are_flat() -> None:
    words = soak.verdicts(LINE)
    assert all(words[name].startswith("flat") for name in soak.LIMITS)
    assert words["counts"] == "equal in all 40 rounds"


def test_a_handle_a_round_and_a_mebibyte_a_minute_grow() -> None:
    words = grown(lambda one: replace(one, handles=9 + int(one.seconds / 60), memory_mib=500 + one.seconds / 60))
    assert words["handles"].startswith("grows: +60.00")
    assert words["memory_mib"].startswith("grows: +60.00")
    assert words["threads"].startswith("flat")


def test_what_grows_while_it_warms_up_alone_is_flat() -> None:
    words = grown(lambda one: replace(one, memory_mib=500 + 50 * min(one.seconds, 500) / 500))
    assert words["memory_mib"].startswith("flat")


def rough(minute: int) -> float:
    """A heap that reaches its largest size by steps within the first half, and moves by some MiB between rounds."""
    return 512 + 44 * min(1.0, (minute // 12 * 12) / 60) + 3 * ((7 * minute) % 3 - 1)


@pytest.mark.parametrize(("leak", "words"), [(0, {"flat"}), (20, {"grows", "inconclusive"}), (32, {"grows"})])
def test_a_planted_leak_beside_a_heap_that_settles_is_never_flat(leak: float, words: set[str]) -> None:
    """Two hours; the limit is 16 MiB an hour, and the heap alone rose by 44 MiB in the first one."""
    rounds = [replace(LINE[0], seconds=60.0 * m, memory_mib=rough(m) + leak * m / 60) for m in range(0, 120, 2)]
    assert soak.verdicts(rounds)["memory_mib"].split(":")[0] in words


def test_a_leak_that_begins_after_the_first_half_grows() -> None:
    words = grown(lambda one: replace(one, memory_mib=500 + max(0.0, one.seconds / 60 - 20)))
    assert words["memory_mib"].startswith("grows")


def test_what_is_in_use_counts_a_block_and_not_a_hole() -> None:
    before = soak.in_use_mib()
    kept = [bytes(1 << 20) for _ in range(32)]
    assert soak.in_use_mib() - before > 31
    del kept
    assert abs(soak.in_use_mib() - before) < 1


def test_noise_that_hides_the_limit_is_inconclusive() -> None:
    words = grown(lambda one: replace(one, memory_mib=500 + 200 * ((7 * int(one.seconds / 60)) % 11)))
    assert words["memory_mib"].startswith("inconclusive")


def test_a_round_with_other_counts_is_said() -> None:
    assert grown(lambda one: replace(one, equal=one.seconds != 600))["counts"] == "1 of 40 rounds differ"


@pytest.mark.parametrize(("slope", "word"), [(soak.Slope(1, 0, 2), "flat"), (soak.Slope(9, 8, 10), "grows")])
def test_the_interval_decides(slope: soak.Slope, word: str) -> None:
    assert soak.judge(slope, 5) == word
