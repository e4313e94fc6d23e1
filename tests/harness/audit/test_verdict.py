"""The verdict of an audit, and the bias that it says it would have seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import rel_entr

from stridebench.harness.audit.alternatives import argmax_boosted, drafted, leaking, mixed, powered, without_residual
from stridebench.harness.audit.bets import bet, biases, gains_of
from stridebench.harness.audit.outcomes import FloatArray, TokenOutcomes
from stridebench.harness.audit.verdict import LARGEST, audit, evidence_path, round_up
from stridebench.harness.cli.audit import visible_kinds
from stridebench.harness.record.metrics import REFUTED
from tests.support.samplers import bets_on, log_e, simulated


def slow(*kinds: str) -> list[Any]:
    """Kinds of bias whose bets are gains or tilts like those of another kind."""
    return [pytest.param(kind, marks=pytest.mark.slow) for kind in kinds]


@pytest.mark.parametrize("kind", ["argmax", "no repeated id", *slow("hotter", "colder", "any id")])
def test_a_visible_bias_is_refuted_in_nine_of_ten_audits(kind: str) -> None:
    """Of 300 audits at the bias that is called visible at least 87 % are refuted; at a third of it few are."""
    outcomes = simulated(400, 60, seed=5)
    result = audit([bets_on(outcomes, outcomes.p)])
    bias = biases(outcomes)[kind]
    visible, distance = result.visible[kind], np.abs(bias - outcomes.p).sum() / 2 / len(outcomes)
    assert visible is not None and 0.02 < visible < 0.3
    refuted = [
        (log_e(outcomes, mixed(outcomes.p, bias, share * visible / distance), 300)[:, -1] >= np.log(REFUTED)).mean()
        for share in (1.0, 1 / 3)
    ]
    assert refuted[0] >= 0.87 and refuted[1] < 0.2


def test_a_correct_sampler_is_not_refuted_and_a_biased_one_is() -> None:
    outcomes = simulated(400, 60)
    correct, biased = (audit([bets_on(outcomes, law)]) for law in (outcomes.p, biases(outcomes)["hotter"]))
    assert correct.verdict == "not refuted" and correct.log_e < np.log(20) and correct.tokens == 400
    assert correct.visible_tv == max(tv for tv in correct.visible.values() if tv is not None)
    assert set(correct.visible) == {"hotter", "colder", "argmax", "any id", "no repeated id", "no repeated n-gram"}
    assert biased.verdict == "refuted" and biased.best.startswith("hotter")


def penalty(outcomes: TokenOutcomes, ratio: float) -> FloatArray:
    """A repetition penalty on logits whose normaliser is 6, as engines have it: not one of the alternatives."""
    logits = np.log(np.maximum(outcomes.p, 1e-300)) + 6
    assert outcomes.stood is not None
    lowered = np.where(logits > 0, logits / ratio, logits * ratio)
    return normalised(np.exp(np.where(outcomes.stood > 0, lowered, logits)) * (outcomes.p > 0))


@pytest.mark.parametrize("ratio", [1.1, 1.3])
def test_a_repetition_penalty_is_refuted(ratio: float) -> None:
    outcomes = simulated(3000, 20, seed=4)
    result = audit([bets_on(outcomes, penalty(outcomes, ratio))])
    assert result.verdict == "refuted" and ("repeated" in result.best or "penalty" in result.best)


def test_a_bias_of_a_kind_without_a_bet_is_not_seen_and_not_among_the_kinds_that_are_named() -> None:
    """Even ids are more probable, by a total variation above what every named kind needs."""
    outcomes = simulated(2000, 40, seed=6)
    law = normalised(outcomes.p * np.where(outcomes.ids % 2 == 0, 1.8, 1.0))
    result = audit([bets_on(outcomes, law)])
    sentence = visible_kinds(result)
    assert result.verdict == "not refuted" and result.visible_tv is not None
    assert np.abs(law - outcomes.p).sum() / 2 / len(outcomes) > result.visible_tv
    named = sentence.split("a token on: ")[1].split(". ")[0]
    assert {part.rsplit(" ", 1)[0] for part in named.split(", ")} == set(result.visible)
    assert "of these kinds" in sentence and sentence.endswith("Biases of other kinds may be there")


def test_the_threshold_grows_with_the_number_of_cells() -> None:
    outcomes = simulated(400, 60)
    bets = bets_on(outcomes, outcomes.p)
    alone, many = audit([bets]), audit([bets], cells=50)
    assert many.threshold == 50 * alone.threshold and many.log_e == alone.log_e
    assert alone.visible_tv is not None and many.visible_tv is not None and many.visible_tv > alone.visible_tv


def test_an_audit_of_few_tokens_says_how_many_are_needed() -> None:
    """With so many tokens of the same kind a bias would be seen, and with a third of them it would not."""
    one = simulated(4, 60)
    bets = bets_on(one, one.p)
    few = audit([bets])
    needed = few.needed
    assert few.verdict == "inconclusive" and few.visible_tv is None and needed is not None and needed > 20
    assert audit([bets] * (needed // 4 + 1)).visible_tv is not None
    assert audit([bets] * (needed // 12)).visible_tv is None
    assert f"audit {needed:,} tokens" in visible_kinds(few)
    assert [round_up(tokens) for tokens in (3, 99, 651, 12_345)] == [3, 99, 660, 13_000]


def test_a_token_that_cannot_be_drawn_refutes_at_once() -> None:
    outcomes = simulated(4, 60)
    result = audit([replace(bets_on(outcomes, outcomes.p), impossible=1)])
    assert result.verdict == "refuted" and result.log_e == LARGEST and result.best == "a token that cannot be drawn"


def test_an_audit_of_tokens_at_a_cut_alone_says_nothing() -> None:
    outcomes = simulated(400, 60)
    bets = bet(outcomes, outcomes.ids[:, 0], np.ones(400, dtype=np.int64), outcomes.p[:, 0])
    result = audit([bets])
    assert (result.tokens, result.near, result.verdict) == (0, 400, "inconclusive")
    assert result.log_e == pytest.approx(0.0) and result.needed is None


def at_distance(outcomes: TokenOutcomes, law: Callable[[float], FloatArray], distance: float) -> FloatArray:
    """The member of a family of distributions, from p at 0 on, whose total variation a token is this."""

    def excess(strength: float) -> float:
        return float(np.abs(law(strength) - outcomes.p).sum() / 2 / len(outcomes) - distance)

    return law(brentq(excess, 0.0, 1.0, xtol=1e-4))


def normalised(weights: FloatArray) -> FloatArray:
    return weights / weights.sum(1, keepdims=True)


FAMILIES: dict[str, Callable[[TokenOutcomes, float], FloatArray]] = {
    "hotter": lambda outcomes, strength: normalised(powered(outcomes, 1 - strength)),
    "colder": lambda outcomes, strength: normalised(powered(outcomes, 1 + strength)),
    "argmax": argmax_boosted,
    "any id": leaking,
    "draft": drafted,
    "residual": lambda outcomes, strength: mixed(outcomes.p, without_residual(outcomes), strength),
}


MOST = {0.13: 240, 0.08: 590}
"""Tokens within which a total variation a token is refuted. The residual's bias of 0.08 is refuted after about 600: its
divergence of 0.0173 nats a token lets no equal mixture of 29 bets reach 1000 before 590 tokens."""


@pytest.mark.parametrize("name", ["hotter", "draft", "residual", *slow("colder", "argmax", "any id")])
def test_how_many_tokens_refute_a_bias(name: str) -> None:
    """Medians over 60 samplers are near what the best of the bets needs, and within ``MOST``."""
    outcomes = simulated(800, 200, seed=2, drafter=True)
    gains = gains_of(outcomes)
    bets = len(gains.names) + gains.tilts.shape[2]
    for distance, most in MOST.items():
        law = at_distance(outcomes, partial(FAMILIES[name], outcomes), distance)
        refuted = log_e(outcomes, law, 60) >= np.log(REFUTED)
        median = float(np.median(np.where(refuted.any(1), refuted.argmax(1) + 1, np.inf)))
        divergence = float(rel_entr(law, outcomes.p)[outcomes.p > 0].sum() / len(outcomes))
        assert median <= 1.25 * np.log(REFUTED * bets) / divergence
        assert median <= most or (name, distance) == ("residual", 0.08)


def test_the_path_of_evidence_ends_at_the_audit_and_knows_no_later_output() -> None:
    outputs = [bets_on(simulated(50, 60, seed=s), simulated(50, 60, seed=s).p, seed=s) for s in range(4)]
    path = evidence_path(outputs)
    assert [tokens for tokens, _ in path] == [50, 100, 150, 200]
    assert path[-1][1] == pytest.approx(audit(outputs).log_e) and path[:2] == evidence_path(outputs[:2])


def test_a_token_that_cannot_be_drawn_stays_in_the_path() -> None:
    outcomes = simulated(50, 60)
    bets = bets_on(outcomes, outcomes.p)
    path = evidence_path([bets, replace(bets, impossible=1), bets])
    assert path[0][1] < LARGEST and [log_e for _, log_e in path[1:]] == [LARGEST] * 2
