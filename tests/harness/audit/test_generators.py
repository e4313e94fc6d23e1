"""The candidate generator of transformers that drafts by argmax is biased; the sampler it feeds is not."""

from __future__ import annotations

import pytest
import torch

from stridebench.harness.audit.kernels import check_kernel, single_position, transformers_kernel

P = torch.tensor([[0.3, 0.4, 0.2, 0.1]] * 2)
Q = torch.tensor([[0.6, 0.2, 0.1, 0.1]])
TRIALS = 2000


def first_token(own_drafts: bool) -> torch.Tensor:
    """Shares of the first token over all trials, with the generator's drafts or with drafts that are drawn."""
    torch.manual_seed(0)
    counts = torch.zeros(4)
    for _ in range(TRIALS):
        drafts = torch.multinomial(Q, 1)[:, 0]
        counts[(single_position if own_drafts else transformers_kernel)(P, Q, drafts)[0]] += 1
    return counts / TRIALS


@pytest.mark.slow
def test_its_first_token_is_a_fifth_away_from_the_target_and_as_computed_by_hand() -> None:
    """argmax drafts 0: kept half of the time; else the residual (0, .2, .1, 0) / .3 is drawn. 2,000 draws: 5 sd."""
    biased = first_token(own_drafts=True)
    assert (biased - torch.tensor([0.5, 1 / 3, 1 / 6, 0.0])).abs().max() < 5 * (0.25 / TRIALS) ** 0.5
    assert (biased - P[0]).abs().sum() / 2 > 0.15
    assert (first_token(own_drafts=False) - P[0]).abs().sum() / 2 < 0.05


@pytest.mark.slow
def test_the_audit_of_kernels_refutes_it_and_passes_the_sampler() -> None:
    assert any(place.biased for place in check_kernel(single_position, 400))
    assert not any(place.biased for place in check_kernel(transformers_kernel, 400))
