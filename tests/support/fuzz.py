"""Hypothesis as a fuzzer: a few examples that never change in the default tests, or many for a stated time.

`STRIDE_FUZZ_S` is the time of each target of `tox -e faults` in seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from tests.support.cli import Outcome

SECONDS = float(os.environ.get("STRIDE_FUZZ_S", "60"))
BATCH = 20
"""Examples between two looks at the clock."""
SHORT_OR_LONG = pytest.mark.parametrize("long", [False, pytest.param(True, marks=pytest.mark.faults)], ids=str)
"""For tests that fuzz a little by default and long in `tox -e faults`."""
NAMES = ("sjd", "jacobi", "speculative", "tabular", "all", "fp32", "name", "limit", "at", "temperature")
"""Words that mean something in a suite."""

words = st.sampled_from(NAMES) | st.text(max_size=8)
numbers = st.sampled_from([0, -1, 1, 3, 0.5, 1e308, float("nan"), float("inf"), 2**70]) | st.integers()
plain = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
"""Values of JSON and YAML."""


def fuzz(strategy: st.SearchStrategy[Any], check: Callable[[Any], None], examples: int, long: bool) -> None:
    """Try ``check`` on ``examples`` values of the strategy, or ``long`` for `SECONDS`; it raises where it fails."""
    once = hypothesis.settings(
        max_examples=BATCH if long else examples,
        database=None,
        derandomize=not long,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
    )

    @once
    @hypothesis.given(strategy)
    def examined(value: Any) -> None:
        check(value)

    if not long:
        examined()
        return
    end, seed = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        hypothesis.seed(seed)(examined)()
        seed += 1


def assert_one_message(outcome: Outcome, codes: tuple[int, ...] = (0, 1, 2)) -> None:
    """The exit code is one of those; an error is one message without a traceback."""
    assert outcome.code in codes, outcome
    assert "Traceback" not in outcome.err, outcome
    if outcome.code == 2 and not outcome.out.startswith("error: "):  # its table has the reasons
        assert outcome.err.count("stride: ") + outcome.err.count("Error: ") == 1, outcome
