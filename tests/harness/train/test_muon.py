"""Muon in the type of the machine's products, against torch's own in bf16."""

from __future__ import annotations

import torch
from torch import nn

from stridebench.harness.train.muon import Muon, orthogonal

SHAPES = ((12, 20), (20, 12), (12, 20), (8, 8))


def weights() -> list[nn.Parameter]:
    draws = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=draws)) for shape in SHAPES]


def test_steps_are_those_of_torch() -> None:
    """To the rounding of bf16, after steps whose momentum and gradients differ."""
    ours, expected = weights(), weights()
    optimisers = Muon(ours, lr=0.1), torch.optim.Muon(expected, lr=0.1, weight_decay=0.0)
    for step in range(3):
        draws = torch.Generator().manual_seed(step + 1)
        for one, other in zip(ours, expected, strict=True):
            one.grad = torch.randn(one.shape, generator=draws)
            other.grad = one.grad.clone()
        for optimiser in optimisers:
            optimiser.step()
    for one, other, start in zip(ours, expected, weights(), strict=True):
        moved = (other - start).norm()
        assert moved > 0.3 and (one - other).norm() < 0.03 * moved


def test_a_step_without_a_gradient_changes_nothing() -> None:
    one = weights()
    Muon(one, lr=0.1).step()
    assert all(torch.equal(a, b) for a, b in zip(one, weights(), strict=True))


def test_singular_values_come_near_one() -> None:
    values = torch.linalg.svdvals(orthogonal(torch.stack([weights()[0].detach(), weights()[2].detach()])).float())
    assert values.min() > 0.5 and values.max() < 1.3
