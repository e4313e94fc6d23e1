"""The gate: exit codes, power against a worse drafter, false alarms, and what its files say."""

from __future__ import annotations

import copy
import json
import math
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import stdtrit

from stridebench.harness.errors import StoreError, UsageError
from stridebench.reports.gate import baseline as figures_module
from stridebench.reports.gate.baseline import figures_of, make_baseline, noise, unseeded
from stridebench.reports.gate.decision import FAIL_ALPHA, GateResult, GateRow, decide, gate, joined, worst
from stridebench.reports.gate.document import COUNTS
from stridebench.reports.gate.rendering import github_annotations, junit, markdown, sentence, table
from tests.support.fake_store import FakeStore, Sim, empty, meta, record, simulate, step

DRAFTS = ("tau_minus_1", "acceptance", "expected")


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
    assert [row.cell for row in result.rows] == ["c0"] * 5 + ["c1"] * 5  # the baseline itself is the reference
    metrics = ["tau_minus_1", "acceptance", "expected", "logprob", "score.pass@1"]
    assert [row.metric for row in result.rows] == metrics * 2
    assert all(row.why == "identical" and row.identical == 24 for row in result.rows)
    factor = stdtrit(23, 1 - FAIL_ALPHA) + stdtrit(23, 0.95)
    assert [row.visible for row in result.rows[:3]] == pytest.approx([factor * row.noise for row in result.rows[:3]])
    assert max(row.visible for row in result.rows[:3]) < 1
    largest = f"{100 * max(row.visible for row in result.rows if row.visible < 1):.2g} %"
    unlike = f"in a run that differs, these prompts show drops from {largest} on"
    assert sentence(result) == f"pass: all 10 figures are those of the baseline; {unlike}"


def test_the_first_line_of_a_pass_names_the_drop_of_figures_that_moved() -> None:
    cases = {"identical": (0.8, None), "improved": (0.5, 1.0), "excluded": (0.03, 0.9), "nothing to lose": (None, None)}
    rows = {why: GateRow("c", "m", "scr", "pass", why, visible=seen, p=p) for why, (seen, p) in cases.items()}

    def words(*names: str) -> str:
        return sentence(GateResult("pass", tuple(rows[name] for name in names)))

    assert words(*rows) == "pass: nothing dropped by more than 5 %; a drop of 3 % would have been seen"
    assert words("improved", "nothing to lose") == "pass: all 2 figures are those of the baseline or better"
    assert words("nothing to lose") == "pass: all 1 figures are those of the baseline"


@pytest.mark.slow
def test_power_and_false_alarm_rate_are_as_stated() -> None:
    """Pairs of runs, 24 prompts with two seeds each: -10 % acceptance fails half of four or more, A/A none.

    How often larger simulations fail is in `reports/data/results/gate.yaml`.
    """
    verdicts = [
        gate(run(Sim(rate, seed=seed), repetitions=2), make_baseline(run(Sim(seed=seed + 1), repetitions=2))).verdict
        for rate in (0.54, 0.6)
        for seed in (1, 101, 201, 301)
    ]
    assert verdicts[:4].count("fail") >= 2 and "fail" not in verdicts[4:]


def test_another_suites_baseline_is_an_error_that_names_the_keys() -> None:
    baseline = make_baseline(run(Sim()))
    other = run(Sim())
    other.body["key"] = {**other.body["key"], "seed": 1, "prompts": {"toy": "xyz"}}
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
    assert [(row.cell, row.identical) for row in result.rows if row.verdict == "error"] == [("c1", 0)]
    records = simulate(Sim(), 24)
    failed = [*records[:-1], record("p023", [], status="failed")]
    short = run(Sim(), Sim(0.4)).add(meta("c0"), failed)
    assert "p023 (0)" in gate(short, baseline).rows[0].why


@pytest.mark.parametrize("limit", [7, 40])
def test_a_run_may_have_more_prompts_than_the_baseline_and_must_have_all_of_its_prompts(limit: int) -> None:
    baseline, other = make_baseline(run(Sim())), run(Sim(), prompts=limit)
    other.body["key"] |= {"tasks": [{"name": "toy", "limit": limit}], "prompts": {"toy": "xyz"}}
    result = gate(other, baseline)
    if limit < 24:
        assert (result.verdict, result.exit_code) == ("error", 2)
        assert "lacks 17 of the baseline's 24 samples: p007 (0), p008 (0)" in result.rows[0].why
        assert "stride gate make" in result.rows[0].why
    else:
        assert (result.verdict, {row.prompts for row in result.rows}) == ("pass", {24})


