"""Outcomes are the leading ids and one for the rest, and hold the drafter and the copy where they are known."""

from __future__ import annotations

import numpy as np
import torch

from stridebench.harness.audit.laws import EXPLICIT, copied, counted, laws_of, outcomes_of
from stridebench.harness.core.sampling import Sampling


def test_a_small_vocabulary_has_an_outcome_for_each_id() -> None:
    z = torch.tensor([[0.0, 2.0, 1.0]])
    outcomes = outcomes_of(laws_of(z, Sampling(1.0), 1e-6), [0, 0, 0], 2, 1.0)
    assert outcomes.ids.tolist() == [[1, 2, 0, -1]] and outcomes.sizes.tolist() == [[1, 1, 1, 0]]
    np.testing.assert_allclose(outcomes.p[0, :3], z.softmax(-1)[0].numpy()[[1, 2, 0]], rtol=1e-6)
    assert outcomes.of(np.array([2])).tolist() == [1]


def test_the_other_ids_of_a_large_vocabulary_are_one_outcome() -> None:
    z = torch.linspace(0, 5, EXPLICIT + 100, dtype=torch.float64)[None]
    q = torch.zeros_like(z).softmax(-1)
    outcomes = outcomes_of(laws_of(z, Sampling(1.0), 1e-6), [3, 3], 1, 1.0, q)
    assert outcomes.p.shape == (1, EXPLICIT + 1) and outcomes.sizes[0, -1] == 100
    np.testing.assert_allclose(outcomes.p[0, -1], z.softmax(-1)[0, :100].sum().item(), rtol=1e-9)
    assert outcomes.q is not None
    np.testing.assert_allclose(outcomes.q[0, -1], 100 / (EXPLICIT + 100), rtol=1e-9)
    assert outcomes.of(np.array([5])).tolist() == [EXPLICIT]


def test_ids_that_were_cut_off_do_not_count_in_the_rest() -> None:
    z = torch.linspace(0, 5, EXPLICIT + 100, dtype=torch.float64)[None]
    outcomes = outcomes_of(laws_of(z, Sampling(1.0, top_k=10), 1e-6), [3, 3], 1, 1.0)
    assert outcomes.sizes.sum() == 10 and outcomes.sizes[0, -1] == outcomes.p[0, -1] == 0


def test_the_copy_continues_the_latest_earlier_bigram() -> None:
    assert copied([1, 2, 3, 1, 2, 4, 1, 2], 3) == [-1, -1, 3, -1, -1, 4]
    assert copied([7], 1) == [-1] and copied([7, 8, 7, 8, 7], 1) == [-1, -1, -1, 7, 8]


def test_the_copy_at_a_place_depends_on_the_tokens_before_it_alone() -> None:
    context = np.random.default_rng(0).integers(0, 3, size=40).tolist()
    for place in range(2, 40):
        assert copied(context[:place], 2)[: place - 1] == copied(context, 2)[: place - 1]


def test_ids_that_stand_in_the_context_are_counted_without_the_token_itself_and_later_ones() -> None:
    context, ids = [5, 7, 5, 9, 5, 7], np.array([[5, 7, 8, -1]] * 3)
    assert counted(context, 0, 3, ids).tolist() == [[2, 1, 0, 0], [2, 1, 0, 0], [3, 1, 0, 0]]
    assert counted(context, 2, 3, ids).tolist() == [[1, 0, 0, 0], [1, 0, 0, 0], [2, 0, 0, 0]]
    z = torch.zeros(3, 10)
    whole = outcomes_of(laws_of(z, Sampling(1.0), 1e-6), context, 3, 1.0, prompt=2)
    for rows in range(1, 4):  # later tokens change nothing
        cut = outcomes_of(laws_of(z[:rows], Sampling(1.0), 1e-6), context[: 3 + rows - 1], 3, 1.0, prompt=2)
        for name in ("stood", "stood_in_output"):
            assert getattr(cut, name).tolist() == getattr(whole, name)[:rows].tolist()
