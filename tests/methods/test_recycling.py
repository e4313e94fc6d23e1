"""Token Recycling: the tree that is read from its matrix, what a pass teaches it, and its published form."""

from __future__ import annotations

import pytest
import torch

from stridebench.harness.core.draft import Draft
from stridebench.harness.core.loop import decode
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.errors import UnknownNameError, UsageError
from stridebench.methods.drafters.tree_shapes import published
from stridebench.methods.recycling import Recycling
from tests.support import toys


def opened(seed: int = 0, temperature: float = 0.0, vocabulary: int = 10) -> Run:
    return toys.opened(Sampling(temperature), 60, (1, 2, 1), seed, vocabulary=vocabulary, context=500)


def test_the_children_of_the_published_tree() -> None:
    shape = published("recycling_80", 6, 8)
    below = [int((shape.parents == node).sum()) for node in range(-1, 8)]
    assert below == [8, 8, 4, 3, 2, 1, 1, 1, 1]  # of the root and of its children


def test_a_child_is_the_token_of_its_rank_behind_its_parent() -> None:
    run, method = opened(), Recycling(widths=(2, 2))
    state = method.start(run)
    state.matrix |= {1: [4, 5], 4: [1, 6]}
    draft = state.propose(run)
    assert draft.tokens.tolist() == [4, 5, 1, 6, 0, 0]
    assert draft.explicit_parents.tolist() == [-1, -1, 0, 0, 1, 1]
    assert draft.repeats is not None and draft.repeats.tolist() == [False] * 5 + [True]


def test_a_pass_teaches_the_best_tokens_of_every_row_and_the_later_of_two() -> None:
    run, method = opened(), Recycling(widths=(1,))
    state = method.start(run)
    draft, logits = Draft(torch.tensor([3, 1, 3])), torch.full((4, 10), -10.0)
    for row, best in enumerate(([9, 8], [7, 6], [5, 4], [2, 0])):
        logits[row, best] = torch.tensor([2.0, 1.0])
    state.learn(run, draft, logits)
    assert {token: row[:2] for token, row in state.matrix.items()} == {1: [5, 4], 3: [2, 0]}  # 1 is the last token


def test_another_prompt_decoded_before_changes_nothing() -> None:
    """The matrix is that of one prompt: tokens and counts are equal in either order."""
    method, ledgers = Recycling(widths=(2, 2)), []
    for order in ((0, 1), (1, 0)):
        decoded = {seed: decode(method, opened(seed=seed, temperature=1.0)) for seed in order}
        ledgers.append({seed: (one.tokens, [step.accepted for step in one.steps]) for seed, one in decoded.items()})
    assert ledgers[0] == ledgers[1]


def test_trees_that_do_not_fit_are_errors() -> None:
    with pytest.raises(UsageError, match="4 siblings and a vocabulary of 3"):
        decode(Recycling(widths=(4,)), opened(vocabulary=3))
    with pytest.raises(UnknownNameError, match="recycling_80"):
        decode(Recycling(tree="recycling_8"), opened())
    with pytest.raises(UsageError, match="takes the 10 best tokens"):
        decode(Recycling(tree="vicuna_7b_stage2"), opened())
