"""Blockwise decoding: its rules by hand, the output distribution of the exact rule, one pass a block."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stridebench.harness.core.sampling import Sampling, warp
from stridebench.harness.errors import UsageError
from stridebench.methods.blockwise import Blockwise
from tests.support.toys import decoded

Z = torch.tensor([[1.0, 3, 2, 0], [0, 1, 2, 3], [3, 2, 1, 0], [0, 0, 0, 1]]).double()
"""Most probable: 1, 3, 0."""


@pytest.mark.parametrize(
    ("params", "accepted"),
    [
        ({}, [1, 0, 0]),
        ({"rule": "top", "top": 1}, [1, 0, 0]),
        ({"rule": "top", "top": 2}, [1, 1, 0]),
        ({"rule": "top", "top": 3}, [1, 1, 1]),
        ({"rule": "distance", "distance": 0}, [1, 0, 0]),
        ({"rule": "distance", "distance": 1}, [1, 1, 0]),
        ({"rule": "distance", "distance": 2}, [1, 1, 1]),
        ({"least": 2}, [1, 0, 0]),
        ({"least": 3}, [1, 1, 0]),
        ({"least": 9}, [1, 1, 1]),
    ],
)
def test_rules_by_hand(params: dict[str, Any], accepted: list[int]) -> None:
    """Proposals 1, 2 and 2 have ranks 1, 2 and 3 in their rows."""
    method = Blockwise(**params)
    assert method.accept_probs(torch.tensor([1, 2, 2]), Z, warp(Z, Sampling(0.0))).tolist() == accepted


def test_a_block_takes_one_pass_over_a_chain() -> None:
    for step in decoded(Blockwise(levels=3), Sampling(1.0), 40, vocabulary=4).steps[:-3]:
        assert (step.nfe, step.draft_nfe, step.drafted, step.rows, step.levels) == (1, 0, 3, 4, 3)
        assert step.emitted == step.accepted + 1


def test_a_step_emits_at_least_the_least_block() -> None:
    steps = decoded(Blockwise(least=3), Sampling(0.0), vocabulary=6).steps
    assert min(step.emitted for step in steps[:-1]) == 3


def test_more_levels_than_heads_are_refused() -> None:
    with pytest.raises(UsageError, match="7 levels are asked for and the drafter has 4 heads"):
        decoded(Blockwise(levels=7), Sampling(0.0))
