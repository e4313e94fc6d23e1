"""The verdicts of the soak: what grows, what is flat, and what cannot be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests import soak

LINE = [soak.Round(60.0 * minute, 500.0, 9, 4, False, 100, True) for minute in range(40)]


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


def test_noise_that_hides_the_limit_is_inconclusive() -> None:
    words = grown(lambda one: replace(one, memory_mib=500 + 200 * ((7 * int(one.seconds / 60)) % 11)))
    assert words["memory_mib"].startswith("inconclusive")


def test_a_round_with_other_counts_is_said() -> None:
    assert grown(lambda one: replace(one, equal=one.seconds != 600))["counts"] == "1 of 40 rounds differ"


@pytest.mark.parametrize(("slope", "word"), [(soak.Slope(1, 0, 2), "flat"), (soak.Slope(9, 8, 10), "grows")])
def test_the_interval_decides(slope: soak.Slope, word: str) -> None:
    assert soak.judge(slope, 5) == word
