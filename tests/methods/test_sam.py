"""SAM-Decoding: its automaton against a search of the whole text, and the copy that it drafts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stridebench.methods.sam import SAM, Match, SuffixAutomaton
from tests.support.toys import copied


@pytest.mark.parametrize(
    ("method", "tokens", "expected"),
    [
        (SAM(), (1, 2, 3, 4, 1, 2), [3, 4, 1, 2]),  # a match of two may have eight, and the text ends after four
        (SAM(factor=1.0), (1, 2, 3, 4, 1, 2), [3, 4]),
        (SAM(length=1), (1, 2, 3, 4, 1, 2), [3]),
        (SAM(factor=0.4), (1, 2, 3, 4, 1, 2), []),
        (SAM(factor=1.0), (5, 2, 7, 1, 2, 8, 1, 2), [8, 1]),  # behind 1, 2 rather than behind the first 2
        (SAM(factor=1.0), (1, 2, 3, 1, 2, 4, 1, 2), [3, 1]),  # the first of two occurrences
        (SAM(), (1, 1, 1), [1]),
        (SAM(), (1, 2, 3), []),
        (SAM(), (1,), []),
    ],
)
def test_the_copy_by_hand(method: SAM, tokens: tuple[int, ...], expected: list[int]) -> None:
    assert copied(method, tokens) == expected


@pytest.mark.parametrize(
    ("bias", "memory", "tokens", "expected"),
    [
        (0, [(1, 2, 3, 4, 5)], (1, 2), [3, 4]),  # a match of two has a draft of two
        (2, [(1, 2, 3, 4, 5)], (1, 2), []),  # of the text nothing matches, and two are not more than the bias
        (0, [(1, 2, 5, 6)], (1, 2, 3, 4, 1, 2), [3, 4]),  # as long as the match in the text
        (0, [(4, 1, 2, 5, 6)], (1, 2, 3, 4, 1, 2), [5, 6]),  # 4, 1, 2 is longer; its output ends
        (0, [(7, 1, 2), (3, 4, 5)], (1, 2), []),  # nothing is copied across the end of an output
        (0, [(4, 1, 2), (3,)], (1, 2, 3, 4, 1, 2), [3, 4]),  # nothing is behind the longer match, so the text's
        (0, [(1, 2, 3), (9,) * 10_000], (1, 2), []),  # forgotten
    ],
)
def test_a_copy_from_earlier_outputs_by_hand(
    bias: int, memory: list[tuple[int, ...]], tokens: tuple[int, ...], expected: list[int]
) -> None:
    assert copied(SAM(factor=1.0, memory="run", bias=bias), tokens, memory) == expected


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(st.integers(0, 2), max_size=20), st.lists(st.integers(0, 3), max_size=20))
def test_a_followed_match_is_the_longest_suffix_in_the_other_text(other: list[int], text: list[int]) -> None:
    automaton, match = SuffixAutomaton(), Match()
    for token in other:
        automaton.extend(token)
    for size, token in enumerate(text, 1):
        match = automaton.follow(match, token)
        parts = {tuple(other[begin:end]) for begin in range(len(other)) for end in range(begin, len(other) + 1)}
        assert match.length == max(n for n in range(size + 1) if tuple(text[size - n : size]) in parts | {()})


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=40))
def test_the_match_is_the_longest_suffix_that_occurs_earlier_and_its_first_end(tokens: list[int]) -> None:
    automaton = SuffixAutomaton()
    for size in range(1, len(tokens) + 1):
        automaton.extend(tokens[size - 1])
        text, state = tokens[:size], automaton.links[automaton.last]
        sizes = [n for n in range(size) if any(text[i - n : i] == text[size - n :] for i in range(n, size))]
        longest = max(sizes, default=0)
        assert automaton.lengths[state] == longest
        first = next(i for i in range(longest, size + 1) if text[i - longest : i] == text[size - longest :])
        assert automaton.ends[state] == first
    assert len(automaton.links) <= 2 * len(tokens)
