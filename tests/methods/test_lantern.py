"""LANTERN: its acceptance by hand and against the exact rules, and what its bound changes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.capabilities import Capabilities, Grid
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.loop import decode
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.proof.enumerate import EnumeratingDraws
from stridebench.methods.lantern import Lantern
from stridebench.methods.verifiers.lantern import Bound, Relaxed, Residual, judge, judge_greedy, verify_relaxed
from stridebench.methods.verifiers.tree import children, delta_acceptance, multi_step
from tests.support.feature_toys import run_on

MODEL = Tabular("tabular", {"vocabulary": 9, "grid": (4, 4, 8), "sharpness": 2.0})


def accepted(delta: float, temperature: float) -> float:
    """Accepted drafts a step, over two decodes."""
    steps = [
        step
        for seed in range(2)
        for step in decode(Lantern(k=3, delta=delta), run_on(MODEL, Sampling(temperature), 20, (0, 1), seed)).steps
    ]
    return sum(step.accepted for step in steps) / len(steps)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_more_is_accepted_with_a_larger_delta(temperature: float) -> None:
    assert accepted(0.0, temperature) < accepted(0.3, temperature) <= accepted(1.0, temperature)


LINE = torch.tensor([[0.0], [1.0], [2.1], [5.0]])
"""Codes 0 to 3; nearest of each: 1 2 3, 0 2 3, 1 0 3, 2 1 0. Id 4 ends a row."""
CAPABILITIES = Capabilities(5, 64, grid=Grid(2, 2, 4, ids=range(4)), codebook=LINE)
P = torch.tensor(
    [[0.1, 0.2, 0.3, 0.4, 0.0], [0.25, 0.25, 0.25, 0.25, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]], dtype=torch.float64
)


def rule(bound: Bound, *, k: int = 2, resid: Residual = "code", greedy: bool = False) -> Relaxed:
    return Relaxed.over(CAPABILITIES, torch.device("cpu"), k, bound, resid, greedy)


def sibling_probs(tokens: list[int], p: Tensor, relaxed: Relaxed) -> Tensor:
    parents = torch.full((len(tokens),), -1)
    return judge(torch.tensor(tokens), None, p, children(parents, 1, len(tokens)), relaxed).accept_probs


class TestMass:
    @pytest.mark.parametrize(
        ("x", "delta", "mass"),
        [(0, 0.1, 0.1), (0, 0.2, 0.3), (0, 0.5, 0.6), (3, 0.3, 0.7), (3, 0.29, 0.4), (2, 0.25, 0.5), (2, 0.31, 0.6)],
    )
    def test_nearest_neighbours_are_aggregated_up_to_delta(self, x: int, delta: float, mass: float) -> None:
        assert sibling_probs([x], P[:1], rule(Bound(delta=delta))).tolist() == pytest.approx([mass])

    def test_a_bound_proportional_to_p(self) -> None:
        """1 lends 0.2 = 2 x 0.1 to 0; with 0.3 of 2 it would be 0.5."""
        assert sibling_probs([0], P[:1], rule(Bound(factor=2.0))).tolist() == pytest.approx([0.3])
        assert sibling_probs([0], P[:1], rule(Bound(factor=1.9))).tolist() == pytest.approx([0.1])

    def test_an_id_that_is_no_code_has_no_neighbours(self) -> None:
        assert sibling_probs([4], P[2:], rule(Bound(delta=1.0))).tolist() == [1.0]
        assert sibling_probs([4], P[:1], rule(Bound(delta=1.0))).tolist() == [0.0]


class TestResidual:
    @pytest.mark.parametrize(
        ("resid", "expected"),
        [
            ("p_minus_q", [0.0, 2 / 9, 3 / 9, 4 / 9, 0.0]),
            ("relaxed", [0.0, 0.0, 3 / 7, 4 / 7, 0.0]),
            ("code", [0.25, 0.25, 0.25, 0.25, 0.0]),
        ],
    )
    def test_it_is_that_of_a_chosen_node(self, resid: Residual, expected: list[float]) -> None:
        """0 with delta 0.2 aggregates code 1; the released rule removes all nearest codes, and p is uniform then."""
        relaxed = rule(Bound(delta=0.2), resid=resid)
        residuals = judge(torch.tensor([0]), None, P[:1], torch.tensor([[0]]), relaxed).residuals[0]
        assert residuals.tolist() == pytest.approx(expected)

    @pytest.mark.parametrize(
        ("resid", "expected"), [("p_minus_q", [0, 0, 0.0, 1.0, 0]), ("code", [0, 2 / 9, 3 / 9, 4 / 9, 0])]
    )
    def test_it_is_that_of_a_drawn_node(self, resid: Residual, expected: list[float]) -> None:
        q = torch.tensor([[0.2, 0.4, 0.3, 0.1, 0.0]], dtype=torch.float64)
        relaxed = rule(Bound(delta=0.2), resid=resid)
        residuals = judge(torch.tensor([0]), q, P[:1], torch.tensor([[0]]), relaxed).residuals[0]
        assert residuals.tolist() == pytest.approx(expected)

    def test_the_second_sibling_is_tested_against_it(self) -> None:
        """After 0 and its neighbour 1 are removed, 2 has 3/7 and no other neighbour within 0.2."""
        assert sibling_probs([0, 2], P[:1], rule(Bound(delta=0.2), resid="relaxed")).tolist() == pytest.approx(
            [0.3, 3 / 7]
        )


class TestWithoutNeighbours:
    @pytest.mark.parametrize("resid", ["code", "relaxed", "p_minus_q"])
    def test_chosen_nodes_are_point_masses(self, resid: Residual) -> None:
        x, parents = torch.tensor([3, 1, 0, 2]), torch.tensor([-1, -1, 0, 0])
        judgement = judge(x, None, P, children(parents, 3, 2), rule(Bound(delta=0.0), resid=resid))
        torch.testing.assert_close(judgement.accept_probs, delta_acceptance(x, parents, P))

    @pytest.mark.parametrize("resid", ["code", "relaxed", "p_minus_q"])
    def test_drawn_nodes_are_tested_by_rejection(self, resid: Residual) -> None:
        x, parents = torch.tensor([3, 1, 0]), torch.tensor([-1, -1, 0])
        q = torch.tensor([[0.2, 0.4, 0.3, 0.1, 0.0]] * 3, dtype=torch.float64)
        kids = children(parents, 2, 2)
        relaxed, exact = judge(x, q, P, kids, rule(Bound(delta=0.0), resid=resid)), multi_step(x, q, P, kids)
        torch.testing.assert_close(relaxed.accept_probs, exact.accept_probs)
        torch.testing.assert_close(relaxed.residuals, exact.residuals)


class TestGreedy:
    @pytest.mark.parametrize(
        ("x", "delta", "accepted"), [(3, 0.0, 1.0), (0, 0.5, 1.0), (0, 0.3, 0.0), (2, 0.2, 1.0), (2, 0.1, 0.0)]
    )
    def test_a_draft_is_accepted_where_its_neighbourhood_is_the_likeliest(
        self, x: int, delta: float, accepted: float
    ) -> None:
        best = torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
        judgement = judge_greedy(torch.tensor([x]), P[:1], best, torch.tensor([[0]]), rule(Bound(delta=delta)))
        assert judgement.accept_probs.tolist() == [accepted]

    def test_the_correction_token_is_the_likeliest(self) -> None:
        logits = P[:2].clamp_min(1e-9).log()
        best = torch.zeros_like(P[:2]).scatter(1, logits.argmax(1, keepdim=True), 1.0)
        draft, draws = Draft(torch.tensor([0]), parents=torch.tensor([-1])), EnumeratingDraws()
        draws.replay([], [], {})
        kids = children(draft.explicit_parents, 2, 1)
        acceptance = verify_relaxed(draft, logits, best, draws, rule(Bound(delta=0.1), greedy=True), kids)
        assert (acceptance.read().path, acceptance.read().token) == ((), 3)
