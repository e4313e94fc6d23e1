"""The concurrency where a speed-up ends, on lines that are solved by hand."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

from stridebench.reports.crossover import CrossoverComparison, crossing, crossover, in_turn, speed_up_table


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


def test_the_table_has_tokens_a_second_beside_the_speed_up_and_says_where_they_hang_on_the_slowest() -> None:
    pair = (requests([1.0] * 6), requests([0.5] * 6))
    table = speed_up_table("a over b", CrossoverComparison({1: pair, 4: pair}, {1: (10.0, 20.0), 4: (40.0, None)}))
    assert table.rows[0] == ["1", "10.0", "20.0", "2.00 [2.00, 2.00]"] and table.rows[1][:3] == ["4", "40.0", "-"]
    assert table.notes == [
        "x plain: seconds a token of the same requests; the speed-up has not ended at a concurrency of 4",
        "6 requests at a concurrency of 4: tokens/s hang on the slowest",
    ]


def test_speed_ups_that_are_equal_at_two_concurrencies_raise_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert crossing(np.array([1.0, 2.0, 4.0]), np.array([1.5, 1.5, np.nextafter(1.5, 1)])).tolist() == [np.inf]


def test_seconds_count_from_when_a_place_of_the_loop_was_free() -> None:
    columns = ["prompt", "sent_ns", "ended_ns", "session"]
    rows = [("a", 0, 4, 0), ("b", 3, 5, 0), ("c", 4, 9, 0), ("d", 8, 10, 0), ("e", 2, 7, 1)]
    frame = pd.DataFrame(rows, columns=columns).assign(repetition=0, status="ok", warmup=False, output_tokens=1)
    frame[["sent_ns", "ended_ns"]] *= 10**9
    seconds = in_turn(frame, 2)["seconds"].droplevel("repetition")
    assert seconds.to_dict() == {"a": 4, "b": 5, "c": 5, "d": 5, "e": 7}
