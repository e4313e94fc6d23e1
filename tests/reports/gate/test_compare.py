"""Comparing two runs: which cells match, and their paired differences."""

from __future__ import annotations

import io
import math

import pandas as pd
import pytest
from rich.console import Console

from stridebench.harness.record.stats import Interval
from stridebench.reports.gate import compare
from tests.support.fake_store import FakeStore, Sim, empty, meta, record, simulate, step, tiny


def test_cells_match_by_configuration_and_not_by_name_and_pair_by_prompt() -> None:
    a, b = tiny(params={"w": 1}), tiny(params={"w": 1})
    del b.sealed_cells["m"], b.body["cells"]["m"]
    b.add(meta("m2", params={"w": 1}), [record(f"p{i}", [step(0, 2, ms=9.0)] * 10) for i in range(1, 6)])
    b.add(meta("new", params={"w": 2}, label="new"), simulate(Sim(), 4))
    rows = compare.compare(a, b).frame
    ar, m = (rows[rows["cell"] == name].set_index("metric") for name in ("ar", "m"))
    assert "tau_minus_1" not in ar.index  # it drafts nothing
    assert set(m["pairs"]) == {3} and set(m["equal"]) == {3}  # p1, p2, p3; the same tokens
    assert m.loc["tau_minus_1", ["a", "b", "difference"]].tolist() == [1.0, 0.0, -1.0]
    assert m.loc["ms_per_token", "difference"] == pytest.approx(3.0)  # 9 ms against 6
    assert pd.isna(m.loc["tau_minus_1", "low"])
    only = "new (toy-135m bf16, T = 0): the nearest cell differs in w (2 and 1)"
    assert compare.compare(a, b).only_b == [only]
    assert "too few prompts" in compare.markdown(compare.compare(a, b))


def test_prompts_that_share_a_cluster_are_resampled_together() -> None:
    """Twelve prompts in four clusters are too few for an interval; without clusters they are enough."""
    stores = []
    for named in (True, False):
        a, b = empty(), empty()
        for store, kept in ((a, 2), (b, 1)):
            steps = [[step(kept, 2, ms=6.0 + i % 5)] * (i + 3) for i in range(12)]
            store.add(
                meta("m"), [record(f"p{i}", one, cluster=f"c{i % 4}" if named else "") for i, one in enumerate(steps)]
            )
        stores.append(compare.compare(a, b).frame.set_index("metric").loc["ms_per_token"])
    clustered, alone = stores
    assert (clustered["prompts"], alone["prompts"]) == (4, 12)
    assert pd.isna(clustered["low"]) and alone["low"] < alone["high"]


@pytest.mark.slow
def test_seconds_of_unlike_machines_are_not_compared() -> None:
    other = tiny()
    other.body["provenance"]["fingerprint"] = "other"
    comparison = compare.compare(tiny(), other)
    assert "ms_per_token" not in set(comparison.frame["metric"])
    assert "f00d and other" in comparison.notes[0]
    out = io.StringIO()
    compare.terminal(comparison, Console(file=out, width=100))
    assert "seconds are not compared" in out.getvalue()


def test_passes_are_compared_where_a_step_takes_several() -> None:
    a, b = tiny(), tiny()
    assert "scr" not in set(compare.compare(a, b).frame["metric"])
    b.add(meta("m"), [record(f"p{i}", [step(1, 2, ms=12.0, nfe=2)] * 5) for i in range(4)])
    row = compare.compare(a, b).frame.set_index(["cell", "metric"]).loc[("m", "scr")]
    assert (row["a"], row["b"], row["difference"]) == (2.0, 1.0, -1.0)


def moved(store: FakeStore, accepted: int, prompts: int = 8) -> FakeStore:
    """The run with a method that accepts so many of four drafts in most steps."""
    steps = [[step(accepted, 4)] * 5 + [step(i % 3, 4)] for i in range(prompts)]
    return store.add(meta("m"), [record(f"p{i}", steps[i]) for i in range(prompts)])


def test_several_runs_are_compared_with_the_first_and_sorted_by_evidence() -> None:
    a, b, c = moved(empty(), 1), moved(empty(), 1), moved(empty(), 3)
    comparison = compare.compare(a, b, c)
    assert comparison.runs == ("b", "c") and set(comparison.frame["run"]) == {"b", "c"}
    tau = comparison.frame[comparison.frame["metric"] == "tau_minus_1"]
    assert tau["run"].tolist() == ["c", "b"] and tau["difference"].tolist() == pytest.approx([10 / 6, 0.0])
    known = comparison.frame["evidence"].dropna()
    assert known.is_monotonic_decreasing and known.iloc[0] > 2 and known.iloc[-1] == 0
    text = compare.markdown(comparison, ["runs/x", "runs/y", "runs/z"])
    assert "- c: runs/z" in text and "intervals exclude zero" in text and "| other - a |" in text


def test_evidence_is_the_distance_from_zero_in_standard_errors() -> None:
    assert compare.evidence(Interval(0.98, 0.49, 1.47, 9)) == pytest.approx(0.98 / 0.25)
    assert compare.evidence(Interval(1.0, 1.0, 1.0, 9)) == math.inf
    assert compare.evidence(Interval(0.0, 0.0, 0.0, 9)) == 0.0
    assert compare.evidence(Interval(1.0, None, None, 3)) is None


def test_a_cell_without_a_partner_says_why() -> None:
    a, b = tiny(), tiny(max_new_tokens=32)
    b.skip(meta("other", label="other"), "no weights")
    a.add(meta("other", label="other", method="other"), simulate(Sim(), 4))
    b.body["cells"]["other"] |= {"method": "other"}
    comparison = compare.compare(a, b)
    assert comparison.only_a == [
        "m (toy-135m bf16, T = 0): the nearest cell differs in max_new_tokens (64 and 32)",
        "other (toy-135m bf16, T = 0): skipped: no weights",
    ]
    assert comparison.only_b[0].endswith("max_new_tokens (32 and 64)")


def test_cells_of_other_seeds_are_not_paired() -> None:
    comparison = compare.compare(tiny(seed=0), tiny(seed=1))
    assert set(comparison.frame["cell"]) == {"ar"} and "seed (0 and 1)" in comparison.only_a[0]


def test_runs_of_unlike_suites_share_nothing_and_say_so() -> None:
    a, b = empty(), empty()
    a.add(meta("one", method="one", label="one"), simulate(Sim(), 4))
    b.add(meta("two", method="two", label="two"), simulate(Sim(), 4))
    text = compare.markdown(compare.compare(a, b))
    assert "No cell of equal configuration" in text
    assert "- only in a: one (toy-135m bf16, T = 0)\n- only in b: two" in text


def test_prompts_of_one_id_and_another_text_are_no_pair() -> None:
    a, b = empty(), empty()
    for store, texts in ((a, ("x", "y")), (b, ("x", "z"))):
        store.add(meta("m"), [record(f"p{i}", [step(1, 2)] * 5, prompt_text=text) for i, text in enumerate(texts)])
    comparison = compare.compare(a, b)
    assert set(comparison.frame["pairs"]) == {1} and "1 pairs are left out" in comparison.notes[0]


def test_other_weights_are_said() -> None:
    comparison = compare.compare(tiny(), tiny(fingerprint="11"))
    assert comparison.notes == ["m (toy-135m bf16, T = 0): the weights differ"] and len(comparison.frame)
