"""The concurrency where a speed-up ends, on lines that are solved by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from reports.crossover import crossing, crossover


def requests(each: list[float]) -> pd.DataFrame:
    index = pd.MultiIndex.from_tuples([(f"p{i}", 0) for i in range(len(each))], names=["prompt", "repetition"])
    return pd.DataFrame({"each": each}, index=index)


def test_a_line_of_logarithms_is_crossed_where_it_reaches_one() -> None:
    levels = np.array([1.0, 4.0, 16.0])
    assert crossing(levels, np.array([2.0, 0.5, 0.5])).tolist() == [pytest.approx(2.0)]
    assert crossing(levels, np.array([[2.0, 2.0, 2.0], [1.0, 2.0, 2.0], [2.0, 1.0, 0.5]])).tolist() == [
        np.inf,
        1.0,
        4.0,
    ]
    assert crossing(levels, np.array([2.0, 0.5, 2.0])).tolist() == [pytest.approx(2.0)]  # the first time


def test_the_interval_holds_the_crossing_of_noisy_requests_and_may_be_open() -> None:
    draws = np.random.default_rng(0)
    plain = [requests(list(draws.normal(1, 0.02, 24))) for _ in range(3)]
    faster = [requests(list(draws.normal(1 / gain, 0.02, 24))) for gain in (2.0, 1.0, 0.5)]
    crossing = crossover({level: (plain[i], faster[i]) for i, level in enumerate((1, 4, 16))})
    assert crossing is not None and crossing.low is not None and crossing.high is not None
    assert crossing.low < 4 < crossing.high and crossing.low < crossing.at < crossing.high
    never = crossover({level: (plain[0], faster[0]) for level in (1, 4)})
    assert never is not None and never.at == never.low == never.high == np.inf


def test_few_prompts_have_no_interval_and_one_concurrency_has_no_crossover() -> None:
    pair = (requests([2.0] * 3), requests([1.0] * 3))
    crossing = crossover({1: pair, 4: (requests([1.0] * 3), requests([2.0] * 3))})
    assert crossing is not None and crossing.at == pytest.approx(2.0) and crossing.low is crossing.high is None
    assert crossover({1: pair}) is None
