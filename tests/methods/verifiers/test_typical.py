"""Typical acceptance and the redrawn rule, by hand and by enumeration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod

import pytest
import torch

from stridebench.harness.core.draft import Acceptance, DeclaredRows, Draft, Path
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.proof.enumerate import EnumeratingDraws
from stridebench.methods.verifiers.typical import (
    LossyRule,
    overruled,
    threshold,
    unsure_of,
    verify_fly,
    verify_redrawn,
    verify_typical,
)
from tests.support.enumerated import enumerated


def outcomes(act: Callable[[EnumeratingDraws], Acceptance]) -> dict[tuple[tuple[int, ...], int], float]:
    """Probability of each path and next token."""
    weights: dict[tuple[tuple[int, ...], int], float] = {}
    for weight, acceptance in enumerated(act):
        read = acceptance.read()
        weights[read.path, read.token] = weights.get((read.path, read.token), 0.0) + weight
    return weights


P = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.4, 0.3, 0.3], [0.2, 0.2, 0.6], [1.0, 0.0, 0.0]]).double()
TREE = Draft(torch.tensor([0, 1, 0, 2]), parents=torch.tensor([-1, -1, 1, 0]))
"""Tokens 0 and 1; below the second 0, below the first 2."""


class TestTypical:
    def test_the_threshold_by_hand(self) -> None:
        """ln 2 of entropy halves alpha; a point mass meets epsilon."""
        p = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
        torch.testing.assert_close(threshold(p, 0.25, 0.4), torch.tensor([0.2, 0.25]))

    def test_the_longest_path_of_likely_tokens(self) -> None:
        """0.5 and 0.3 pass; below them 0.4 passes and 0.1 does not, so the longer path has the second token."""
        limit = torch.full((5,), 0.25).double()
        acceptance = verify_typical(TREE, P, SeededDraws(0, "t", "p", 0), limit, greedy=True).read()
        assert acceptance.path == (1, 2) and acceptance.token == 2 and acceptance.expected == 2

    def test_of_paths_of_equal_length_the_most_probable_wins(self) -> None:
        """Of two full paths, 0.5 x 0.1 is less than 0.3 x 0.4. Without the leaves, 0.5 is more than 0.3."""
        low = torch.full((5,), 0.05).double()
        assert verify_typical(TREE, P, SeededDraws(0, "t", "p", 0), low, greedy=True).read().path == (1, 2)
        high = torch.tensor([0.05, 0.9, 0.9, 0.9, 0.9]).double()
        assert verify_typical(TREE, P, SeededDraws(0, "t", "p", 0), high, greedy=True).read().path == (0,)

    def test_the_next_token_is_drawn_where_the_path_stops(self) -> None:
        limit = torch.ones(5).double()
        weights = outcomes(lambda draws: verify_typical(TREE, P, draws, limit, greedy=False))
        assert weights == pytest.approx({((), 0): 0.5, ((), 1): 0.3, ((), 2): 0.2})


class TestRedrawn:
    def test_a_rejected_draft_may_be_drawn_again(self) -> None:
        one = Draft(torch.tensor([1]), parents=torch.tensor([-1]))
        weights = outcomes(lambda draws: verify_redrawn(one, P[:2], draws, 1))
        first: dict[int, float] = {}
        for (path, token), weight in weights.items():
            first[1 if path else token] = first.get(1 if path else token, 0.0) + weight
        assert first == pytest.approx({1: 0.3 + 0.7 * 0.3, 0: 0.7 * 0.5, 2: 0.7 * 0.2})

    def test_each_leaf_has_draws_of_its_own(self) -> None:
        """Full paths with 0.05 and 0.12, tested independently; else the first token with 0.5 or the second with 0.3."""
        weights = outcomes(lambda draws: verify_redrawn(TREE, P, draws, 2))
        paths: dict[tuple[int, ...], float] = {}
        for (path, _), weight in weights.items():
            paths[path] = paths.get(path, 0.0) + weight
        long_1, long_2 = 0.5 * 0.1, 0.3 * 0.4
        assert paths[1, 2] == pytest.approx(long_2)  # the first leaf is that of the second token
        assert paths[0, 3] == pytest.approx(long_1 * (1 - long_2))
        assert paths[()] == pytest.approx(0.5 * 0.7)
        acceptance = verify_redrawn(TREE, P, SeededDraws(0, "t", "p", 0), 2)
        expected = sum(len(path) * weight for path, weight in paths.items())
        assert float(acceptance.path.expected) == pytest.approx(expected)


class TestLossyRules:
    Q = torch.tensor([[0.1, 0.3, 0.6], [0.1, 0.8, 0.1]], dtype=torch.float64)

    @pytest.mark.parametrize(
        ("rule", "rows"),
        [
            ("mixture:0.5", [[0.3, 0.3, 0.4], [0.1, 0.8, 0.1]]),
            ("cascade:0.5", [[0.1, 0.3, 0.6], [0.1, 0.8, 0.1]]),  # max q 0.6 is above max p 0.5
            ("cascade_token:0.4", [[0.1 + 0.6 * 0.5, 0.3 + 0.6 * 0.3, 0.6 * 0.2], [0.02, 0.96, 0.02]]),
        ],
    )
    def test_a_declared_distribution_by_hand(self, rule: str, rows: list[list[float]]) -> None:
        """`cascade_token` keeps the tokens of p >= 0.3 in the first row, and 0.8 alone in the second."""
        declared = LossyRule.of("speculative", rule).declared(self.Q, P[:3])
        torch.testing.assert_close(declared, torch.cat([torch.tensor(rows).double(), P[2:3]]))

    def test_a_cascade_falls_back_on_the_target(self) -> None:
        flat = torch.tensor([[0.4, 0.3, 0.3]]).double()
        assert torch.equal(LossyRule.of("speculative", "cascade:0.5").declared(flat, P[:2]), P[:2])

    def test_the_loss_of_a_step_is_added_up_over_the_rows_of_its_tokens(self) -> None:
        """Rows of total variation 0.1, 0.2 and 0; of a path of two nodes all three count, of none the first alone."""
        p = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]])
        rows = DeclaredRows(p + torch.tensor([[0.1, -0.1], [-0.2, 0.2], [0.0, 0.0]]), p)
        for nodes, loss in (([0, 1], 0.3), ([0, -1], 0.3), ([-1, -1], 0.1)):
            acceptance = Acceptance(Path(torch.tensor(nodes), torch.tensor(0), torch.zeros(())), torch.tensor(1))
            assert acceptance.read().loss is None
            acceptance = Acceptance(acceptance.path, acceptance.token)
            acceptance.declared = rows
            assert acceptance.read().loss == pytest.approx(loss)

    @pytest.mark.parametrize(
        ("rule", "expected"),
        [
            ("typical:0.4,1", {((), 0): 0.5, ((), 1): 0.3, ((), 2): 0.2}),  # 0.3 is below exp(-1.03) = 0.357
            ("relaxed:2,0.1", {((), 0): 0.5, ((), 1): 0.3, ((), 2): 0.2}),
            ("relaxed:2,0.2", {((0,), 0): 0.1, ((0,), 1): 0.8, ((0,), 2): 0.1}),
            ("thresholds:0.3,1", {((0,), 0): 0.1, ((0,), 1): 0.8, ((0,), 2): 0.1}),
            ("thresholds:1,0.5", {((0,), 0): 0.06, ((0,), 1): 0.48, ((0,), 2): 0.06, ((), 0): 2 / 7, ((), 2): 0.8 / 7}),
        ],
    )
    def test_the_draft_of_probability_0_3_by_hand(
        self, rule: str, expected: dict[tuple[tuple[int, ...], int], float]
    ) -> None:
        x = torch.tensor([1])
        weights = outcomes(lambda draws: LossyRule.of("speculative", rule).verify(x, P[:2], draws))
        assert weights == pytest.approx(expected)


def reached_by_all_tests(native: Sequence[float], unsure: Sequence[bool], window: int) -> list[float]:
    """Return the probability that the first k drafts are kept, by going over the outcomes of all tests together."""
    reached = [0.0] * len(native)
    for tests in product([True, False], repeat=len(native)):
        weight = prod(a if accepted else 1 - a for a, accepted in zip(native, tests, strict=True))
        for k, accepted in enumerate(tests):
            behind = tests[k + 1 : k + 1 + window]
            if not (accepted or (unsure[k] and len(behind) == window and all(behind))):
                break
            reached[k] += weight
    return reached


CHAINS = [
    ([0.5, 0.7, 0.2, 0.9, 0.4], [True, True, True, True, True]),
    ([0.3, 0.6, 0.8, 0.5, 0.9], [True, False, False, True, True]),
    ([0.0, 1.0, 1.0, 0.0, 1.0], [True, False, True, True, True]),
    ([0.4, 0.0, 0.7], [True, True, False]),
    ([0.6], [True]),
]
"""Acceptance probabilities, and where the target is unsure."""


class TestFly:
    @staticmethod
    def difference(native: Sequence[float], unsure: Sequence[bool], window: int) -> float:
        kept = overruled(torch.tensor(native, dtype=torch.float64), torch.tensor(unsure), window).cumprod(0)
        expected = reached_by_all_tests(native, unsure, window)
        return float((kept - torch.tensor(expected, dtype=torch.float64)).abs().max())

    @pytest.mark.parametrize(("native", "unsure"), CHAINS)
    @pytest.mark.parametrize("window", [1, 2, 3])
    def test_drafts_are_kept_as_often_as_by_all_tests_together(
        self, native: list[float], unsure: list[bool], window: int
    ) -> None:
        assert self.difference(native, unsure, window) < 1e-12

    def test_the_entropy_is_that_of_the_three_best_tokens_and_an_impossible_draft_stays_rejected(self) -> None:
        """Entropies 1.03, 0.64 and 1.09 of `P`; one more token of 0.1 would add 0.23 to the last row."""
        x = torch.tensor([1, 1, 2])
        assert unsure_of(x, P[:4], 0.65).tolist() == [True, False, True]
        four = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.5, 0.5, 0.0, 0.0]]).double()
        assert unsure_of(torch.tensor([3]), four, 1.05).tolist() == [False]  # 1.28 with the fourth
        assert unsure_of(torch.tensor([2]), four.flip(0), 0.3).tolist() == [False]  # p(x) = 0

    def test_a_rejection_that_is_not_overruled_has_the_residual(self) -> None:
        """Of a draft of 0.3 and one of 0.8 behind it: kept with 0.3 + 0.7 x 0.8, and else p without the draft."""
        draft, unsure = Draft(torch.tensor([1, 1])), torch.tensor([True, True])
        weights = outcomes(lambda draws: verify_fly(draft, P[:3], draws, unsure, 1))
        first = {token: weight for (path, token), weight in weights.items() if not path}
        assert first == pytest.approx({0: 0.14 * 5 / 7, 2: 0.14 * 2 / 7})
        once = sum(weight for (path, _), weight in weights.items() if len(path) == 1)
        assert once == pytest.approx(0.3 * 0.2)  # behind an overruled draft the second is kept for certain
