"""Hashed n-grams: the copy by hand, and entries that two n-grams share."""

from __future__ import annotations

import pytest

from stridebench.methods import ngram_mod
from stridebench.methods.ngram_mod import NgramMod
from tests.support.toys import copied


@pytest.mark.parametrize(
    ("method", "tokens", "expected"),
    [
        (NgramMod(2, 3, 1), (1, 2, 3, 4, 1, 2), [3, 4, 1]),
        (NgramMod(2, 8, 1), (1, 2, 3, 4, 1, 2), [3, 4, 1, 2, 3, 4, 1, 2]),  # the copy is looked up too
        (NgramMod(2, 8, 1), (1, 2, 3, 1, 2, 4, 1, 2), [4, 1, 2, 4, 1, 2, 4, 1]),  # behind the later 1, 2
        (NgramMod(2, 8, 3), (5, 1, 2, 6, 7, 1), []),
        (NgramMod(1, 8, 3), (1, 2, 3, 1), [2, 3, 1, 2, 3, 1, 2, 3]),
        (NgramMod(3, 8, 1), (1, 2), []),
        (NgramMod(), (1, 2, 3) * 8, []),  # of the 24 tokens nothing is behind
        (NgramMod(), (1, 2, 3) * 9, [1, 2, 3] * 21 + [1]),
    ],
)
def test_the_copy_by_hand(method: NgramMod, tokens: tuple[int, ...], expected: list[int]) -> None:
    assert copied(method, tokens) == expected


@pytest.mark.parametrize(
    ("memory", "tokens", "expected"),
    [
        ([(1, 2, 3, 4, 5)], (1, 2), [3, 4, 5]),
        ([(1, 2, 3), (1, 2, 4)], (1, 2), [4]),  # the later output's
        ([(1, 2, 3)], (1, 2, 4, 1, 2), [4, 1, 2]),  # the text's own
        ([(1, 2), (3, 4, 5)], (1, 2), []),  # nothing is copied across the end of an output
        ([(1, 2, 3), (9,) * 10_000], (1, 2), []),  # forgotten
    ],
)
def test_a_copy_from_earlier_outputs_by_hand(
    memory: list[tuple[int, ...]], tokens: tuple[int, ...], expected: list[int]
) -> None:
    assert copied(NgramMod(2, 3, 1, "run"), tokens, memory=memory) == expected


def test_a_draft_that_the_room_makes_too_short_is_none() -> None:
    assert [len(copied(NgramMod(2, 8, 3), (1, 2, 3, 1, 2), budget=budget)) for budget in (3, 4, 5)] == [0, 3, 4]


def test_of_two_ngrams_that_share_an_entry_the_later_one_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram_mod, "ENTRIES", 1)
    assert copied(NgramMod(2, 2, 1), (1, 2, 3, 4, 5, 6)) == [6, 6]
