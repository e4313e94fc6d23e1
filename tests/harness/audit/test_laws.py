"""The distributions that are bet on are those that are sampled, and no bet rests on how a cut was rounded."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stridebench.harness.audit.laws import laws_of
from stridebench.harness.core.sampling import Sampling, warp
from stridebench.harness.errors import UsageError

SAMPLINGS = [
    Sampling(1.0),
    Sampling(0.6, top_k=7),
    Sampling(1.4, top_p=0.8),
    Sampling(0.8, top_k=20, top_p=0.9),
    Sampling(0.7, top_k=9, top_p=0.7, order="filter_first"),
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


def test_ids_at_a_cut_are_counted_apart_and_the_others_share_the_rest() -> None:
    z = torch.tensor([[3.0, 2.0, 1.0, 0.99, 0.0]], dtype=torch.float64)
    laws = laws_of(z, Sampling(1.0, top_k=3), 0.05)
    assert laws.near.tolist() == [[False, False, True, True, False]]
    torch.testing.assert_close(laws.probs[0, :2], z[0, :2].softmax(-1))
    assert not laws.probs[0, 2:].any()


def test_an_id_far_from_the_next_is_not_near_a_cut() -> None:
    z = torch.tensor([[3.0, 2.0, -1.0]], dtype=torch.float64)
    for sampling in (
        Sampling(1.0, top_k=2),
        Sampling(1.0, top_p=0.9),
        Sampling(1.0, top_k=1),
        Sampling(1.0, top_p=0.5),
    ):
        laws = laws_of(z, sampling, 0.05)
        assert not laws.near.any()
        torch.testing.assert_close(laws.probs, warp(z, sampling))


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
