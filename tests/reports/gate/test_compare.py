"""Comparing two runs: which cells match, and their paired differences."""

from __future__ import annotations

import io

import pandas as pd
import pytest
from rich.console import Console

from reports.gate import compare
from tests.support.fake_store import Sim, meta, record, simulate, step, suite, tiny


def test_cells_of_one_configuration_match_by_configuration_and_not_by_name() -> None:
    a, b = tiny(), tiny()
    del b.sealed_cells["m"]
    b.add(meta("m2"), [record(f"p{i}", [step(1, 2, ms=9.0)] * 5, tokens=range(10, 20)) for i in range(4)])
    comparison = compare.compare(a, b)
    ar, m = (comparison.frame[comparison.frame["cell"] == name].set_index("metric") for name in ("ar", "m"))
    assert "tau_minus_1" not in ar.index  # it drafts nothing
    assert m.loc["tau_minus_1", "difference"] == 0.0 and set(m["equal"]) == {0}
    assert m.loc["ms_per_token", "difference"] == pytest.approx(-1.5)  # 45 ms / 10 against 60 ms / 10
    assert comparison.only_a == [] and comparison.only_b == []


def test_cells_match_by_configuration_and_pair_by_prompt() -> None:
    a, b = tiny(params={"w": 1}), tiny(params={"w": 1})
    b.add(meta("m", params={"w": 1}), [record(f"p{i}", [step(0, 2, ms=9.0)] * 10) for i in range(1, 6)])
    b.add(meta("new", params={"w": 2}, label="new"), simulate(Sim(), 4))
    rows = compare.compare(a, b).frame
    m = rows[rows["label"] == "m"].set_index("metric")
    assert set(m["pairs"]) == {3} and set(m["equal"]) == {3}  # p1, p2, p3; the same tokens
    assert m.loc["tau_minus_1", ["a", "b", "difference"]].tolist() == [1.0, 0.0, -1.0]
    assert m.loc["ms_per_token", "difference"] == pytest.approx(3.0)  # 9 ms against 6
    assert pd.isna(m.loc["tau_minus_1", "low"])
    assert compare.compare(a, b).only_b == ["new (toy-135m bf16, T = 0)"]
    assert "too few prompts" in compare.markdown(compare.compare(a, b))


@pytest.mark.slow
def test_seconds_of_unlike_machines_are_not_compared() -> None:
    comparison = compare.compare(suite(6), suite(6, fingerprint="other"))
    assert "ms_per_token" not in set(comparison.frame["metric"])
    assert "f00d and other" in comparison.notes[0]
    out = io.StringIO()
    compare.terminal(comparison, Console(file=out, width=100))
    assert "seconds are not compared" in out.getvalue()


@pytest.mark.slow
def test_a_run_compared_with_itself_differs_nowhere() -> None:
    store = suite(6)
    rows = compare.compare(store, store).frame
    assert (rows["difference"] == 0).all() and (rows["equal"] == rows["pairs"]).all()


def test_passes_are_compared_where_a_step_takes_several() -> None:
    a, b = tiny(), tiny()
    assert "scr" not in set(compare.compare(a, b).frame["metric"])
    b.add(meta("m"), [record(f"p{i}", [step(1, 2, ms=12.0, nfe=2)] * 5) for i in range(4)])
    row = compare.compare(a, b).frame.set_index(["cell", "metric"]).loc[("m", "scr")]
    assert (row["a"], row["b"], row["difference"]) == (2.0, 1.0, -1.0)


def test_runs_that_count_otherwise_are_compared_in_what_is_counted_alike() -> None:
    a, b = tiny(), tiny()
    b.add(meta("m"), [record(f"p{i}", [step(1, 2, ms=12.0, nfe=2)] * 5) for i in range(4)])
    b.manifest["schema"] = 2
    comparison = compare.compare(a, b)
    assert set(comparison.frame["metric"]) == {"tau_minus_1", "acceptance", "logprob", "agreement"}
    assert "passes and seconds are not compared: the runs count differently" in comparison.notes[0]
