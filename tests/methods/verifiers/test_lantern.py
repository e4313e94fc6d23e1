"""LANTERN's acceptance, by hand and against a walk written node by node."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harness.core.capabilities import Capabilities, Grid
from harness.core.draft import Draft
from harness.proof.enumerating_draws import EnumeratingDraws
from methods.trees.structure import children
from methods.verifiers.lantern import judge, judge_greedy, verify_relaxed
from methods.verifiers.neighbourhood import Bound, Relaxed, Residual
from methods.verifiers.rejection import residual
from methods.verifiers.tree import delta_acceptance, multi_step

LINE = torch.tensor([[0.0], [1.0], [2.1], [5.0]])
"""Codes 0 to 3; nearest of each: 1 2 3, 0 2 3, 1 0 3, 2 1 0. Id 4 ends a row."""
OFFERS = Capabilities(5, 64, grid=Grid(2, 2, 4, ids=range(4)), codebook=LINE)
P = torch.tensor(
    [[0.1, 0.2, 0.3, 0.4, 0.0], [0.25, 0.25, 0.25, 0.25, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]], dtype=torch.float64
)


def rule(bound: Bound, *, k: int = 2, resid: Residual = "code", greedy: bool = False) -> Relaxed:
    return Relaxed.over(OFFERS, torch.device("cpu"), k, bound, resid, greedy)


def siblings(tokens: list[int], p: Tensor, made: Relaxed) -> Tensor:
    parents = torch.full((len(tokens),), -1)
    return judge(torch.tensor(tokens), None, p, children(parents, 1, len(tokens)), made).accept_probs


class TestMass:
    @pytest.mark.parametrize(
        ("x", "delta", "mass"),
        [(0, 0.1, 0.1), (0, 0.2, 0.3), (0, 0.5, 0.6), (3, 0.3, 0.7), (3, 0.29, 0.4), (2, 0.25, 0.5), (2, 0.31, 0.6)],
    )
    def test_nearest_neighbours_lend_up_to_delta(self, x: int, delta: float, mass: float) -> None:
        assert siblings([x], P[:1], rule(Bound(delta=delta))).tolist() == pytest.approx([mass])

    def test_a_bound_in_proportion(self) -> None:
        """1 lends 0.2 = 2 x 0.1 to 0; with 0.3 of 2 it would be 0.5."""
        assert siblings([0], P[:1], rule(Bound(factor=2.0))).tolist() == pytest.approx([0.3])
        assert siblings([0], P[:1], rule(Bound(factor=1.9))).tolist() == pytest.approx([0.1])

    def test_an_id_that_is_no_code_is_judged_alone(self) -> None:
        assert siblings([4], P[2:], rule(Bound(delta=1.0))).tolist() == [1.0]
        assert siblings([4], P[:1], rule(Bound(delta=1.0))).tolist() == [0.0]


class TestWhatARefusalLeaves:
    @pytest.mark.parametrize(
        ("resid", "left"),
        [
            ("p_minus_q", [0.0, 2 / 9, 3 / 9, 4 / 9, 0.0]),
            ("relaxed", [0.0, 0.0, 3 / 7, 4 / 7, 0.0]),
            ("code", [0.25, 0.25, 0.25, 0.25, 0.0]),
        ],
    )
    def test_of_a_chosen_node(self, resid: Residual, left: list[float]) -> None:
        """0 with delta 0.2: code 1 lends; the released code takes out all three nearest, and goes on uniformly."""
        made = rule(Bound(delta=0.2), resid=resid)
        found = judge(torch.tensor([0]), None, P[:1], torch.tensor([[0]]), made).residuals[0]
        assert found.tolist() == pytest.approx(left)

    @pytest.mark.parametrize(
        ("resid", "left"), [("p_minus_q", [0, 0, 0.0, 1.0, 0]), ("code", [0, 2 / 9, 3 / 9, 4 / 9, 0])]
    )
    def test_of_a_drawn_one(self, resid: Residual, left: list[float]) -> None:
        q = torch.tensor([[0.2, 0.4, 0.3, 0.1, 0.0]], dtype=torch.float64)
        made = rule(Bound(delta=0.2), resid=resid)
        found = judge(torch.tensor([0]), q, P[:1], torch.tensor([[0]]), made).residuals[0]
        assert found.tolist() == pytest.approx(left)

    def test_the_second_sibling_is_judged_by_it(self) -> None:
        """After 0 and its lender 1 are gone, 2 has 3/7 and no neighbour within 0.2 but those, who lend nothing."""
        assert siblings([0, 2], P[:1], rule(Bound(delta=0.2), resid="relaxed")).tolist() == pytest.approx([0.3, 3 / 7])


class TestWithoutNeighbours:
    @pytest.mark.parametrize("resid", ["code", "relaxed", "p_minus_q"])
    def test_chosen_nodes_are_point_masses(self, resid: Residual) -> None:
        x, parents = torch.tensor([3, 1, 0, 2]), torch.tensor([-1, -1, 0, 0])
        found = judge(x, None, P, children(parents, 3, 2), rule(Bound(delta=0.0), resid=resid))
        torch.testing.assert_close(found.accept_probs, delta_acceptance(x, parents, P))

    @pytest.mark.parametrize("resid", ["code", "relaxed", "p_minus_q"])
    def test_drawn_ones_are_tried_by_rejection(self, resid: Residual) -> None:
        x, parents = torch.tensor([3, 1, 0]), torch.tensor([-1, -1, 0])
        q = torch.tensor([[0.2, 0.4, 0.3, 0.1, 0.0]] * 3, dtype=torch.float64)
        kids = children(parents, 2, 2)
        found, exact = judge(x, q, P, kids, rule(Bound(delta=0.0), resid=resid)), multi_step(x, q, P, kids)
        torch.testing.assert_close(found.accept_probs, exact.accept_probs)
        torch.testing.assert_close(found.residuals, exact.residuals)


class TestGreedy:
    @pytest.mark.parametrize(
        ("x", "delta", "taken"), [(3, 0.0, 1.0), (0, 0.5, 1.0), (0, 0.3, 0.0), (2, 0.2, 1.0), (2, 0.1, 0.0)]
    )
    def test_taken_where_its_neighbourhood_is_the_likeliest(self, x: int, delta: float, taken: float) -> None:
        best = torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
        found = judge_greedy(torch.tensor([x]), P[:1], best, torch.tensor([[0]]), rule(Bound(delta=delta)))
        assert found.accept_probs.tolist() == [taken]

    def test_the_closing_token_is_the_likeliest_all_the_same(self) -> None:
        logits = P[:2].clamp_min(1e-9).log()
        best = torch.zeros_like(P[:2]).scatter(1, logits.argmax(1, keepdim=True), 1.0)
        draft, draws = Draft(torch.tensor([0]), parents=torch.tensor([-1])), EnumeratingDraws()
        draws.replay([], [], {})
        kids = children(draft.explicit_parents, 2, 1)
        acceptance = verify_relaxed(draft, logits, best, draws, rule(Bound(delta=0.1), greedy=True), kids)
        assert (acceptance.read().path, acceptance.read().token) == ((), 3)


def test_a_residual_of_equal_laws_is_the_law() -> None:
    torch.testing.assert_close(residual(P[:1], P[:1]), P[:1])
