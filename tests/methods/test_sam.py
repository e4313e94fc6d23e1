"""SAM-Decoding: its automaton against a search of the whole text, and the copy that it drafts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.methods.sam import SAM, SuffixAutomaton

MODEL = Tabular("tabular", {"vocabulary": 10, "context": 500})


def copied(method: SAM, tokens: Sequence[int], budget: int = 400) -> list[int]:
    run = open_run(MODEL, lambda name: MODEL, tokens, Sampling(0.0), budget, SeededDraws(0, "t", "p", 0))
    drafted: list[int] = method.start(run).propose(run).tokens.tolist()
    return drafted


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


@settings(deadline=None, derandomize=True, max_examples=300)
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