def test_an_identical_row_in_which_no_drop_would_be_seen_is_inconclusive() -> None:
    store = fixed([2, 0, 0, 0, 0, 0, 0])  # nearly all that is accepted is of one prompt
    result = gate(store, make_baseline(store))
    rows = {row.metric: row for row in result.rows}
    assert (rows["acceptance"].visible, rows["acceptance"].verdict) == (1.0, "inconclusive")
    assert rows["acceptance"].why == "identical, but in 7 prompts no drop would have been seen; decode more of them"
    assert result.exit_code == 4


def test_a_baseline_that_was_edited_is_refused() -> None:
    store = run(Sim())
    edited = copy.deepcopy(make_baseline(store))
    edited["cells"]["c0"]["samples"][0][2] += 1
    with pytest.raises(StoreError, match="checksum"):
        gate(store, edited)


def fixed(accepted: list[int], steps: int = 10) -> FakeStore:
    """Prompt i accepts accepted[i] of the two drafted in each of ten steps."""
    records = [record(f"p{i}", [step(n, 2)] * steps) for i, n in enumerate(accepted)]
    return empty().add(meta("c0"), records)


def test_changes_equal_the_count_by_hand() -> None:
    result = gate(fixed([1] * 8), make_baseline(fixed([2] * 8)))
    tau, acceptance, expected, logprob = result.rows
    assert (tau.before, tau.after, tau.change) == (2.0, 1.0, -0.5)
    assert (acceptance.before, acceptance.after, acceptance.change) == (1.0, 0.5, -0.5)  # 1 of 2 tested
    assert (expected.before, expected.after, expected.change) == (2.0, 1.0, -0.5)
    assert (logprob.before, logprob.after, logprob.change) == (-1.0, -1.0, 0.0)
    assert logprob.why == "a loss of 5.0% is excluded"
    assert result.verdict == "fail" and tau.p == 0.0


def test_a_drafter_that_died_fails() -> None:
    assert gate(fixed([0] * 8), make_baseline(fixed([2, 1] * 4))).verdict == "fail"
    silent = empty().add(meta("c0"), [record(f"p{i}", [step(0, 0, nfe=2)] * 10) for i in range(8)])
    result = gate(silent, make_baseline(fixed([2] * 8)))
    assert [row.verdict for row in result.rows] == ["fail", "inconclusive", "fail", "fail", "pass"]
    assert [row.metric for row in result.rows][3:] == ["scr", "logprob"]
    assert result.verdict == "fail"


def test_a_baseline_that_accepted_nothing_cannot_get_worse() -> None:
    result = gate(fixed([0] * 7 + [1]), make_baseline(fixed([0] * 8)))
    assert result.verdict == "pass"
    assert "nothing to lose" in result.rows[0].why


def test_a_sample_without_steps_counts_nothing() -> None:
    store = empty().add(meta("c0"), [record("p0", [step(1, 2)] * 3), record("p1", [])])
    counts = figures_of(store, store.cell("c0"))
    assert counts.loc[("p1", 0), COUNTS].tolist() == [0] * len(COUNTS)
    assert counts.loc[("p0", 0), COUNTS].tolist() == [6, 3, 3, 6, 6]


def test_six_prompts_are_decided_and_five_are_not() -> None:
    verdicts = {n: {row.verdict for row in gate(fixed([1] * n), make_baseline(fixed([2] * n))).rows} for n in (5, 6)}
    assert verdicts == {5: {"inconclusive"}, 6: {"fail", "pass"}}
    few = gate(fixed([1] * 5), make_baseline(fixed([2] * 5)), min_prompts=5)
    assert few.exit_code == 4 and few.rows[0].why == "5 prompts; an interval needs 6"


def test_a_baseline_is_of_schema_two_which_later_gates_read() -> None:
    baseline = make_baseline(run(Sim()))
    assert (baseline["schema"], baseline["kind"]) == (2, "stridebench baseline")
    for other in ({"schema": 1}, {"schema": 3}, {"kind": "another"}):
        with pytest.raises(StoreError, match=r"not a baseline of schema 2.*stride gate make"):
            gate(run(Sim()), {**baseline, **other})


def test_one_prompt_of_eight_that_moved_gives_no_interval_and_no_pass() -> None:
    """A third of the resamples leave it out, so nothing says how far the figure moves."""
    for row in gate(fixed([1] * 7 + [2]), make_baseline(fixed([1] * 8))).rows[:3]:
        assert (row.low, row.verdict) == (None, "inconclusive") and "would not be seen in 8 prompts" in row.why
        assert row.change > 0 and row.p > 0.9


def test_identical_cells_have_no_change() -> None:
    row = gate(fixed([1] * 8), make_baseline(fixed([1] * 8))).rows[0]
    assert (row.change, row.low, row.high, row.why) == (0.0, 0.0, 0.0, "identical")
    assert row.p is None and row.visible is None  # eight equal prompts show no noise


