"""What every method keeps, whatever it drafts: the budget, the context, and greedy decoding's tokens."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.capabilities import UNORDERED, Requirement
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import Decode, decode
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.proof.distance import toy_drafter
from stridebench.harness.registry import METHODS

ROW = 5
"""Cells of a row, the forced end included."""
VARIANTS = [
    pytest.param(method, id=f"{name}-{number}", marks=pytest.mark.slow if number else ())
    for name in METHODS
    for number, method in enumerate(METHODS.get(name).variants())
    if not UNORDERED & method.requirements
]
CANVAS = (Requirement.ANY_ORDER, Requirement.GRID)


def decoded(method: Method[Any], budget: int, temperature: float = 0.0, context: int = 99, grid: bool = True) -> Decode:
    """Decode a picture of four rows with forced ends, or a text behind a prompt of two tokens."""
    picture = {"grid": (4, ROW - 1, 6)} if grid else {}
    model = Tabular("tabular", {"vocabulary": 7, "context": context, "seed": 3, **picture})
    draws = SeededDraws(0, "t", "p", 0)
    return decode(method, open_run(model, toy_drafter(model), (0, 1), Sampling(temperature), budget, draws))


@cache
def greedy(grid: bool) -> Decode:
    return decoded(METHODS.get("autoregressive")(), 4 * ROW, grid=grid)


@pytest.mark.parametrize("method", VARIANTS)
def test_a_decode_keeps_to_its_budget_and_nothing_is_drafted_beyond_it(method: Method[Any]) -> None:
    for budget in (1, 2, 3, 5):
        result = decoded(method, budget, temperature=1.0)
        assert len(result.tokens) == budget and sum(step.overshoot for step in result.steps) == 0


@pytest.mark.parametrize("method", VARIANTS)
def test_a_text_ends_with_the_context(method: Method[Any]) -> None:
    if not method.requirements & {*CANVAS}:  # the tree of SJD-PAC once held more nodes than the context
        assert len(decoded(method, 40, temperature=1.0, context=14, grid=False).tokens) == 12


@pytest.mark.parametrize("method", VARIANTS)
def test_greedy_tokens_are_those_of_autoregressive_decoding_in_no_more_steps(method: Method[Any]) -> None:
    """Texts and pictures, the forced ends of whose rows are counted."""
    if method.claim in (Claim.APPROXIMATE, Claim.DECLARED):
        return
    for grid in (True, False) if Requirement.GRID not in method.requirements else (True,):
        plain, own = greedy(grid), decoded(method, 4 * ROW, grid=grid)
        assert own.tokens == plain.tokens and len(own.steps) <= len(plain.steps)
        assert sum(step.forced for step in own.steps) == 4 * grid
