"""The gate: exit codes, power against a worse drafter, false alarms, and what its files say."""

from __future__ import annotations

import copy
import hashlib
import json
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from harness.errors import StoreError, UsageError
from reports.gate.decision import COUNTS, FAIL_ALPHA, counts_of, gate, junit, make_baseline, markdown
from tests.support.fake_store import FakeStore, Sim, empty, meta, record, simulate, step


def run(*sims: Sim, prompts: int = 24, repetitions: int = 1) -> FakeStore:
    store = empty()
    store.add(meta("ar", role="baseline"), simulate(Sim(gamma=0), prompts, repetitions))
    for i, sim in enumerate(sims):
        store.add(meta(f"c{i}", label=f"method {i}"), simulate(sim, prompts, repetitions))
    return store


def test_an_identical_rerun_passes() -> None:
    store = run(Sim(), Sim(0.3))
    document = json.loads(json.dumps(make_baseline(store)))  # as it comes back from a file
    result = gate(store, document)
    assert (result.verdict, result.exit_code) == ("pass", 0)
    assert [row.cell for row in result.rows] == ["c0", "c0", "c1", "c1"]  # the baseline itself drafts nothing
    assert all(row.why == "identical" and row.identical == 24 for row in result.rows)


def test_a_noisy_drafter_fails_and_is_named() -> None:
    """-10 % acceptance at 40 prompts, other seeds throughout: 58 of 60 seeds tried fail."""
    before = run(Sim(0.6, seed=1), Sim(0.3, seed=2), prompts=40)
    after = run(Sim(0.54, seed=3), Sim(0.3, seed=2), prompts=40)
    result = gate(after, make_baseline(before))
    assert (result.verdict, result.exit_code) == ("fail", 1)
    assert {row.cell for row in result.rows if row.verdict == "fail"} == {"c0"}
    assert all(row.verdict == "pass" for row in result.rows if row.cell == "c1")
    assert "method 0" in markdown(result)


@pytest.mark.slow
def test_power_and_false_alarm_rate_are_as_stated() -> None:
    """Ten pairs of runs, 24 prompts with two seeds each: -10 % acceptance fails 8 or more, A/A at most 1.

    Larger simulations: of 60 such drops all failed; of A/A pairs 4.2 % (600 of 6 prompts), 0.8 % (400 of
    12), 2.3 % (400 of 24) and 1.0 % (400 of 40) did.
    """
    pairs = [
        gate(
            run(Sim(rate, seed=100 * i + 1), repetitions=2),
            make_baseline(run(Sim(0.6, seed=100 * i + 2), repetitions=2)),
        ).verdict
        for rate in (0.54, 0.6)
        for i in range(10)
    ]
    assert pairs[:10].count("fail") >= 8
    assert pairs[10:].count("fail") <= 1


def test_three_prompts_are_inconclusive_even_when_identical() -> None:
    store = run(Sim(), prompts=3)
    result = gate(store, make_baseline(store))
    assert (result.verdict, result.exit_code) == ("inconclusive", 4)
    assert "3 prompts; 6 are needed" in result.rows[0].why


def test_another_suites_baseline_is_an_error_that_names_the_keys() -> None:
    baseline = make_baseline(run(Sim()))
    other = run(Sim())
    other.manifest["key"] = {**other.manifest["key"], "seed": 1, "prompts": {"toy": "xyz"}}
    with pytest.raises(UsageError) as error:
        gate(other, baseline)
    assert "seed is 0 there and 1 here" in str(error.value)
    assert "prompts.toy is 'abc' there and 'xyz' here" in str(error.value)
    assert error.value.exit_code == 2


def test_a_missing_cell_or_sample_is_an_error() -> None:
    baseline = make_baseline(run(Sim(), Sim(0.4)))
    gone = run(Sim())
    result = gate(gone, baseline)
    assert (result.verdict, result.exit_code) == ("error", 2)
    assert [row.cell for row in result.rows if row.verdict == "error"] == ["c1"]
    records = simulate(Sim(), 24)
    failed = [*records[:-1], record("p023", [], status="failed")]
    short = run(Sim(), Sim(0.4)).add(meta("c0"), failed)
    assert "p023 (0)" in gate(short, baseline).rows[0].why


def test_a_smaller_limit_compares_the_shared_prompts() -> None:
    baseline = make_baseline(run(Sim()))
    few = run(Sim(), prompts=3)
    few.manifest["key"] = {**few.manifest["key"], "tasks": [{"name": "toy", "limit": 3}], "prompts": {"toy": "xyz"}}
    result = gate(few, baseline)
    assert (result.verdict, result.exit_code) == ("inconclusive", 4)
    assert {row.prompts for row in result.rows} == {3}