def test_tables_and_junit_name_each_row_with_its_figures() -> None:
    result = gate(fixed([1] * 8), make_baseline(fixed([2] * 7 + [1])))
    line = next(line for line in markdown(result).splitlines() if "| c0 | tau - 1" in line or "| tau - 1" in line)
    assert [cell.strip() for cell in line.strip("|").split("|")][4:6] == ["1.875", "1.000"]
    suite = ET.fromstring(junit(result))
    assert [case.get("name") for case in suite] == ["c0: tau_minus_1", "c0: acceptance", "c0: expected", "c0: logprob"]
    assert suite.find("testcase/failure").get("message").startswith("a significant drop; change -")
    gone = ET.fromstring(junit(gate(empty(), make_baseline(fixed([2] * 8)))))
    assert [case.get("name") for case in gone] == ["c0: present"]
    assert "change - [-, -]" in gone.find("testcase/error").get("message")
    counts = [[part.get(word) for word in ("tests", "failures", "errors", "skipped")] for part in (suite, gone)]
    assert counts == [["4", "3", "0", "0"], ["1", "0", "1", "0"]]


def judged(word: str | None) -> FakeStore:
    """A run whose baseline cell, which drafts nothing, has a verdict."""
    store = run(Sim())
    store.body["cells"]["ar"]["verdict"] = store.cell("ar").facts["verdict"] = {"word": word}
    store.cell("ar").facts["label"] = "plain decoding"
    return store


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ("exact", "broken", "fail"),
        ("exact", "unverified", "fail"),
        ("exact", None, "fail"),
        ("unverified", "broken", "fail"),
        ("unverified", "exact", "pass"),
        ("broken", "broken", "pass"),
        ("approximate", "unverified", "fail"),
        (None, "unverified", "pass"),
        (None, "broken", "fail"),
    ],
)
def test_a_verdict_that_got_worse_fails(before: str | None, after: str | None, verdict: str) -> None:
    result = gate(judged(after), make_baseline(judged(before)))
    assert result.verdict == verdict
    failed = [(row.label, row.metric) for row in result.rows if row.verdict == "fail"]
    assert failed == [("plain decoding", "verdict")] * (verdict == "fail")
    assert f'failures="{int(verdict == "fail")}"' in junit(result)


def seeded(store: FakeStore, seed: int) -> FakeStore:
    """The same run under the key of another seed."""
    store.body["key"] = {**store.body["key"], "seed": seed}
    return store


def test_a_run_of_reference_decodings_makes_no_baseline() -> None:
    with pytest.raises(UsageError, match="drafts"):
        make_baseline(run())


def test_runs_that_make_no_baseline_are_refused() -> None:
    store = run(Sim())
    with pytest.raises(UsageError, match="has the seed of"):
        make_baseline(store, [run(Sim())])
    other = seeded(run(Sim()), 1)
    with pytest.raises(UsageError, match="lacks a cell like method 1"):
        make_baseline(run(Sim(), Sim(0.3)), [other])
    other.body["key"]["prompts"] = {"toy": "xyz"}
    with pytest.raises(UsageError, match=r"not a rerun of .*: prompts.toy is 'abc' there and 'xyz' here"):
        make_baseline(store, [other])
    store.body["cells"]["late"] = {**meta("late"), "status": "planned"}
    with pytest.raises(UsageError, match=r"not finished: 1 of 1 cells are missing \(late\)"):
        make_baseline(store)


def test_a_pass_needs_prompts_in_which_the_stated_loss_would_be_seen() -> None:
    """In 24 prompts a loss of 5 % does not show, A/A reruns or not."""
    reruns = [seeded(run(Sim(seed=seed)), seed) for seed in (50, 51)]
    document = json.loads(json.dumps(make_baseline(run(Sim(seed=1)), reruns)))
    noise = document["cells"]["c0"]["noise"]
    assert document["reruns"] == 2 and 0.01 < noise["acceptance"] < 0.1
    for baseline in (document, make_baseline(run(Sim(seed=1)))):
        acceptance = gate(run(Sim(seed=2)), baseline).rows[1]
        assert acceptance.verdict == "inconclusive" and acceptance.visible > 0.05
        assert acceptance.why.endswith("are needed, or `stride gate replay`")
    asked = gate(run(Sim(seed=2)), document, tolerated=0.5)
    assert (asked.rows[1].verdict, asked.loss) == ("pass", 0.5)
    assert sentence(asked).startswith(f"{asked.verdict}: ") and "50 %" in sentence(asked)
    assert markdown(asked).startswith(f"# Gate: {sentence(asked)}\n")


