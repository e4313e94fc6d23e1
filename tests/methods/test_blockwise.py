"""Blockwise decoding: its rules by hand, the law of the exact one, one pass a block."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harness.backbones.toy.tabular import Tabular
from harness.core.draws import SeededDraws
from harness.core.loop import Decode, decode
from harness.core.method import Claim
from harness.core.run import open_run
from harness.core.sampling import Sampling, warp
from harness.errors import UsageError
from harness.proof.cases import CASES, GRID_CASES
from harness.proof.distance import distance
from harness.proof.mutants import try_mutants
from harness.proof.prove import EXACT
from harness.registry import METHODS
from methods.blockwise import Blockwise

EXACTLY = Blockwise(levels=3)
Z = torch.tensor([[1.0, 3, 2, 0], [0, 1, 2, 3], [3, 2, 1, 0], [0, 0, 0, 1]]).double()
"""Most probable: 1, 3, 0."""


def decoded(method: Any, sampling: Sampling, budget: int = 40, **params: Any) -> Decode:
    model = Tabular("tabular", params)
    return decode(method, open_run(model, lambda name: model, (0, 1), sampling, budget, SeededDraws(0, "t", "p", 0)))


@pytest.mark.parametrize("case", [*CASES, *GRID_CASES], ids=str)
def test_the_exact_rule_keeps_the_law(case: Any) -> None:
    assert distance(EXACTLY, case) < EXACT


def test_every_planted_bug_is_caught() -> None:
    found = try_mutants(Blockwise, [EXACTLY])
    assert len(found) == 2 and all(mutant.caught for mutant in found), found


@pytest.mark.parametrize(
    ("how", "kept"),
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
def test_rules_by_hand(how: dict[str, Any], kept: list[int]) -> None:
    """Proposals 1, 2 and 2: the first is the likeliest, the second the second one, the third the third one."""
    method = Blockwise(**how)
    assert method.accept_probs(torch.tensor([1, 2, 2]), Z, warp(Z, Sampling(0.0))).tolist() == kept


def test_only_the_exact_rule_without_a_least_block_claims_the_law() -> None:
    assert EXACTLY.claim is Claim.SAME_LAW
    for how in ({"rule": "top"}, {"rule": "distance"}, {"least": 2}):
        assert Blockwise(**how).claim is Claim.APPROXIMATE  # type: ignore[arg-type]


def test_greedy_text_is_the_targets_in_fewer_passes() -> None:
    plain = decoded(METHODS.get("autoregressive")(), Sampling(0.0), vocabulary=2)
    ours = decoded(EXACTLY, Sampling(0.0), vocabulary=2)
    assert ours.tokens == plain.tokens and sum(step.nfe for step in ours.steps) < 0.8 * len(plain.tokens)


def test_a_block_is_one_pass_of_a_chain() -> None:
    for step in decoded(EXACTLY, Sampling(1.0), vocabulary=4).steps[:-3]:
        assert (step.nfe, step.draft_nfe, step.drafted, step.rows, step.levels) == (1, 0, 3, 4, 3)
        assert step.emitted == step.accepted + 1


def test_a_least_block_has_so_many_tokens() -> None:
    steps = decoded(Blockwise(least=3), Sampling(0.0), vocabulary=6).steps
    assert min(step.emitted for step in steps[:-1]) == 3


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"top": 0}, "top 0"),
        ({"distance": -1}, "distance -1"),
        ({"least": 0}, "least 0"),
        ({"levels": -2}, "levels is -2"),
    ],
)
def test_parameters_out_of_range(how: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Blockwise(**how)


def test_more_levels_than_heads() -> None:
    with pytest.raises(UsageError, match="7 levels are asked for and the drafter has 4 heads"):
        decoded(Blockwise(levels=7), Sampling(0.0))
