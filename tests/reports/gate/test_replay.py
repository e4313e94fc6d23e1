"""The gate along stored texts, on scores made by hand, and its power by a small simulation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stridebench.harness.errors import UsageError
from stridebench.reports.gate.replay import replay_gate
from tests.power import simulated_gate

Rows = list[tuple[str, int, int, float]]


def scores(change: float = 0.0, spread: float = 0.0, prompts: int = 24) -> Rows:
    """48 positions a prompt, valued 0.5 to 0.8; changed by a share that differs from prompt to prompt."""
    rng = np.random.default_rng(0)
    values = 48 * rng.uniform(0.5, 0.8, size=prompts)
    values = values * (1 + change + spread * rng.normal(size=prompts))
    return [(f"p{i}", 0, 48, float(value)) for i, value in enumerate(values)]


def baseline(rows: Rows) -> dict[str, Any]:
    return {"replay": {"cells": {"c": {"label": "eagle2", "scores": rows}}, "skipped": {"sjd": "it has no drafter"}}}


def test_equal_scores_pass_and_cells_without_a_replay_are_listed() -> None:
    result = replay_gate(baseline(scores()), {"c": scores()}, {})
    assert (result.verdict, result.rows[0].why, result.exit_code) == ("pass", "identical", 0)
    assert result.notes == ("not replayed: sjd: it has no drafter",)


def test_a_negligible_loss_never_fails_however_certain() -> None:
    for change, spread in ((0.0, 1e-5), (-0.001, 1e-6)):
        result = replay_gate(baseline(scores()), {"c": scores(change, spread)}, {})
        assert (result.verdict, result.rows[0].why) == ("pass", "a loss of 0.5% is excluded") and result.loss == 0.01


def test_a_loss_of_one_percent_fails_and_the_visible_drop_is_smaller() -> None:
    result = replay_gate(baseline(scores()), {"c": scores(-0.01, 0.005)}, {})
    row = result.rows[0]
    assert result.verdict == "fail" and row.change == pytest.approx(-0.01, abs=0.003)
    assert row.visible < 0.01
    assert replay_gate(baseline(scores()), {"c": scores(-0.01, 0.005)}, {}, tolerated=0.03).verdict == "pass"


def test_what_cannot_be_replayed_is_an_error_and_what_is_no_number_inconclusive() -> None:
    assert replay_gate(baseline(scores()), {}, {"c": "weights are not here"}).rows[0].why == "weights are not here"
    assert replay_gate(baseline(scores()), {}, {}).verdict == "error"
    assert replay_gate(baseline(scores()), {"c": scores()[:-1]}, {}).verdict == "error"
    shorter = [(prompt, repetition, 47, value) for prompt, repetition, _, value in scores()]
    assert replay_gate(baseline(scores()), {"c": shorter}, {}).verdict == "error"
    undefined = [*scores()[:-1], ("p23", 0, 48, float("nan"))]
    assert replay_gate(baseline(scores()), {"c": undefined}, {}).verdict == "inconclusive"
    few = scores(prompts=5)
    assert replay_gate(baseline(few), {"c": few}, {}).verdict == "inconclusive"
    with pytest.raises(UsageError, match="gate make RUN --replay"):
        replay_gate({"cells": {}}, {}, {})


def test_the_simulated_drop_is_the_stated_one() -> None:
    both = simulated_gate.drafters(np.random.default_rng(0), simulated_gate.POOL, simulated_gate.size_of(0.03))
    assert 1 - both.changed.mean() / both.sound.mean() == pytest.approx(0.03, abs=1e-4)


@pytest.mark.audit
def test_the_power_of_a_replay_is_as_stated() -> None:
    """200 runs a change: -1 % fails in 95 of 100, an unchanged system passes, and at most 1 of 100 fails."""
    size = simulated_gate.size_of(0.01)
    for change, fails in ((size, True), (1e-5, False)):
        rngs = (np.random.default_rng([7, seed]) for seed in range(200))
        verdicts = [
            simulated_gate.replayed(simulated_gate.drafters(rng, simulated_gate.LENGTH, change)) for rng in rngs
        ]
        assert verdicts.count("fail" if fails else "pass") >= 190
        assert fails or verdicts.count("fail") <= 2