def undecided(change: float, low: float | None, error: float, p: float | None, prompts: int = 20) -> GateRow:
    row = GateRow("c", "m", "acceptance", "", "", change=change, low=low, error=error, p=p)
    return replace(row, prompts=prompts, clusters=20)


@pytest.mark.parametrize(
    ("row", "tolerated", "verdict", "why"),
    [
        (undecided(-0.003, -0.004, 0.001, 0.0049), None, "fail", "a significant drop"),
        (undecided(-0.003, -0.004, 0.001, 0.005), None, "pass", "a loss of 5.0% is excluded"),
        (undecided(-0.002, -0.004, 0.001, 0.0), None, "pass", "a loss of 5.0% is excluded"),
        (undecided(-0.006, -0.0059, 0.001, 0.0), 0.006, "pass", "a loss of 0.6% is excluded"),
        (undecided(-0.4, -0.5, 0.001, 0.0), 0.3, "fail", "a significant drop beyond 30.0%"),
        (undecided(-0.4, -0.5, 0.001, 0.0), 0.4, "inconclusive", "the interval reaches beyond a drop of 40.0%"),
        (undecided(-0.4, -0.5, 0.001, 0.1), None, "inconclusive", "the interval reaches beyond a drop of 5.0%"),
        (undecided(-0.01, -0.05, 0.001, 0.1), None, "inconclusive", "the interval reaches beyond a drop of 5.0%"),
        (undecided(-0.01, -0.049, 0.001, 0.1), None, "pass", "a loss of 5.0% is excluded"),
        (undecided(0.01, 0.001, 0.9, 1.0), None, "pass", "improved"),
        (undecided(0.01, None, 0.001, 1.0), None, "inconclusive", "too few prompts differ for an interval"),
        # 20 prompts x ((2.8609 + 1.7291) x 0.0108 / 0.05)^2 = 19.7, and 24.4 for an error of 0.012
        (undecided(0.0, -0.001, 0.0108, 0.5), None, "pass", "a loss of 5.0% is excluded"),
        (undecided(0.0, 0.0, 0.012, 0.5), None, "inconclusive", "a loss of 5.0% would not be seen in 20 prompts: 25"),
        (undecided(0.0, 0.0, 0.012, 0.5), 0.1, "pass", "a loss of 10.0% is excluded"),
        (
            undecided(0.0, -0.001, 0.001, 0.5),
            0.0,
            "inconclusive",
            "a loss of 0.0% would not be seen in 20 prompts: i",
        ),
    ],
)
def test_bounds_of_a_decision(row: GateRow, tolerated: float | None, verdict: str, why: str) -> None:
    (decided,) = decide([row], tolerated)
    assert (decided.verdict, decided.why[: len(why)]) == (verdict, why)
    assert decided.margin == (0.05 if tolerated is None else tolerated) and decided.p == row.p
    harmless = 0.002 if tolerated is None else tolerated
    one, power = stdtrit(19, 0.995), stdtrit(19, 0.95)
    assert decided.visible == pytest.approx(min(1.0, max(harmless, one * row.error) + power * row.error))
    needed = 20 * ((one + power) * row.error / 0.05) ** 2
    assert (f": {math.ceil(needed):,} are needed, or `stride gate replay`" in decided.why) == ("20 prompts: 2" in why)


def test_p_values_and_what_is_visible_are_adjusted_for_the_rows_without_a_verdict() -> None:
    rows = [undecided(-0.2, -0.3, 0.01, p) for p in (0.001, 0.002, 0.0024)]
    given = GateRow("c", "m", "scr", "error", "gone")
    decided = decide([given, *rows, undecided(-0.2, -0.3, 0.0, None)], None)
    assert decided[0] == given
    assert [row.p for row in decided[1:]] == pytest.approx([0.003, 0.004, 0.004, 0.0])
    assert [row.verdict for row in decided[1:]] == ["fail"] * 4
    assert "replay" not in decide([replace(rows[0], metric="logprob", error=0.9, p=0.9)], None)[0].why
    four = 0.01 * (stdtrit(19, 1 - 0.005 / 4) + stdtrit(19, 0.95))
    assert [row.visible for row in decided[1:]] == pytest.approx([four, four, four, 0.002])


