"""Rejection sampling of a chain: what is left after a rejection, in both forms of a drafter's distribution."""

from __future__ import annotations

import pytest
import torch

from stridebench.harness.core.draws import SeededDraws
from stridebench.methods.verifiers.rejection import residual, verify_chain

P = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.0, 1.0, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4]])


@pytest.mark.parametrize("tokens", [[0, 1, 3], [1, 0, 2], [3, 3, 3]])
def test_ids_are_point_masses(tokens: list[int]) -> None:
    ids = torch.tensor(tokens)
    assert torch.equal(residual(P, ids), residual(P, torch.zeros_like(P).scatter(1, ids[:, None], 1.0)))


@pytest.mark.parametrize("seed", range(40))
def test_a_chain_of_point_masses_is_one_of_their_rows(seed: int) -> None:
    """Whether none, some or all of the drafts are accepted."""
    p = torch.rand(4, 6, generator=torch.Generator().manual_seed(seed)) ** 3
    p[2] = torch.eye(6)[seed % 6]  # a greedy row
    p = p / p.sum(1, keepdim=True)
    x = p[:3].argmax(1) if seed % 2 else torch.tensor([seed % 6, 1, seed % 6])
    sides = [verify_chain(x, q, p, SeededDraws(seed, "t", "p", 0)) for q in (None, torch.eye(6)[x])]
    first, second = (side.read() for side in sides)
    assert (first.path, first.token) == (second.path, second.token)
    assert first.expected == pytest.approx(second.expected)
