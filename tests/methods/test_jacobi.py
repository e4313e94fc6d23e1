"""Jacobi decoding: a fixed point of the argmax, never slower than one token a pass."""

from __future__ import annotations

from typing import Any

import pytest

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import Decode, decode
from stridebench.harness.core.method import Method
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.methods.jacobi import Jacobi


def decoded(method: Method[Any], sampling: Sampling, budget: int, **params: Any) -> Decode:
    model = Tabular("tabular", params)
    run = open_run(model, lambda name: model, (0, 1), sampling, budget, SeededDraws(0, "t", "p", 0))
    return decode(method, run)


@pytest.mark.parametrize("window", [2, 5])
def test_the_window_holds_the_token_that_is_fed_again(window: int) -> None:
    steps = decoded(Jacobi(window), Sampling(1.0), 50, vocabulary=5).steps
    assert {(step.rows, step.drafted) for step in steps[:9]} == {(window, window - 1)}
    assert all(step.nfe == 1 and step.draft_nfe == 0 for step in steps)


def test_guesses_are_accepted_as_often_as_expected() -> None:
    """A guess is right with its own probability p, so the mean number accepted is a mean of p."""
    steps = decoded(Jacobi(2), Sampling(1.0), 40, vocabulary=2).steps
    assert all(0 <= step.expected <= 1 for step in steps)
    drafted = [step for step in steps if step.drafted]
    assert sum(step.accepted for step in drafted) == pytest.approx(
        sum(step.expected for step in drafted), abs=4 * 0.5 * len(drafted) ** 0.5
    )


def test_ends_of_rows_are_at_their_places() -> None:
    result = decoded(Jacobi(9), Sampling(1.0), 42, vocabulary=7, grid=[6, 6, 6])
    assert [place for place, token in enumerate(result.tokens) if token == 6] == [6, 13, 20, 27, 34, 41]
    assert sum(step.forced for step in result.steps) == 6