def test_damaged_baselines_are_refused() -> None:
    store = run(Sim())
    edited = copy.deepcopy(make_baseline(store))
    edited["cells"]["c0"]["samples"][0][2] += 1
    with pytest.raises(StoreError, match="checksum"):
        gate(store, edited)
    with pytest.raises(StoreError, match="stride baseline make"):
        gate(store, {"schema": 1})


def test_a_run_without_drafts_makes_no_baseline() -> None:
    with pytest.raises(UsageError, match="drafts"):
        make_baseline(run())


def test_an_improvement_is_reported_and_passes() -> None:
    before, after = run(Sim(0.4, seed=1), prompts=40), run(Sim(0.6, seed=2), prompts=40)
    result = gate(after, make_baseline(before))
    assert result.verdict == "pass"
    assert {row.why for row in result.rows} == {"improved"}


def fixed(accepted: list[int], steps: int = 10) -> FakeStore:
    """Prompt i accepts accepted[i] of the two drafted in each of ten steps."""
    records = [record(f"p{i}", [step(n, 2)] * steps) for i, n in enumerate(accepted)]
    return empty().add(meta("c0"), records)


def test_changes_equal_the_count_by_hand() -> None:
    result = gate(fixed([1] * 8), make_baseline(fixed([2] * 8)))
    tau, acceptance = result.rows
    assert (tau.before, tau.after, tau.change) == (2.0, 1.0, -0.5)
    assert (acceptance.before, acceptance.after, acceptance.change) == (1.0, 0.5, -0.5)  # 1 of 2 tested
    assert result.verdict == "fail" and tau.p == 0.0


def test_a_large_insignificant_drop_is_inconclusive() -> None:
    """Eight prompts lose a third of their accepted tokens on average, but half of them gain."""
    result = gate(fixed([2, 0] * 4), make_baseline(fixed([1, 2] * 4)))
    for row in result.rows:
        assert row.change < -0.1 and row.p > FAIL_ALPHA
        assert row.verdict == "inconclusive" and "more prompts" in row.why
    assert result.exit_code == 4


def test_a_drafter_that_died_fails() -> None:
    assert gate(fixed([0] * 8), make_baseline(fixed([2, 1] * 4))).verdict == "fail"
    silent = empty().add(meta("c0"), [record(f"p{i}", [step(0, 0)] * 10) for i in range(8)])
    result = gate(silent, make_baseline(fixed([2] * 8)))
    assert [row.verdict for row in result.rows] == ["fail", "inconclusive"]
    assert result.verdict == "fail"


def test_a_baseline_that_accepted_nothing_cannot_get_worse() -> None:
    result = gate(fixed([0] * 7 + [1]), make_baseline(fixed([0] * 8)))
    assert result.verdict == "pass"
    assert "nothing to lose" in result.rows[0].why


def test_a_wide_interval_is_inconclusive_and_says_what_it_could_see() -> None:
    before, after = run(Sim(0.6, seed=1), prompts=8), run(Sim(0.6, seed=2), prompts=8)
    result = gate(after, make_baseline(before))
    assert result.verdict == "inconclusive"
    assert result.rows[0].visible > 0.1


def test_junit_counts_its_cases() -> None:
    before = run(Sim(0.6, seed=1), Sim(0.3, seed=2), prompts=40)
    result = gate(run(Sim(0.45, seed=3), prompts=40), make_baseline(before))
    suite = ET.fromstring(junit(result))
    counts = [suite.get(word) for word in ("tests", "failures", "errors", "skipped")]
    assert suite.tag == "testsuite" and counts == ["3", "2", "1", "0"]
    assert len(suite.findall("testcase/failure")) == 2 and len(suite.findall("testcase/error")) == 1
    assert suite.find("testcase/failure").get("message").startswith("a drop beyond the margin")


def test_a_sample_without_steps_counts_nothing() -> None:
    store = empty().add(meta("c0"), [record("p0", [step(1, 2)] * 3), record("p1", [])])
    counts = counts_of(store.cell("c0"))
    assert counts.loc[("p1", 0), COUNTS].tolist() == [0] * len(COUNTS)
    assert counts.loc[("p0", 0), COUNTS].tolist() == [6, 3, 3, 6, 6]


def test_six_prompts_are_decided_and_five_are_not() -> None:
    verdicts = {n: {row.verdict for row in gate(fixed([1] * n), make_baseline(fixed([2] * n))).rows} for n in (5, 6)}
    assert verdicts == {5: {"inconclusive"}, 6: {"fail"}}
    few = gate(fixed([1] * 5), make_baseline(fixed([2] * 5)), min_prompts=5)
    assert few.verdict == "inconclusive" and few.rows[0].why == "5 prompts; an interval needs 6"


