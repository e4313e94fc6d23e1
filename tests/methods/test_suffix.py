"""SuffixDecoding: the copy that it drafts, by hand and against a tree of counts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.draws import Draws
from stridebench.harness.core.models import Models
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.proof.distance import reference_law, total_variation
from stridebench.harness.proof.enumerate import output_law
from stridebench.methods.first_of import FirstOf
from stridebench.methods.suffix import Suffix
from tests.support.toys import copied


@pytest.mark.parametrize(
    ("method", "tokens", "expected"),
    [
        (Suffix(), (1, 2, 3, 4, 1, 2), [3, 4]),  # a suffix of two has a draft of two
        (Suffix(factor=2.0), (1, 2, 3, 4, 1, 2), [3, 4, 1, 2]),
        (Suffix(length=1), (1, 2, 3, 4, 1, 2), [3]),
        (Suffix(factor=0.5), (1, 2, 3, 4, 1, 2), [3]),
        (Suffix(), (2, 3, 2, 4, 2, 4, 2), [4, 2]),  # two of probability 1 / 2 behind 4, 2; one of 2 / 4 behind 2
        (Suffix(), (2, 3, 2, 4, 9, 2, 4, 8, 2), [4]),  # twice 4, once 3
        (Suffix(min_prob=0.6), (1, 2, 3, 4, 1, 2), []),  # of the two places of 2 one is the end
        (Suffix(), (1, 2, 3), []),
        (Suffix(), (1,), []),
    ],
)
def test_the_copy_by_hand(method: Suffix, tokens: tuple[int, ...], expected: list[int]) -> None:
    assert copied(method, tokens) == expected


def by_tree(method: Suffix, tokens: list[int]) -> list[int]:
    """The draft by a tree that counts every part of the text of at most ``depth`` tokens."""
    counts: dict[tuple[int, ...], int] = {}
    latest: dict[tuple[int, ...], int] = {}
    for begin in range(len(tokens)):
        for end in range(begin + 1, min(begin + method.depth, len(tokens)) + 1):
            part = tuple(tokens[begin:end])
            counts[part], latest[part] = counts.get(part, 0) + 1, end
    best, best_score = [], 0.0
    for size in range(1, min(len(tokens), method.depth)):
        node, probability, score = tuple(tokens[-size:]), 1.0, 0.0
        draft: list[int] = []
        while len(draft) < min(method.length, int(size * method.factor)):
            children = [child for child in counts if len(child) == len(node) + 1 and child[:-1] == node]
            if not children:
                break
            child = max(children, key=lambda one: (counts[one], latest[one]))
            probability *= counts[child] / counts[node]
            if probability < method.min_prob:
                break
            draft, score, node = [*draft, child[-1]], score + probability, child
        if draft and score >= best_score:
            best, best_score = draft, score
    return best


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=24), st.sampled_from([1.0, 2.5]), st.sampled_from([0.0, 0.3]))
def test_the_draft_is_that_of_a_tree_of_counts(tokens: list[int], factor: float, min_prob: float) -> None:
    method = Suffix(length=4, factor=factor, min_prob=min_prob, depth=6)
    assert copied(method, tokens) == by_tree(method, tokens)


@pytest.mark.parametrize(
    ("memory", "tokens", "expected"),
    [
        ([(1, 2, 3, 4, 5)], (1, 2), [3, 4]),
        ([(1, 2, 3, 4, 5)], (2,), [3]),
        ([(7, 1, 2), (3, 4, 5)], (1, 2), []),  # nothing is copied across the end of an output
        ([(1, 2), (1, 2, 3)], (1, 2), [3]),  # expected 0.5, as one of the two places is an end
        ([(1, 2, 5, 6)], (1, 2, 3, 4, 1, 2), [5, 6]),  # two expected; of the text's two places one is its end
        ([(1, 2, 5), (1, 2, 6)], (1, 2, 3, 4, 1, 2), [3, 4]),  # a half expected, against twice a half of the text
        ([(8, 9)], (1, 2), []),
        ([(1, 2, 3), (9,) * 10_000], (1, 2), []),  # forgotten
    ],
)
def test_a_copy_from_earlier_outputs_by_hand(
    memory: list[tuple[int, ...]], tokens: tuple[int, ...], expected: list[int]
) -> None:
    assert copied(Suffix(memory="run"), tokens, memory) == expected


def test_the_order_of_earlier_outputs_changes_drafts_and_not_the_distribution() -> None:
    """Two outputs that go on differently behind the same tokens: the later one is copied."""
    model, prompt, sampling = Tabular("tabular", {"vocabulary": 3}), (0, 1, 0), Sampling(1.0)
    first, second = (1, 0, 2, 2), (1, 0, 1, 1)
    assert copied(Suffix(memory="run"), prompt, [first, second]) == [1, 1]
    assert copied(Suffix(memory="run"), prompt, [second, first]) == [2, 2]
    reference = reference_law(model, prompt, 4, sampling)
    for memory in ([first, second], [second, first]):
        for method in (Suffix(memory="run"), FirstOf("suffix memory=run", "sam", least=2)):
            assert method.remembers

            def opened(draws: Draws, memory: Sequence[Sequence[int]] = tuple(memory)) -> Run:
                return Run.of(Models(model, lambda name: model, prompt, memory=memory), sampling, 4, draws)

            assert total_variation(output_law(method, opened), reference) < 1e-12
