"""SJD++: the exact ways of carrying a draft over, and the cost of the published one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import inf
from typing import Any

import pytest
import torch

from stridebench.harness.core.loop import Decode
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.proof.cases import CASES
from stridebench.harness.proof.distance import distance
from stridebench.harness.proof.enumerate import EnumeratingDraws
from stridebench.methods.drafters.jacobi_window import Fresh, Reuse, carry_over, reuse_by_threshold
from stridebench.methods.sjdpp import SJDPlusPlus
from tests.support import toys
from tests.support.enumerated import enumerated

EXACT_MODES: tuple[Reuse, ...] = ("C", "B2", "M", "G")
SMALLEST = CASES[0]
LONGER = next(case for case in CASES if (case.vocabulary, case.length, case.seed) == (2, 5, 17))
Q = torch.tensor([[0.6, 0.3, 0.1]], dtype=torch.float64)
P = torch.tensor([[0.15, 0.25, 0.6]], dtype=torch.float64)
NEXT = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64)


def carrying(reuse: Reuse, tau: float) -> Callable[[EnumeratingDraws], Fresh]:
    """Draws one draft from Q and carries it over to P."""

    def act(draws: EnumeratingDraws) -> Fresh:
        x = draws.race(Q, [5]) if reuse == "G" else draws.categorical(Q, "draft")
        return carry_over(draws, reuse, tau)(x, Q, torch.cat([P, NEXT]), 5)

    return act


def carried(reuse: Reuse, tau: float) -> dict[tuple[float, ...], dict[int, float]]:
    """P(first draft, its recorded distribution), by distribution."""
    weights: dict[tuple[float, ...], dict[int, float]] = {}
    for weight, fresh in enumerated(carrying(reuse, tau)):
        group = weights.setdefault(tuple(round(v, 12) for v in fresh.probs[0].tolist()), {})
        token = int(fresh.tokens[0])
        group[token] = group.get(token, 0.0) + weight
    return weights


def bias(reuse: Reuse, tau: float) -> float:
    """The largest difference between P(draft | recorded distribution) and the recorded distribution."""
    worst = 0.0
    for probs, group in carried(reuse, tau).items():
        mass = sum(group.values())
        worst = max(worst, *(abs(group.get(v, 0.0) / mass - probs[v]) for v in range(3)))
    return worst


class TestOneCarry:
    @pytest.mark.parametrize("tau", [0.0, 0.5, 1.5, inf])
    @pytest.mark.parametrize("reuse", EXACT_MODES)
    def test_exact_modes_record_the_distribution_of_the_draft(self, reuse: Reuse, tau: float) -> None:
        assert bias(reuse, tau) < 1e-11

    @pytest.mark.parametrize("reuse", ["paper", "frozen"])
    def test_lossy_modes_record_another_distribution(self, reuse: Reuse) -> None:
        assert bias(reuse, 0.5) > 1e-2

    def test_carrying_everything_over_with_its_distribution_is_exact(self) -> None:
        """At tau = 0 nothing is selected, so the old distribution is right."""
        assert bias("frozen", 0.0) < 1e-12
        assert bias("paper", 0.0) > 1e-2

    def test_carrying_nothing_over_is_exact(self) -> None:
        assert bias("paper", inf) < 1e-12

    def test_the_paper_mode_by_hand(self) -> None:
        """K = {v : p > q / 2} = {1, 2}; token 0 is redrawn from p; p is recorded."""
        (group,) = carried("paper", 0.5).values()
        expected = [0.6 * 0.15, 0.3 + 0.6 * 0.25, 0.1 + 0.6 * 0.6]
        assert [group[v] for v in range(3)] == pytest.approx(expected, abs=1e-12)

    @pytest.mark.parametrize(
        ("reuse", "carried_over", "redrawn"),
        [
            ("paper", P[0].tolist(), P[0].tolist()),
            ("frozen", Q[0].tolist(), P[0].tolist()),
            ("C", [0.6 * 0.15, 0.3 + 0.6 * 0.25, 0.1 + 0.6 * 0.6], None),
            ("B2", [0.0, 0.75, 0.25], P[0].tolist()),
        ],
    )
    def test_recorded_distributions_by_hand(
        self, reuse: Reuse, carried_over: list[float], redrawn: list[float] | None
    ) -> None:
        draws = EnumeratingDraws()
        for token, expected in ((1, carried_over), (0, redrawn or carried_over)):
            draws.replay([], [], {})
            fresh = reuse_by_threshold(torch.tensor([token]), Q, P, reuse, 0.5, draws)
            assert fresh.reused.tolist() == [token == 1]
            assert fresh.probs[0].tolist() == pytest.approx(expected, abs=1e-12)

    def test_the_maximal_coupling_carries_most_over(self) -> None:
        """M carries over with probability sum min(p, q); G with a smaller one."""

        def share(reuse: Reuse) -> float:
            return sum(weight * bool(fresh.reused[0]) for weight, fresh in enumerated(carrying(reuse, 0.5)))

        assert share("M") == pytest.approx(0.15 + 0.25 + 0.1, abs=1e-12)
        assert 0.3 < share("G") < share("M")


@pytest.mark.usefixtures("unchecked")
class TestOutputDistribution:
    @pytest.mark.parametrize(
        ("reuse", "case", "tv"),
        [
            ("paper", SMALLEST, 0.028602820186),
            ("paper", LONGER, 0.024841467656),
            ("frozen", SMALLEST, 0.028602820186),
            ("frozen", LONGER, 0.088342646282),
        ],
        ids=str,
    )
    def test_the_cost_of_lossy_modes(self, reuse: Reuse, case: Any, tv: float) -> None:
        """Pinned: another number is another algorithm."""
        assert distance(SJDPlusPlus(3, reuse=reuse), case) == pytest.approx(tv, abs=1e-9)


def decoded(method: SJDPlusPlus, **params: Any) -> Decode:
    """60 tokens, or a picture of six rows of six cells, each ended by id 6."""
    return toys.decoded(method, Sampling(1.0), 42 if params else 60, **{"vocabulary": 4, "context": 200, **params})


class TestCounts:
    def test_at_threshold_zero_all_drafts_behind_the_rejected_one_are_carried_over(self) -> None:
        steps = decoded(SJDPlusPlus(6, tau=0.0)).steps
        room = 60
        for before, following in pairwise(steps):
            room -= before.emitted
            assert following.reused == min(max(0, before.drafted - before.accepted - 1), room - 1)
        assert sum(step.reused for step in steps) > 0

    def test_at_an_infinite_threshold_none_is_carried_over(self) -> None:
        assert not any(step.reused for step in decoded(SJDPlusPlus(6, tau=inf)).steps)

    @pytest.mark.parametrize("reuse", ["M", "G"])
    def test_couplings_count_unchanged_drafts(self, reuse: Reuse) -> None:
        steps = decoded(SJDPlusPlus(6, reuse=reuse)).steps
        assert sum(step.reused for step in steps) > 0
        for before, following in pairwise(steps):
            assert following.reused <= max(0, before.drafted - before.accepted - 1)

    @pytest.mark.parametrize("reuse", ["paper", "M"])
    def test_ends_of_rows_are_at_their_places_and_stay_out_of_acceptance(self, reuse: Reuse) -> None:
        result = decoded(SJDPlusPlus(9, reuse=reuse), vocabulary=7, grid=[6, 6, 6])
        assert [place for place, token in enumerate(result.tokens) if token == 6] == [6, 13, 20, 27, 34, 41]
        assert sum(step.forced for step in result.steps) == 6
        assert sum(step.forced_accepted for step in result.steps) > 0
        assert all(step.forced_accepted <= min(step.forced_tested, step.accepted) for step in result.steps)
