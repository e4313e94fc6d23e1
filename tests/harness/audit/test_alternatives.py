"""Each alternative is a distribution that is known before its token, and the one that its name says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stridebench.harness.audit.alternatives import (
    CUT,
    DRAFTED,
    GUIDED,
    HEDGE,
    OWN,
    REPEATED,
    Alternative,
    accepted_by_p,
    argmax_boosted,
    copying,
    distribution,
    drafted,
    dropped,
    leaking,
    narrowed,
    never_copying,
    noise_of_draft_reused,
    number_of_draft_reused,
    number_of_test_reused,
    penalised,
    powered,
    root_accepted,
    swapped,
    twice_cut,
    usable,
    without_residual,
)
from stridebench.harness.audit.bets import biases, gains_of
from stridebench.harness.audit.outcomes import FloatArray, TokenOutcomes
from stridebench.harness.errors import ContractError
from stridebench.harness.registry import ALTERNATIVES
from tests.support.one_by_one import register
from tests.support.samplers import simulated, without_drafter

P, Q = np.array([[0.5, 0.3, 0.2, 0.0]]), np.array([[0.1, 0.6, 0.3, 0.0]])
SMALL = TokenOutcomes(P, np.array([[1.0, 1, 1, 0]]), np.array([[4, 2, 9, -1]]), np.array([2]), Q, 0.7)


@pytest.mark.parametrize("top_p", [1.0, 0.8])
@pytest.mark.parametrize("vocabulary", [30, 700])
def test_every_alternative_is_a_distribution_over_what_can_be_drawn(vocabulary: int, top_p: float) -> None:
    outcomes = simulated(20, vocabulary, drafter=True, top_p=top_p)
    alternatives = usable(outcomes)
    assert set(alternatives) == {*OWN, *REPEATED, *DRAFTED, *(CUT if top_p < 1 else ())}
    for name, alternative in alternatives.items():
        law = distribution(name, alternative, outcomes)
        np.testing.assert_allclose(law.sum(1), outcomes.p.sum(1), rtol=1e-12)  # 0 where all ids are at a cut
        assert (law >= HEDGE * outcomes.p - 1e-15).all() and not law[outcomes.p == 0].any()


def test_bets_of_alternatives_and_tilts_have_mean_one_under_p() -> None:
    outcomes = simulated(20, 700, drafter=True)
    gains = gains_of(outcomes)
    np.testing.assert_allclose(np.einsum("na,naj->nj", outcomes.p, np.exp(gains.log)), 1.0, rtol=1e-9)
    np.testing.assert_allclose(np.einsum("na,nad->nd", outcomes.p, gains.tilts), 0.0, atol=1e-12)
    assert np.abs(gains.tilts).max() <= 1


def test_the_bet_on_likelier_drafts_leaves_out_those_that_are_as_likely() -> None:
    outcomes = replace(SMALL, q=np.array([[0.5, 0.2, 0.3, 0.0]]))
    np.testing.assert_allclose(gains_of(outcomes).tilts[0, :3, -1], [-0.2, -0.2, 0.8])


def test_alternatives_by_hand() -> None:
    np.testing.assert_allclose(powered(SMALL, 2.0)[0], [0.25, 0.09, 0.04, 0])
    np.testing.assert_allclose(narrowed(SMALL, 0.6)[0], [0.5, 0.3, 0, 0])
    np.testing.assert_allclose(twice_cut(SMALL)[0], [0.5, 0.3, 0, 0])
    np.testing.assert_allclose(argmax_boosted(SMALL, 0.5)[0], [0.75, 0.15, 0.1, 0])
    np.testing.assert_allclose(copying(SMALL, 0.5)[0], [0.25, 0.15, 0.6, 0])
    np.testing.assert_allclose(leaking(SMALL, 0.3)[0], [0.45, 0.31, 0.24, 0])
    np.testing.assert_allclose(drafted(SMALL, 0.5)[0], [0.3, 0.45, 0.25, 0])


def test_alternatives_of_repeated_ids_by_hand() -> None:
    half = np.log(2)  # a logit that is lower by log 2 halves a probability
    stood, in_output = np.array([[3.0, 0, 1, 0]]), np.array([[2.0, 0, 0, 0]])
    outcomes = replace(SMALL, stood=stood, stood_in_output=in_output)
    np.testing.assert_allclose(penalised(outcomes, half)[0], [0.25, 0.3, 0.1, 0])
    np.testing.assert_allclose(penalised(outcomes, half, in_output=True)[0], [0.25, 0.3, 0.2, 0])
    np.testing.assert_allclose(penalised(outcomes, half, by_count=True)[0], [0.0625, 0.3, 0.1, 0])
    np.testing.assert_allclose(never_copying(outcomes, 1.0)[0], [0.625, 0.375, 0, 0])
    assert set(REPEATED) <= set(usable(outcomes)) and not set(REPEATED) & set(usable(SMALL))


def test_alternatives_of_drafters_by_hand() -> None:
    """p - q is positive at the first outcome alone, so the residual is that outcome."""
    np.testing.assert_allclose(without_residual(SMALL)[0], [0.1 + 0.4 * 0.5, 0.3 + 0.4 * 0.3, 0.2 + 0.4 * 0.2, 0])
    kept = np.array([0.1, np.sqrt(0.3 * 0.6), np.sqrt(0.2 * 0.3), 0])
    np.testing.assert_allclose(root_accepted(SMALL)[0], kept + np.array([1 - kept.sum(), 0, 0, 0]))
    kept = np.array([0.1 * 0.2, 0.6, 0.3, 0])
    np.testing.assert_allclose(swapped(SMALL)[0], kept + np.array([1 - kept.sum(), 0, 0, 0]))


FOUR = np.array([[0.4, 0.1, 0.3, 0.2]]), np.array([[0.1, 0.5, 0.1, 0.3]])
"""p and q of ids 7, 3, 5 and all others; the residual is on 7 and 5."""


@pytest.mark.parametrize(
    "alternative", [accepted_by_p, number_of_draft_reused, number_of_test_reused, noise_of_draft_reused]
)
def test_alternatives_of_reused_randomness_are_what_such_samplers_draw(alternative: Alternative) -> None:
    """300,000 tokens of a sampler with the bug: frequencies are off by 0.0009 at one standard deviation."""
    rng, (p, q), runs = np.random.default_rng(0), FOUR, 300_000
    order = np.array([1, 2, 0, 3])  # by id, the others last
    a, b = p[0, order], q[0, order]
    noise, first, test = rng.exponential(size=(runs, 4)), rng.random(runs), rng.random(runs)
    raced = alternative is noise_of_draft_reused
    x = (noise / b).argmin(1) if raced else np.searchsorted(b.cumsum(), first, side="right")
    residual = np.maximum(a - b, 0) / np.maximum(a - b, 0).sum()
    accepts, correction = np.minimum(a / b, 1)[x], residual
    if alternative is accepted_by_p:
        accepts, correction = a[x], a
    number = {accepted_by_p: rng.random(runs), number_of_draft_reused: first, number_of_test_reused: test}
    with np.errstate(divide="ignore"):
        again = (noise / residual).argmin(1) if raced else np.searchsorted(correction.cumsum(), number[alternative])
    y = np.where(test < accepts, x, np.minimum(again, 3))
    outcomes = TokenOutcomes(p, np.ones((1, 4)), np.array([[7, 3, 5, -1]]), np.array([-1]), q)
    weights = alternative(outcomes)[0]
    np.testing.assert_allclose(weights.sum(), 1.0, rtol=1e-12)
    np.testing.assert_allclose(np.bincount(y, minlength=4) / runs, weights[order], atol=0.003)
    assert np.abs(weights - p[0]).sum() / 2 > 0.008


def test_the_rest_is_spread_over_its_ids() -> None:
    outcomes = TokenOutcomes(np.array([[0.6, 0.4]]), np.array([[1.0, 4.0]]), np.array([[3, -1]]), np.array([-1]))
    np.testing.assert_allclose(powered(outcomes, 2.0)[0], [0.36, 4 * 0.01])
    np.testing.assert_allclose(leaking(outcomes, 1.0)[0], [0.2, 0.8])
    np.testing.assert_allclose(copying(outcomes, 0.5), outcomes.p)


def test_without_a_drafter_its_alternatives_are_left_out() -> None:
    assert set(usable(without_drafter(SMALL))) == {*OWN, *CUT}


def test_guidance_dropped_by_hand() -> None:
    unguided = np.array([[0.1, 0.1, 0.2, 0.6]])  # the last outcome cannot be drawn
    guided = replace(without_drafter(SMALL), unguided=unguided)
    assert set(usable(guided)) == {*OWN, *CUT, *GUIDED}
    np.testing.assert_allclose(dropped(guided, "unguided", 0.5)[0], [0.375, 0.275, 0.35, 0])
    assert "no guidance" in biases(guided) and guided.rows(1).unguided is not None


def test_a_package_adds_an_alternative(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, ALTERNATIVES, "flat", lambda outcomes: outcomes.sizes)  # type: ignore[arg-type]
    assert gains_of(SMALL).names[-1] == "flat"


def test_an_alternative_that_sees_later_tokens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def sees(outcomes: TokenOutcomes) -> FloatArray:
        return outcomes.p * (1 + outcomes.p[-1:])

    register(monkeypatch, ALTERNATIVES, "sees", sees)  # type: ignore[arg-type]
    with pytest.raises(ContractError, match="'sees' gives other weights where later tokens are left out"):
        gains_of(simulated(6, 10))


@pytest.mark.parametrize("wrong", [P[:, :2], -P, P * np.nan])
def test_weights_that_are_no_weights_are_refused(wrong: FloatArray) -> None:
    with pytest.raises(ContractError, match="the alternative 'wrong' gave weights"):
        distribution("wrong", lambda outcomes: wrong, SMALL)
