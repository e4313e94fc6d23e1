"""Bets on places of a step: right in what they mean, valid for every exact method, and seen where a bias is."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from dataclasses import asdict, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch

from stridebench.harness.audit.alternatives import argmax_boosted, mixed
from stridebench.harness.audit.bets import PLACED, Bets, added_up, bet, gains_of, mixture, newton_path
from stridebench.harness.audit.outcomes import PLACES, FloatArray, TokenOutcomes, step_places
from stridebench.harness.audit.verdict import Audit, audit, evidence_path
from stridebench.harness.cli.audit import visible_kinds
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.loop import start
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.proof import enumerate as enumeration
from stridebench.harness.proof.cases import Case
from stridebench.harness.proof.distance import reference_law, toy_drafter
from stridebench.harness.registry import METHODS
from tests.support.samplers import Decode, decoded_in_steps, simulated, without_drafter

Law = dict[tuple[int, ...], float]


def test_places_by_hand() -> None:
    """Steps of 1, 3, 2 and 4 tokens, of which the last are cut off, begin at 0, 1, 4 and 6."""
    marks = step_places([1, 3, 2, 4], 8)
    columns = {name: np.flatnonzero(marks[:, PLACES.index(name)]).tolist() for name in PLACES}
    assert columns == {
        "token 1 of a step": [0, 1, 4, 6],
        "token 2 of a step": [1, 5, 7],  # the step from 1 on is within the first two places of the one from 0 on
        "token 3 of a step": [2, 6],
        "token 4 of a step": [3, 7],
        "tokens 5 to 8 of a step": [4, 5, 6, 7],
        "tokens 9 to 16 of a step": [],
        "the first token behind accepted drafts": [4, 6],
        "the first token behind a rejected draft": [1],
    }


CASE = Case(2, 4, 10, Sampling(1.0))
OTHER_INPUT = {Requirement.GRID, Requirement.BIDIRECTIONAL, Requirement.ANY_ORDER}
WIDE = ("cross_regression", "specinfer", "spectr")
"""Methods with so many outcomes a step that all of their settings are slow."""
EXACT = [
    pytest.param(method, id=str(method), marks=pytest.mark.slow if number or name in WIDE else ())
    for name in METHODS
    for number, method in enumerate(dict.fromkeys(METHODS.get(name).variants()))
    if method.claim is Claim.SAME_LAW and not OTHER_INPUT & method.requirements
]


@torch.inference_mode()
def law_by_steps(method: Method[Any]) -> dict[tuple[int, ...], Law]:
    """The law of the output and of the begins of its steps: outputs by begins."""
    backbone, draws, counts = CASE.backbone(), enumeration.EnumeratingDraws(), Counter[str]()
    root = open_run(backbone, toy_drafter(backbone), CASE.prompt, CASE.sampling, CASE.length, draws)
    roots = enumeration._outcomes(draws, root, None, {}, lambda run, _: start(method, run), counts)
    decodes, laws = [(weight, node, (0,)) for weight, node in roots], defaultdict(Counter[tuple[int, ...]])
    while decodes:
        before, node, begins = decodes.pop()
        for weight, after in enumeration._steps(method, draws, node, counts):
            tokens = after.tokens[: CASE.length]
            if len(tokens) == CASE.length:
                laws[begins][tokens] += before * weight  # type: ignore[assignment]
                continue
            clocks = {key: region for key, region in after.clocks.items() if key >= len(after.run.target)}
            decodes.append((before * weight, replace(after, clocks=clocks), (*begins, len(tokens))))
    return dict(laws)  # type: ignore[arg-type]


@cache
def continuations(prefix: tuple[int, ...]) -> Law:
    law = reference_law(CASE.backbone(), CASE.prompt, CASE.length, CASE.sampling)
    return {tokens[len(prefix) :]: weight for tokens, weight in law.items() if tokens[: len(prefix)] == prefix}


@pytest.mark.parametrize("method", EXACT)
def test_the_begins_of_steps_so_far_tell_nothing_of_the_tokens_that_follow(method: Method[Any]) -> None:
    """So a bet at an offset from a begin is fair for every exact method, wherever its steps end."""
    given: dict[Any, Law] = defaultdict(Counter)  # type: ignore[arg-type]
    for begins, law in law_by_steps(method).items():
        for count, begin in enumerate(begins, start=1):
            for tokens, weight in law.items():
                given[begins[:count], tokens[:begin]][tokens[begin:]] += weight
    assert len(given) > 1
    for (_, prefix), law in given.items():
        expected, total = continuations(prefix), sum(law.values())
        scale = total / sum(expected.values())
        assert all(abs(law.get(tokens, 0) - scale * weight) < 1e-12 for tokens, weight in expected.items())


def bets_of(outcomes: TokenOutcomes, decode: Decode) -> Bets:
    row = np.arange(len(outcomes))
    placed = replace(outcomes, places=step_places(decode.emitted, len(outcomes)))
    ids, probs = outcomes.ids[row, decode.places], outcomes.p[row, decode.places]
    return bet(placed, ids, np.zeros(len(outcomes), dtype=np.int64), probs)


@pytest.mark.slow
def test_a_correct_sampler_reaches_an_e_value_of_twenty_in_at_most_one_run_of_twenty() -> None:
    """600 runs of 60 tokens, watched after every token; the bets at places alone, which the mixture dilutes."""
    outcomes = simulated(60, 20, seed=3, drafter=True)
    gains, row = gains_of(outcomes), np.arange(60)
    columns = [gains.names.index(name) for name in PLACED.values()]
    highest = np.zeros((600, 2))
    for seed in range(600):
        decode = decoded_in_steps(outcomes, seed)
        drawn = gains.log[row, decode.places]
        marks = step_places(decode.emitted, 60)
        placed = (marks[:, :, None] * drawn[:, None, columns]).reshape(60, -1).cumsum(0)
        wealth = newton_path(gains.tilts[row, decode.places])
        alone = mixture(placed, np.zeros((60, 0)))
        highest[seed] = alone.max(), mixture(drawn.cumsum(0), wealth, placed).max()
    assert (highest >= np.log(20)).mean(0).max() <= 0.05 and highest.max() > np.log(3)


def at_third_token(outcomes: TokenOutcomes, row: int, offset: int) -> FloatArray | None:
    return mixed(outcomes.p[[row]], argmax_boosted(outcomes.rows(row + 1, row), 1.0), 0.5)[0] if offset == 2 else None


def behind_accepted_drafts(outcomes: TokenOutcomes, row: int, offset: int) -> FloatArray | None:
    return mixed(outcomes.p[[row]], outcomes.sizes[[row]], 0.1)[0] if offset < -2 else None


def audits(outcomes: TokenOutcomes, decode: Decode) -> tuple[Audit, Audit]:
    """Without the drafter's distributions: with the bets at places, and without them."""
    bets = bets_of(without_drafter(outcomes), decode)
    return audit([bets]), audit([replace(bets, placed={})])


