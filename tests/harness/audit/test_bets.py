"""E-values: a correct sampler keeps Ville's bound, and the bets on several outputs add up."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from stridebench.harness.audit.bets import Bets, added_up, bet, mixture, newton_path
from stridebench.harness.audit.outcomes import TokenOutcomes
from stridebench.harness.errors import UsageError
from tests.support.samplers import bets_on, drawn, log_e, simulated, without_drafter


def assert_close(one: Bets, other: Bets) -> None:
    for name, value in vars(one).items():
        if name not in ("names", "kinds", "placed"):
            np.testing.assert_allclose(np.array(value), np.array(getattr(other, name)), atol=1e-6, err_msg=name)


@pytest.mark.parametrize("drafter", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_correct_sampler_is_rarely_suspected_however_long_one_looks(drafter: bool) -> None:
    """2,000 runs of 100 tokens, watched after every token: Ville allows 5 % above 20 and 0.1 % above 1000."""
    outcomes = simulated(100, 40, seed=3, drafter=drafter)
    highest = log_e(outcomes, outcomes.p, 2000).max(axis=1)
    assert 0.002 < (highest >= np.log(20)).mean() <= 0.05
    assert (highest >= np.log(1000)).sum() <= 2


def test_the_mean_e_value_of_a_correct_sampler_after_one_token_is_one() -> None:
    outcomes = simulated(1, 30, drafter=True)
    row = np.exp([log_e_of(outcomes, place) for place in range(30)])
    assert row @ outcomes.p[0, :30] == pytest.approx(1.0, rel=1e-9)


def log_e_of(outcomes: TokenOutcomes, place: int) -> float:
    bets = bet(outcomes, outcomes.ids[:, place], np.zeros(1, dtype=np.int64), outcomes.p[:, place])
    return float(mixture(np.array(bets.gains), newton_path(np.array(bets.tilts))[-1]))


def test_the_newton_step_bets_on_a_tilt_that_goes_on_and_loses_little_on_one_that_does_not() -> None:
    steady, fair = np.full((400, 1), 0.2), np.tile([[0.5], [-0.5]], (200, 1))
    assert newton_path(steady)[-1, 0] > 20 and newton_path(fair)[-1, 0] > -6
    assert newton_path(steady)[0, 0] == 0  # nothing is known before the first token
    assert np.isfinite(newton_path(np.full((50, 1), -1.0))).all()


def test_bets_on_two_outputs_add_up_to_those_on_both_together() -> None:
    outcomes = simulated(30, 40, drafter=True)
    together = bets_on(outcomes, outcomes.p)
    places = drawn(outcomes.p, 1)[0]
    tokens, probs = outcomes.ids[np.arange(30), places], outcomes.p[np.arange(30), places]
    halves = []
    for start, stop in ((0, 11), (11, 30)):
        zeros = np.zeros(stop - start, dtype=np.int64)
        halves.append(bet(outcomes.rows(stop, start), tokens[start:stop], zeros, probs[start:stop]))
    assert_close(added_up(halves), together)


def test_an_output_without_a_drafter_bets_nothing_on_drafters() -> None:
    outcomes = simulated(10, 40, drafter=True)
    other = bets_on(without_drafter(outcomes), outcomes.p)
    joint = added_up([bets_on(outcomes, outcomes.p), other])
    assert joint.names == bets_on(outcomes, outcomes.p).names and joint.tokens == 20
    assert joint.gains[-1] == bets_on(outcomes, outcomes.p).gains[-1] and joint.tilts[-1][-1] == 0


def test_tokens_near_a_cut_and_impossible_ones_bet_nothing() -> None:
    outcomes = simulated(4, 40)
    tokens, probs = outcomes.ids[:, 0], outcomes.p[:, 0]
    bets = bet(outcomes, tokens, np.array([1, 0, 0, 0]), probs * [1, 1, 0, 1])
    assert (bets.tokens, bets.near, bets.impossible) == (2, 1, 1) and len(bets.tilts) == 2
    same = bet(outcomes, tokens, np.array([1, 0, 1, 0]), probs)
    assert same.gains == bets.gains


def test_no_output_has_no_bets() -> None:
    with pytest.raises(UsageError, match="no output to audit"):
        added_up([])


def test_bets_are_stored_as_json() -> None:
    outcomes = simulated(5, 40, drafter=True)
    bets = bets_on(outcomes, outcomes.p)
    assert Bets.of(json.loads(json.dumps(bets.plain()))) == bets


def test_moments_are_those_of_the_gains() -> None:
    outcomes = simulated(3, 5)
    bets = bets_on(outcomes, outcomes.p)
    totals = np.zeros(len(bets.names))
    for place in range(5):
        one = bet(replace(outcomes), outcomes.ids[:, place], np.zeros(3, dtype=np.int64), outcomes.p[:, place])
        alone = [
            bet(
                outcomes.rows(k + 1),
                outcomes.ids[: k + 1, place],
                np.zeros(k + 1, dtype=np.int64),
                outcomes.p[: k + 1, place],
            )
            for k in range(3)
        ]
        gains = np.diff([np.zeros_like(totals), *(np.array(b.gains) for b in alone)], axis=0)
        np.testing.assert_allclose(gains.sum(0), one.gains, atol=1e-8)
        totals += (outcomes.p[:, place, None] * gains).sum(0)
    np.testing.assert_allclose(totals, bets.means[0], atol=1e-8)
