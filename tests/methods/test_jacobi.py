"""Jacobi decoding: a fixed point of the argmax, never slower than one token a pass."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import Decode, decode
from stridebench.harness.core.method import Method
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.registry import METHODS
from stridebench.methods.jacobi import Jacobi

Init = Literal["random", "h-repeat"]


def decoded(method: Method[Any], sampling: Sampling, budget: int, **params: Any) -> Decode:
    model = Tabular("tabular", params)
    run = open_run(model, lambda name: model, (0, 1), sampling, budget, SeededDraws(0, "t", "p", 0))
    return decode(method, run)


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=50)
@given(
    window=st.integers(2, 8),
    init=st.sampled_from(["random", "h-repeat"]),
    vocabulary=st.integers(2, 6),
    seed=st.integers(0, 1000),
    budget=st.integers(1, 20),
    eos=st.sampled_from([(), (1,)]),
)
def test_greedy_is_autoregressive_greedy_in_no_more_passes_than_tokens(
    window: int, init: Init, vocabulary: int, seed: int, budget: int, eos: tuple[int, ...]
) -> None:
    params = {"vocabulary": vocabulary, "seed": seed, "eos": eos}
    jacobi = decoded(Jacobi(window, init), Sampling(0.0), budget, **params)
    autoregressive = decoded(METHODS.get("autoregressive")(), Sampling(0.0), budget, **params)
    assert jacobi.tokens == autoregressive.tokens
    assert sum(step.nfe for step in jacobi.steps) <= len(jacobi.tokens)


@pytest.mark.parametrize("window", [2, 5])
def test_the_window_holds_the_token_that_is_fed_again(window: int) -> None:
    steps = decoded(Jacobi(window), Sampling(1.0), 50, vocabulary=5).steps
    assert {(step.rows, step.drafted) for step in steps[:9]} == {(window, window - 1)}
    assert all(step.nfe == 1 and step.draft_nfe == 0 for step in steps)


def test_the_window_shrinks_near_the_end() -> None:
    steps = decoded(Jacobi(8), Sampling(1.0), 6, vocabulary=9).steps
    room = 6
    for step in steps:
        assert step.drafted == min(7, room - 1)
        room -= step.emitted
    assert room == 0


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