def test_a_baseline_is_of_schema_one_which_later_gates_read() -> None:
    baseline = make_baseline(run(Sim()))
    assert (baseline["schema"], baseline["kind"]) == (1, "stridebench baseline")
    for other in ({"schema": 2}, {"kind": "another"}):
        with pytest.raises(StoreError, match="not a baseline of schema 1"):
            gate(run(Sim()), {**baseline, **other})


def test_a_lower_bound_of_zero_passes_within_the_margin_and_is_no_improvement() -> None:
    """One prompt in eight accepts more: a third of the resamples leave it out, none loses anything."""
    for row in gate(fixed([1] * 7 + [2]), make_baseline(fixed([1] * 8))).rows:
        assert (row.low, row.verdict, row.why) == (0.0, "pass", "within the margin")
        assert row.change > 0 and row.p > 0.9


def test_identical_cells_have_no_change() -> None:
    row = gate(fixed([1] * 8), make_baseline(fixed([1] * 8))).rows[0]
    assert (row.change, row.low, row.high, row.why) == (0.0, 0.0, 0.0, "identical")
    assert row.p is None and row.visible is None


def test_the_visible_drop_by_hand() -> None:
    """Two undecided rows of eight prompts: t at 1 - 0.025 / 2 and at 0.8, seven degrees of freedom."""
    for row in gate(fixed([1] * 8), make_baseline(fixed([2] * 8))).rows:
        assert (row.error, row.visible) == (0.0, 0.05)
    for row in gate(fixed([2, 1] * 4), make_baseline(fixed([1, 2, 2, 1] * 2))).rows:
        assert row.visible == pytest.approx(min(1.0, 2.8412 * row.error + 0.8960 * row.error), rel=1e-4)
        assert 0.3 < row.visible < 1


def test_tables_and_junit_name_each_row_with_its_figures() -> None:
    result = gate(fixed([1] * 8), make_baseline(fixed([2] * 7 + [1])))
    line = next(line for line in markdown(result).splitlines() if "| c0 | tau - 1" in line or "| tau - 1" in line)
    assert [cell.strip() for cell in line.strip("|").split("|")][3:5] == ["1.875", "1.000"]
    suite = ET.fromstring(junit(result))
    assert [case.get("name") for case in suite] == ["c0: tau_minus_1", "c0: acceptance"]
    gone = gate(empty(), make_baseline(fixed([2] * 8)))
    assert [case.get("name") for case in ET.fromstring(junit(gone))] == ["c0: present"]
    assert "change - [-, -]" in junit(gone)


def judged(word: str | None) -> FakeStore:
    """A run whose baseline cell, which drafts nothing, has a verdict."""
    store = run(Sim())
    store.manifest["cells"]["ar"]["verdict"] = store.cell("ar").meta["verdict"] = {"word": word}
    return store


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ("exact", "exact", "pass"),
        ("exact", "broken", "fail"),
        ("exact", "unverified", "fail"),
        ("exact", None, "fail"),
        ("unverified", "broken", "fail"),
        ("unverified", "exact", "pass"),
        ("broken", "broken", "pass"),
        ("approximate", "approximate", "pass"),
    ],
)
def test_a_verdict_that_got_worse_fails(before: str | None, after: str | None, verdict: str) -> None:
    result = gate(judged(after), make_baseline(judged(before)))
    assert result.verdict == verdict
    assert [row.metric for row in result.rows if row.verdict == "fail"] == ["verdict"] * (verdict == "fail")
    assert f'failures="{int(verdict == "fail")}"' in junit(result)


def resealed(document: dict[str, Any]) -> dict[str, Any]:
    """The same baseline with the checksum of what it holds now."""
    content = {key: value for key, value in document.items() if key != "sha256"}
    return {**content, "sha256": hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}


def test_a_baseline_without_verdicts_is_still_read() -> None:
    document = make_baseline(judged("exact"))
    del document["verdicts"]
    document = resealed(document)
    assert gate(judged("broken"), document).verdict == "pass"


def test_an_unfinished_run_makes_no_baseline() -> None:
    store = run(Sim())
    store.manifest["cells"]["late"] = {**meta("late"), "status": "planned"}
    with pytest.raises(UsageError, match=r"not finished: 1 of 1 cells are missing \(late\)"):
        make_baseline(store)


def test_control_characters_leave_junit_well_formed() -> None:
    store = run(Sim())
    document = make_baseline(store)
    document["cells"]["c0"]["label"] = "a \x1b[31mred\x00 method"
    document = resealed(document)
    assert r"a \x1b[31mred\x00 method" in str(ET.fromstring(junit(gate(store, document)))[0].get("name"))
