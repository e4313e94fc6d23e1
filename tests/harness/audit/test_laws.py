"""The distributions that are bet on are those that are sampled, and no bet rests on how a cut was rounded."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stridebench.harness.audit.laws import EXPLICIT, laws_of, outcomes_of
from stridebench.harness.audit.outcomes import copied, counted
from stridebench.harness.core.sampling import Sampling, warp
from stridebench.harness.errors import UsageError

SAMPLINGS = [
    Sampling(1.0),
    Sampling(0.6, top_k=7),
    Sampling(1.4, top_p=0.8),
    Sampling(0.8, top_k=20, top_p=0.9),
    Sampling(0.7, top_k=9, top_p=0.7, order="filter_first"),
    Sampling(0.9, min_p=0.1),
    Sampling(1.3, top_k=20, top_p=0.9, min_p=0.2, order="filter_first"),
]


def logits(rows: int, vocabulary: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, vocabulary)) * 2)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_away_from_cuts_the_distribution_is_the_sampled_one(sampling: Sampling) -> None:
    z = logits(20, 40)
    laws, expected = laws_of(z, sampling, 1e-9), warp(z, sampling)
    conditional = expected.masked_fill(laws.near, 0.0)
    conditional = conditional / conditional.sum(-1, keepdim=True)
    torch.testing.assert_close(laws.probs, conditional.nan_to_num(0.0), rtol=0, atol=1e-12)
    assert ((expected > 0) == ((laws.probs > 0) | (laws.near & (expected > 0)))).all()


@given(seed=st.integers(0, 1000), index=st.integers(1, len(SAMPLINGS) - 1))
def test_logits_that_are_off_by_less_than_the_margin_never_make_a_token_impossible(seed: int, index: int) -> None:
    """What a sampler with rounded logits can draw is kept or near a cut; what it cannot draw is cut or near one."""
    margin, sampling = 0.02, SAMPLINGS[index]
    z = logits(10, 60, seed)
    noise = (torch.from_numpy(np.random.default_rng(seed + 1).random(z.shape)) - 0.5) * margin
    sampled, laws = warp(z + noise, sampling), laws_of(z, sampling, margin)
    assert ((laws.probs > 0) | laws.near)[sampled > 0].all()
    assert (sampled > 0)[laws.probs > 0].all()


Z = torch.tensor([0.4, 0.3, 0.2, 0.06, 0.04], dtype=torch.float64).log()[None]


@pytest.mark.parametrize(
    ("sampling", "margin", "kept", "near"),
    [
        (Sampling(1.0), 0.5, [0, 1, 2, 3, 4], []),
        (Sampling(1.0, top_k=5), 0.5, [0, 1, 2, 3, 4], []),
        (Sampling(1.0, top_k=2), 0.25, [0, 1], []),
        (Sampling(1.0, top_k=2), 0.5, [0], [1, 2]),
        (Sampling(2.0, top_k=2), 1.0, [0], [1, 2]),
        (Sampling(2.0, top_k=2, order="filter_first"), 0.25, [0, 1], []),
        (Sampling(1.0, top_p=0.65), 0.25, [0, 1], [2]),  # 0.65 + 0.11 of the mass needs id 2, 0.65 - 0.11 does not
        (Sampling(2.0, top_p=0.65), 0.5, [0, 1], [2]),
        (Sampling(2.0, top_p=0.65, order="filter_first"), 0.25, [0, 1], [2]),
        (Sampling(1.0, top_p=0.999), 0.25, [0, 1, 2, 3, 4], []),
        (Sampling(1.0, top_p=0.9, top_k=3), 0.25, [0, 1, 2], []),
        (Sampling(1.0, top_p=0.8, top_k=3), 0.25, [0, 1], [2]),
        (Sampling(1.0, top_p=0.8, top_k=3), 0.5, [0], [1, 2]),
        (Sampling(1.0, min_p=0.3), 0.1, [0, 1, 2], []),
        (Sampling(1.0, min_p=0.3), 0.8, [0, 1], [2, 3]),
    ],
)
def test_ids_that_rounding_may_move_across_a_cut_are_near_it_and_no_others(
    sampling: Sampling, margin: float, kept: list[int], near: list[int]
) -> None:
    """Scaled logits are those of 40, 30, 20, 6 and 4 %; the ids that are kept share the probability at T."""
    z = Z.expand(2, -1) * (sampling.temperature if sampling.order == "temperature_first" else 1.0)
    laws = laws_of(z, sampling, margin)
    expected = (z / sampling.temperature)[:, kept].softmax(-1)
    for row in range(2):
        assert laws.near[row].nonzero()[:, 0].tolist() == near
        assert laws.probs[row].nonzero()[:, 0].tolist() == kept
    torch.testing.assert_close(laws.probs[:, kept], expected)


def test_where_every_id_is_at_the_cut_there_is_no_distribution() -> None:
    laws = laws_of(torch.zeros(1, 4), Sampling(1.0, top_k=2), 0.01)
    assert laws.near.all() and not laws.probs.any()


def test_a_nucleus_larger_than_the_sorted_ids_is_found() -> None:
    z = logits(2, 3000) * 0.01
    expected = warp(z, Sampling(1.0, top_p=0.9)) > 0
    laws = laws_of(z, Sampling(1.0, top_p=0.9), 1e-9)
    assert (expected == ((laws.probs > 0) | (laws.near & expected))).all() and laws.near.sum() < 20


def test_ids_that_a_model_forbids_are_not_near_a_cut() -> None:
    z = torch.tensor([[1.0, 0.5, -torch.inf]])
    laws = laws_of(z, Sampling(1.0), 1e-3)
    assert laws.probs[0, 2] == 0 and not laws.near.any()


def test_greedy_decoding_has_no_distribution() -> None:
    with pytest.raises(UsageError, match="temperature above 0"):
        laws_of(logits(1, 4), Sampling(0.0), 1e-3)


# Outcomes are the leading ids and one for the rest, and hold the drafter and the copy where they are known.


def test_a_small_vocabulary_has_an_outcome_for_each_id() -> None:
    z = torch.tensor([[0.0, 2.0, 1.0]])
    outcomes = outcomes_of(laws_of(z, Sampling(1.0), 1e-6), [0, 0, 0, 1], 3, 1.0)
    assert outcomes.ids.tolist() == [[1, 2, 0, -1]] and outcomes.sizes.tolist() == [[1, 1, 1, 0]]
    np.testing.assert_allclose(outcomes.p[0, :3], z.softmax(-1)[0].numpy()[[1, 2, 0]], rtol=1e-6)
    assert outcomes.of(np.array([2])).tolist() == [1] and outcomes.copies.tolist() == [2]


def test_the_other_ids_of_a_large_vocabulary_are_one_outcome() -> None:
    """Ids 0 to 99 are the least probable of the first row and the most probable of the second."""
    z = torch.linspace(0, 5, EXPLICIT + 100, dtype=torch.float64)
    z, q = torch.stack([z, z.flip(0)]), torch.zeros(2, EXPLICIT + 100, dtype=torch.float64).softmax(-1)
    context = [4, 3, 5, 4, 3, 5]
    outcomes = outcomes_of(laws_of(z, Sampling(1.0), 1e-6), context, 4, 1.0, q, unguided=z.softmax(-1))
    assert outcomes.p.shape == (2, EXPLICIT + 1) and outcomes.sizes[:, -1].tolist() == [100, 100]
    np.testing.assert_allclose(outcomes.p[:, -1], z.softmax(-1)[0, :100].sum().item(), rtol=1e-9)
    assert outcomes.q is not None and outcomes.unguided is not None
    np.testing.assert_allclose(outcomes.q[:, -1], 100 / (EXPLICIT + 100), rtol=1e-9)
    np.testing.assert_allclose(outcomes.unguided, outcomes.p, rtol=1e-9)
    assert outcomes.of(np.array([5, 5])).tolist() == [EXPLICIT, 5]
    assert outcomes.copies.tolist() == [-1, 5]  # "4 3" was followed by 5, one of the others at first; then "3 5" by 4
    assert outcomes.ids[0, 0] == EXPLICIT + 99 and outcomes.ids[1, :3].tolist() == [0, 1, 2]


def test_ids_that_were_cut_off_do_not_count_in_the_rest() -> None:
    laws = laws_of(logits(50, EXPLICIT + 100), Sampling(1.0, top_k=10), 1e-6)
    outcomes = outcomes_of(laws, [3, 3, *range(50)], 2, 1.0)
    assert (outcomes.sizes.sum(1) == 10).all() and not outcomes.sizes[:, -1].any() and not outcomes.p[:, -1].any()


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