@pytest.mark.parametrize(
    ("metric", "noise", "clusters", "visible", "verdict"),
    [
        ("acceptance", 0.1, 20, 0.459, "pass"),
        ("acceptance", 0.3, 20, 1.0, "inconclusive"),
        ("logprob", 0.3, 20, 1.0, "pass"),
        ("score.wer", 0.3, 20, 1.0, "pass"),
        ("acceptance", 0.3, 5, None, "pass"),
        ("acceptance", 0.1, 6, 0.6047, "pass"),
        ("acceptance", None, 20, None, "pass"),
        ("acceptance", 0.0, 20, None, "pass"),
    ],
)
def test_what_an_identical_row_would_have_shown(
    metric: str, noise: float | None, clusters: int, visible: float | None, verdict: str
) -> None:
    row = GateRow("c", "m", metric, "pass", "identical", noise=noise, clusters=clusters, prompts=9)
    (shown,) = decide([row], None)
    assert shown.visible == (visible if visible is None else pytest.approx(visible, rel=1e-3))
    assert shown.verdict == verdict
    other = replace(row, why="improved")
    assert decide([other], None)[0].verdict == "pass" and decide([replace(row, visible=0.5)], None)[0].visible == 0.5


def test_the_worst_verdict_decides_the_exit_code() -> None:
    words = ("pass", "inconclusive", "fail", "error")
    for place, word in enumerate(words):
        rows = tuple(GateRow("c", "m", "scr", other, "") for other in words[: place + 1])
        parts = [GateResult(row.verdict, (row,), (row.why,), ("new",), ("note",), place / 10) for row in rows]
        together = joined([*parts, GateResult("pass", parts[0].rows, loss=0.01)])
        assert worst(rows) == together.verdict == word
        assert together.exit_code == {"pass": 0, "fail": 1, "error": 2, "inconclusive": 4}[word]
        assert (len(together.rows), together.loss) == (place + 2, max(place / 10, 0.01))
        assert (together.removed, together.added) == (("",) * (place + 1), ("new",) * (place + 1))
        assert together.notes == ("note",) * (place + 1)


def figures(**columns: list[float]) -> pd.DataFrame:
    names = [(f"p{i}", 0) for i in range(len(next(iter(columns.values()))))]
    return pd.DataFrame(columns, index=pd.MultiIndex.from_tuples(names, names=["prompt", "repetition"]))


def test_a_figure_by_hand_and_its_error_between_equal_runs() -> None:
    figure = figures_module.TestedFigure("x", "output", "steps", minus=1.0)
    rows = figures(output=[2.0, 3.0, 4.0, 5.0, 2.0, 8.0], steps=[1.0] * 6)
    assert figure.value(rows) == 3.0
    assert figure.value(rows.assign(steps=0.0)) is None
    partly = figures(output=[2.0, np.nan, 4.0], steps=[1.0, 5.0, 1.0])
    assert figure.value(partly) == 2.0 and figure.unpaired_error(partly) is None  # of two prompts
    error = figure.unpaired_error(rows)
    # the deviation of the six outputs over the root of six is 0.93; two runs differ by root 2 times that, of 3
    assert error is not None and error == pytest.approx(2**0.5 * 0.93 / 3, rel=0.05)
    assert figure.unpaired_error(rows.assign(output=-rows["output"])) == pytest.approx(error * 3 / 5, rel=1e-6)
    even = figures(output=[0.0, 2.0, 0.0, 2.0, 1.0, 1.0], steps=[1.0] * 6)
    assert figure.unpaired_error(even) is None  # relative to zero
    assert figure.unpaired_error(rows.assign(output=1.0)) is None


def test_a_change_is_relative_to_the_size_of_the_figure_before() -> None:
    before = figures(x=[-2.0] * 6, steps=[1.0] * 6)
    for x, sign, relative in ((-3.0, 1, -0.5), (-3.0, -1, 0.5), (-1.0, 1, 0.5)):
        figure = figures_module.TestedFigure("x", "x", "one", sign=sign)
        change = figure.change(before, figures(x=[x] * 7, steps=[1.0] * 7))
        assert change is not None and (change.estimate, change.n) == (relative, 6)
    figure = figures_module.TestedFigure("x", "x", "steps", minus=-1.0)
    clustered = figure.change(before.assign(cluster=["a", "a", "b", "b", "", ""]), before.assign(x=0.0))
    assert clustered is not None and (clustered.estimate, clustered.n) == (2.0, 4)


