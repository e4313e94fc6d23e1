"""Jacobi decoding: one pass a step over a window that holds the last token."""

from __future__ import annotations

import pytest

from stridebench.harness.core.sampling import Sampling
from stridebench.methods.jacobi import Jacobi
from tests.support.toys import decoded


@pytest.mark.parametrize("window", [2, 5])
def test_the_window_holds_the_token_that_is_fed_again(window: int) -> None:
    steps = decoded(Jacobi(window), Sampling(1.0), 50, vocabulary=5).steps
    assert {(step.rows, step.drafted) for step in steps[:9]} == {(window, window - 1)}
    assert all(step.nfe == 1 and step.draft_nfe == 0 for step in steps)