@pytest.mark.parametrize(
    ("tokens", "biased", "seed", "best"),
    [
        (2400, at_third_token, 0, "argmax at token 3 of a step"),
        (900, behind_accepted_drafts, 2, "any id at the first token behind accepted drafts"),
    ],
)
def test_a_sampler_that_is_right_except_at_one_place_is_refuted_by_the_bet_there(
    tokens: int, biased: Any, seed: int, best: str
) -> None:
    outcomes = simulated(tokens, 20, seed=8, drafter=True)
    decode = decoded_in_steps(outcomes, seed, biased=partial(biased, outcomes))
    at_places, elsewhere = audits(outcomes, decode)
    assert at_places.verdict == "refuted" and at_places.best == best
    assert elsewhere.verdict == "not refuted" and best not in elsewhere.gains


OUTCOMES = simulated(900, 20, seed=8, drafter=True)
BIASED = decoded_in_steps(OUTCOMES, 2, biased=partial(behind_accepted_drafts, OUTCOMES))


def test_the_kinds_that_are_named_include_places_if_steps_are_known() -> None:
    at_places, elsewhere = audits(OUTCOMES, decoded_in_steps(OUTCOMES, 2))
    assert at_places.verdict == "not refuted"
    assert set(at_places.visible) - set(elsewhere.visible) == {"one place of a step", "behind a step"}
    assert "one place of a step" in visible_kinds(at_places)
    assert "one place of a step" not in visible_kinds(elsewhere)


def test_bets_at_places_add_up_and_are_stored() -> None:
    first, second = (bets_of(OUTCOMES, decoded_in_steps(OUTCOMES, seed)) for seed in (3, 4))
    both = added_up([first, second, replace(first, placed={})])
    name = "argmax at token 2 of a step"
    assert both.placed[name].gain == pytest.approx(first.placed[name].gain + second.placed[name].gain)
    assert Bets.of(first.plain()) == first
    path = evidence_path([first, second])
    assert path[-1][1] == pytest.approx(audit([first, second]).log_e)


def test_bets_are_those_that_published_audits_were_measured_with() -> None:
    """Other bets are other e-values: measure `reports/data/results/audit_power.yaml` anew with the digest."""
    drawn_with_top_p = simulated(80, 30, seed=6, drafter=True, top_p=0.9)
    outcomes = replace(drawn_with_top_p, unguided=simulated(80, 30, seed=7).p)
    bets = bets_of(outcomes, decoded_in_steps(outcomes, 1))
    text = json.dumps([bets.plain(), asdict(audit([bets, bets], cells=3)), asdict(audit([bets_of(OUTCOMES, BIASED)]))])
    numbers = json.loads(text, parse_float=lambda word: f"{float(word) + 0.0:.6g}")
    assert hashlib.sha256(json.dumps(numbers).encode()).hexdigest()[:16] == "bfa2a65a17627adb"