def test_which_figures_a_cell_is_tested_by() -> None:
    plain = {"output": [4.0], "steps": [2.0], "drafted": [3.0], "nfe": [2.0], "expected": [1.0], "logprob": [-1.0]}
    plain |= {"speedup": [1.0], "score.wer": [0.1], "score.pass@1": [1.0]}
    drafts, quality = ["tau_minus_1", "acceptance", "expected"], ["logprob", "speedup", "score.wer", "score.pass@1"]
    cases: list[tuple[dict[str, float], dict[str, float], list[str]]] = [
        ({}, {}, drafts + quality),
        ({"nfe": 3.0}, {}, [*drafts, "scr", *quality]),
        ({}, {"nfe": 3.0}, [*drafts, "scr", *quality]),
        ({"drafted": 0.0}, {}, ["scr", *quality]),
        ({"expected": 0.0}, {}, [*drafts[:2], *quality]),
        ({"logprob": np.nan, "score.wer": np.nan}, {"logprob": np.nan}, [*drafts, "speedup", "score.pass@1"]),
        ({}, {"speedup": np.nan}, [*drafts, "logprob", *quality[2:]]),
        ({"speedup": np.nan}, {}, [*drafts, "logprob", *quality[2:]]),
    ]
    for before, after, names in cases:
        sides = [figures(**plain).assign(**side) for side in (before, after)]
        chosen = figures_module.tested(*sides)
        assert list(chosen) == names
        assert [chosen[name].sign for name in ("score.wer", "score.pass@1") if name in chosen][-1] == 1
    assert figures_module.tested(figures(**plain), figures(**plain))["score.wer"].sign == -1
    assert list(figures_module.tested(figures(**plain), figures(**plain)[["drafted", "steps"]])) == [
        "tau_minus_1",
        "acceptance",
    ]
    assert [name for name, figure in chosen.items() if figure.quality] == ["logprob", "score.wer", "score.pass@1"]


def test_noise_is_the_larger_of_the_spread_and_the_changes_that_were_seen() -> None:
    rng = np.random.default_rng(0)
    before = figures(output=list(4 + rng.random(12)), steps=[2.0] * 12, drafted=[0.0] * 12, nfe=[2.0] * 12)
    assert noise(before, []) == {}
    spread = noise(before, [before.assign(output=before["output"] * (1 + 0.01 * rng.normal(size=12)))])["scr"]
    assert 0.001 < spread < 0.006  # a hundredth over the root of twelve
    moved = [before.assign(output=before["output"] * times) for times in (1.1, 0.8)]
    assert noise(before, moved)["scr"] == pytest.approx(((0.1**2 + 0.2**2) / 2) ** 0.5)
    assert noise(before.iloc[:5], moved) == {}


