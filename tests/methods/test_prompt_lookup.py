"""Prompt lookup: the copy that it drafts, by hand and against two other implementations."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from stridebench.methods.prompt_lookup import NgramDrafter, PromptLookup
from tests.support.toys import copied

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def original(tokens: Sequence[int], max_ngram: int, length: int) -> list[int]:
    """First earlier occurrence of the longest suffix that ``length`` tokens follow."""
    for size in range(max_ngram, 0, -1):
        suffix = list(tokens[-size:])
        for start in range(len(tokens) - size + 1):
            behind = start + size
            complete = behind + length <= len(tokens) and behind < len(tokens) - size
            if size < len(tokens) and list(tokens[start:behind]) == suffix and complete:
                return list(tokens[behind : behind + length])
    return []


class TestByHand:
    TEXT = (1, 2, 3, 4, 1, 2, 5, 6, 9, 1, 2)

    @pytest.mark.parametrize(
        ("method", "expected"),
        [
            (PromptLookup(length=3), [3, 4, 1]),
            (PromptLookup(length=3, prefer="last"), [5, 6, 9]),
            (PromptLookup(length=20), [3, 4, 1, 2, 5, 6, 9, 1, 2]),
            (PromptLookup(length=3, variant="original"), [3, 4, 1]),
            (PromptLookup(length=3, variant="original", prefer="last"), [5, 6, 9]),
            (PromptLookup(length=9, variant="original", prefer="last"), [3, 4, 1, 2, 5, 6, 9, 1, 2]),
            (PromptLookup(length=10, variant="original"), []),
        ],
    )
    def test_the_copy_and_its_length(self, method: PromptLookup, expected: list[int]) -> None:
        assert copied(method, self.TEXT) == expected

    def test_the_longest_suffix_wins_over_an_earlier_shorter_one(self) -> None:
        text = (2, 7, 0, 1, 2, 8, 0, 1, 2)
        assert copied(PromptLookup(length=1, max_ngram=3), text) == [8]
        assert copied(PromptLookup(length=1, max_ngram=1), text) == [7]

    def test_without_an_earlier_occurrence_there_is_no_draft(self) -> None:
        assert copied(PromptLookup(), (1, 2, 3, 4)) == []
        assert copied(PromptLookup(), (1,)) == []

    @pytest.mark.parametrize(("budget", "drafts"), [(1, 0), (2, 1), (3, 2), (9, 3)])
    def test_a_copy_is_less_deep_than_the_room(self, budget: int, drafts: int) -> None:
        assert len(copied(PromptLookup(length=3), self.TEXT, budget=budget)) == drafts


@settings(deadline=None, derandomize=True, max_examples=150)
@example(text=[5, 5, 5], length=5, max_ngram=4)
@example(text=[5, 5, 5], length=4, max_ngram=1)
@given(text=TEXTS, length=st.integers(1, 12), max_ngram=st.integers(1, 4))
def test_the_transformers_variant_drafts_as_transformers_does(text: list[int], length: int, max_ngram: int) -> None:
    reference = PromptLookupCandidateGenerator(
        num_output_tokens=length, max_matching_ngram_size=max_ngram, max_length=len(text) + 400
    )
    candidates, _ = reference.get_candidates(torch.tensor([text]))
    assert copied(PromptLookup(length, max_ngram), text) == candidates[0, len(text) :].tolist()


@settings(deadline=None, derandomize=True, max_examples=150)
@given(text=TEXTS, max_ngram=st.integers(1, 3), more=st.integers(1, 8))
def test_the_original_variant_takes_full_copies_only(text: list[int], max_ngram: int, more: int) -> None:
    """Copies longer than the suffix, as the published settings have them (3 and 10)."""
    length = max_ngram + more
    assert copied(PromptLookup(length, max_ngram, variant="original"), text) == original(text, max_ngram, length)


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("last", [False, True])
@settings(deadline=None, derandomize=True, max_examples=50)
@given(text=TEXTS, cuts=st.lists(st.integers(0, 40), max_size=4))
def test_reading_in_pieces_gives_the_same_index(complete: bool, last: bool, text: list[int], cuts: list[int]) -> None:
    def drafter() -> NgramDrafter:
        return NgramDrafter((3, 2, 1), 2, complete, last)

    pieces, once = drafter(), drafter()
    for cut in sorted(cuts):
        pieces._learn(text[:cut])
    pieces._learn(text)
    once._learn(text)
    assert pieces.index == once.index