def test_clusters_of_prompts_are_resampled_and_named() -> None:
    """Twenty-four prompts in eight clusters: copies of a prompt say nothing new."""
    records = [record(f"p{i:02d}", [step(1 + i // 3 % 2, 2)] * 10, cluster=f"t{i // 3}") for i in range(24)]
    moved = [record(f"p{i:02d}", [step(2 - i // 3 % 2, 2)] * 10, cluster=f"t{i // 3}") for i in range(24)]
    result = gate(empty().add(meta("c0"), moved), make_baseline(empty().add(meta("c0"), records)))
    assert (result.rows[0].prompts, result.rows[0].clusters) == (24, 8)
    assert "| 24 in 8 clusters |" in markdown(result)
    eight = gate(fixed([2, 1] * 4), make_baseline(fixed([1, 2] * 4))).rows[0]
    assert result.rows[0].error == pytest.approx(eight.error, rel=0.02)


def filling(passes: int, seconds: float = 10.0, **changes: Any) -> FakeStore:
    """A run whose cell drafts nothing and fills ten tokens in so many passes."""
    store = empty()
    store.add(meta("ar", role="baseline"), [record(f"p{i}", [step()] * 10) for i in range(8)])
    steps = [step(emitted=10, nfe=passes, ms=seconds)]
    return store.add(meta("c0", **changes), [record(f"p{i}", steps) for i in range(8)])


def test_cells_of_another_seed_are_reruns_and_those_served_in_another_way_are_not() -> None:
    changes: tuple[dict[str, Any], ...] = ({}, {"seed": 9}, {"way": "draft"}, {"serve": "other"}, {"rate": 2.0})
    keys = [unseeded(run().add(meta("e", engine="vllm", **change), []).cell("e")) for change in changes]
    assert keys[0] == keys[1] and len(set(keys)) == 4


def test_a_method_that_drafts_nothing_is_held_to_its_passes() -> None:
    baseline = make_baseline(filling(4))
    assert gate(filling(4), baseline).verdict == "pass"
    result = gate(filling(5), baseline)
    assert {row.metric: row.verdict for row in result.rows} == {"scr": "fail", "logprob": "pass"}
    assert (result.rows[0].before, result.rows[0].after) == (2.5, 2.0)


def test_seconds_are_compared_on_equal_machines_with_reruns_alone() -> None:
    def slower(times: float, seed: int = 0) -> FakeStore:
        return seeded(filling(4, 10.0 * times), seed)

    again = [slower(times, seed) for seed, times in ((1, 1.01), (2, 0.98), (3, 1.02))]
    baseline = make_baseline(slower(1.0), again)
    assert "speedup" not in {row.metric for row in gate(slower(2.0), make_baseline(slower(1.0))).rows}
    near = [gate(slower(1.01), baseline, tolerated) for tolerated in (None, 0.3)]
    verdicts = [row.verdict for result in near for row in result.rows if row.metric == "speedup"]
    assert verdicts == ["inconclusive", "pass"]  # the reruns move by 2 %, so 5 % would not be seen
    assert near[0].verdict == "pass" and "is not judged: a loss of 5.0% would not be seen" in near[0].notes[-1]
    assert joined(near[:1]).verdict == "pass", "as of `stride gate check`"
    assert [row.verdict for row in gate(slower(2.0), baseline).rows if row.metric == "speedup"] == ["fail"]
    (timed,) = (row for row in near[0].rows if row.metric == "speedup")
    assert timed.high - timed.change == pytest.approx(timed.change - timed.low) and timed.high > timed.change
    untimed = slower(2.0)
    untimed.sealed_cells["c0"].facts["timed"] = False
    assert "speedup" not in {row.metric for row in gate(untimed, baseline).rows}
    disturbed = slower(2.0)
    disturbed.sealed_cells["c0"].steps["wait_ns"] = 10_000_000
    result = gate(disturbed, baseline)
    assert "speedup" not in {row.metric for row in result.rows} and "its timing was disturbed" in result.notes[0]
    elsewhere = slower(2.0)
    elsewhere.body["provenance"] = {"fingerprint": "other"}
    result = gate(elsewhere, baseline)
    assert result.verdict == "pass" and "the machines differ" in result.notes[0]


def scored(values: list[float], name: str = "exact_match") -> FakeStore:
    records = [record(f"p{i:02d}", [step(1, 2)] * 5, scores={name: value}) for i, value in enumerate(values)]
    return empty().add(meta("c0"), records)


def test_a_quality_that_dropped_fails_in_the_direction_that_is_worse() -> None:
    good, bad = [0.9, 0.8, 1.0, 0.9, 0.8, 1.0, 0.9, 0.7], [0.5, 0.4, 0.6, 0.4, 0.5, 0.6, 0.5, 0.3]
    result = gate(scored(bad), make_baseline(scored(good)))
    assert [row.metric for row in result.rows if row.verdict == "fail"] == ["score.exact_match"]
    assert gate(scored(good), make_baseline(scored(bad))).verdict == "pass"
    assert gate(scored(bad, "wer"), make_baseline(scored(good, "wer"))).verdict == "pass"
    assert gate(scored(good, "wer"), make_baseline(scored(bad, "wer"))).verdict == "fail"


def test_quality_without_reruns_is_inconclusive_where_a_drop_of_five_percent_is_not_excluded() -> None:
    """Twelve prompts, three of which changed each way: no drop is seen, and one of 20 % is possible."""
    before, after = [1.0] * 8 + [0.0] * 4, [1.0] * 6 + [0.0] * 3 + [1.0] * 2 + [0.0]
    row = next(row for row in gate(scored(after), make_baseline(scored(before))).rows if row.metric.startswith("score"))
    assert (row.verdict, row.change) == ("inconclusive", 0.0) and row.low < -0.05 and row.visible > 0.2
    assert row.why.startswith("a loss of 5.0% would not be seen in 12 prompts") and "replay" not in row.why


def test_an_error_rate_that_was_zero_and_rose_never_passes() -> None:
    clean = make_baseline(scored([0.0] * 8, "wer"))
    for values, verdict in (([0.0] * 8, "pass"), ([0.0] * 7 + [0.1], "inconclusive"), ([0.3, 0.4] * 4, "fail")):
        row = next(row for row in gate(scored(values, "wer"), clean).rows if row.metric == "score.wer")
        assert row.verdict == verdict, row
    assert gate(scored([0.5] * 8), make_baseline(scored([0.0] * 8))).verdict == "pass"


def test_a_run_that_was_not_scored_is_inconclusive() -> None:
    unscored = empty().add(meta("c0"), [record(f"p{i:02d}", [step(1, 2)] * 5) for i in range(8)])
    result = gate(unscored, make_baseline(scored([0.9] * 8)))
    assert result.verdict == "inconclusive" and result.rows[-1].why == "the run was not scored, and the baseline was"


def audited(log_e: float, cells: int = 1, **more: Any) -> FakeStore:
    """Cells of which the last has this e-value."""
    store = empty()
    for i in range(cells):
        seen = {"audit_log_e": log_e if i == cells - 1 else 0.0, "audit_tokens": 3072, "audit_visible_tv": 0.03}
        facts = {"claim": "SAME_LAW", "audit_best": "p^0.9", **seen, **more}
        store.add(meta(f"c{i}", **facts), [record(f"p{k}", [step(1, 2)] * 5) for k in range(8)])
    return store


@pytest.mark.parametrize(
    ("store", "verdict"),
    [
        (audited(6.90), "pass"),
        (audited(6.91), "fail"),
        (audited(50.0, claim="APPROXIMATE"), "pass"),
        (audited(float("nan")), "inconclusive"),
        (audited(float("inf")), "fail"),
        (audited(7.9, cells=3), "pass"),  # of three cells: 3000, whose logarithm is 8.006
        (audited(8.1, cells=3), "fail"),
        (audited(8.1, audit_threshold=4000.0), "pass"),
        (audited(8.3, audit_threshold=4000.0), "fail"),
    ],
    ids=range(9),
)
def test_an_e_value_that_refutes_in_a_run_fails_the_claim(store: FakeStore, verdict: str) -> None:
    assert gate(store, make_baseline(audited(-2.0, cells=len(store.cells())))).verdict == verdict


def test_a_refuted_claim_says_by_what() -> None:
    row = gate(audited(6.91), make_baseline(audited(-2.0))).rows[0]
    assert row.why == "refuted by p^0.9: log e = 6.9 after 3072 tokens; a bias of TV 0.03 a token would be seen"


def test_methods_of_one_side_alone_are_listed() -> None:
    before, after = run(Sim(), Sim(0.3)), run(Sim())
    before.body["key"] = {**before.body["key"], "methods": ["speculative", "old"]}
    after.body["key"] = {**after.body["key"], "methods": ["speculative", "new"]}
    after.add(meta("c9", label="a new method"), simulate(Sim(0.5), 24))
    result = gate(after, make_baseline(before))
    assert (result.verdict, result.removed, result.added) == ("pass", ("method 1",), ("a new method",))
    assert "only in the baseline, not compared: method 1" in markdown(result)
    after.add(meta("c9", label="a new method", verdict={"word": "broken"}), simulate(Sim(0.5), 24))
    assert gate(after, make_baseline(before)).verdict == "fail"


def test_runs_without_a_shared_cell_are_an_error() -> None:
    """Also where both have autoregressive decoding, whose e-value alone would pass."""
    before, after = run(Sim()), empty().add(meta("c9"), simulate(Sim(), 24))
    after.body["key"] = {**after.body["key"], "methods": ["another"]}
    result = gate(after, make_baseline(before))
    assert (result.verdict, result.rows[0].why) == ("error", "the run and the baseline share no method")
    audited = {"claim": "SAME_LAW", "audit_log_e": -1.0, "audit_tokens": 100, "audit_visible_tv": 0.1}
    after.add(meta("c8", **audited), simulate(Sim(), 24))
    result = gate(after, make_baseline(before))
    assert (result.verdict, [row.verdict for row in result.rows]) == ("error", ["error", "pass"])


def test_cells_of_one_label_are_told_apart_by_their_settings() -> None:
    cells = [f"sjd-tau=0.5.tiny.en.fp32.T{temperature}.toy-0a1b" for temperature in (0, 1)]
    rows = [GateRow(cell, "sjd tau=0.5", "scr", "fail", "a drop") for cell in cells]
    rows.append(GateRow("zipar.tiny.en.fp32.T1.toy-0a1b", "zipar", "scr", "pass", "identical"))
    result = GateResult("fail", tuple(rows))
    page = markdown(result)
    assert "| sjd tau=0.5 | tiny.en.fp32.T0.toy |" in page and "| sjd tau=0.5 | tiny.en.fp32.T1.toy |" in page
    assert "| zipar | tiny.en.fp32.T1.toy |" in page
    shown = table(result)
    assert shown.title == "fail: 2 of 3 figures, first sjd tau=0.5 (tiny.en.fp32.T0.toy): scr: a drop"
    assert [row[0] for row in shown.rows] == ["sjd tau=0.5"] * 2  # an identical figure cannot have moved
    assert shown.notes[0] == "1 more figures are those of the baseline"
    assert "title=stride gate%3A sjd tau=0.5 (tiny.en.fp32.T0.toy)::" in github_annotations(result)[0]


def test_annotations_are_workflow_commands_of_one_line() -> None:
    result = gate(fixed([1] * 8), make_baseline(fixed([2] * 8)))
    lines = github_annotations(result)
    assert len(lines) == 3 and lines[0].startswith(
        "::error title=stride gate%3A c0::tau - 1: a significant drop; change"
    )
    assert "50.0%25" in lines[0] and "\n" not in lines[0]
    assert github_annotations(gate(fixed([2] * 8), make_baseline(fixed([2] * 8)))) == []
