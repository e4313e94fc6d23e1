"""Tables, figures and comparisons of synthetic runs; metric conventions on cells countable by hand."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from harness.record.columns import STEP_FIELDS
from harness.record.metrics import METRICS as RECORD_METRICS
from harness.record.metrics import value
from harness.record.store import Store
from reports import pareto, tables, text_table
from reports.gate import compare
from reports.papers.drawing import legend
from reports.summary import FinishedCell, by_category, summarise
from reports.text_table import UNMEASURED, Column, TextTable
from tests.support.fake_store import GREEDY, FakeStore, Sim, empty, meta, record, simulate, step, suite


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return summarise(suite(6))


def tiny(**changes: object) -> FakeStore:
    """Four prompts: AR takes 10 steps of 10 ms; the method 5 steps of 12 ms, accepting 1 of 2 drafted."""
    store = empty()
    names = [f"p{i}" for i in range(4)]
    store.add(meta("ar", role="baseline", expected=4), [record(p, [step(ms=10.0)] * 10) for p in names])
    warm = record("p0", [step(2, 2, ms=900.0)], warmup=True)
    steps = [step(1, 2, ms=12.0)] * 5
    store.add(meta("m", expected=5, **changes), [warm, *(record(p, steps) for p in names)])
    return store


def test_every_number_by_hand() -> None:
    row = summarise(tiny()).set_index("cell").loc["m"]
    assert row["scr"] == 2.0 and row["tau"] == 2.0  # 10 tokens / 5
    assert row["acceptance"] == 0.5  # 1 accepted of 2 tested
    assert row["acceptance_per_node"] == 0.5
    assert row["nfe"] == 20
    assert row["ms_per_token"] == pytest.approx(6.0)  # 60 ms / 10; the warm-up of 900 ms is not in it
    assert (row["step_p50_ms"], row["step_p95_ms"]) == (12.0, 12.0)
    shares = [row[f"{part}_ms"] for part in ("draft", "target", "verify", "host")]
    assert shares == pytest.approx([1.2, 9.0, 1.2, 0.6]) and sum(shares) == pytest.approx(row["step_p50_ms"])
    assert row["speedup"] == pytest.approx(10 / 6) == row["predicted"]  # 2 x 10 ms / 12 ms
    assert (row["n_ok"], row["n_failed"], row["n_skipped"]) == (4, 0, 1)
    assert row["logprob"] == -1.0 and row["logprob_std"] == 0.0 and row["agreement"] == 1.0
    assert row["flags"] == "" and row["valid"]


def test_two_passes_a_step_are_timed_once_in_the_prediction() -> None:
    """A step of two passes is one step of the clock: tokens a step and not a pass go with it."""
    store = tiny()
    store.add(meta("m"), [record(f"p{i}", [step(1, 2, ms=16.0, nfe=2)] * 5) for i in range(4)])
    row = summarise(store).set_index("cell").loc["m"]
    assert (row["scr"], row["tau"]) == (1.0, 2.0)
    assert row["predicted"] == pytest.approx(20 / 16) == row["speedup"] and row["flags"] == ""


def test_a_metric_is_that_of_the_record(frame: pd.DataFrame) -> None:
    cell = suite(6).cell("t0-spec")
    row = frame.set_index("cell").loc["t0-spec"]
    sums = FinishedCell.of(cell).totals
    for name in ("scr", "tau", "acceptance", "acceptance_per_node", "nfe_per_output", "logprob"):
        assert row[name] == pytest.approx(value(RECORD_METRICS[name], sums))


def test_a_narrow_terminal_folds_names_and_headings_and_keeps_what_was_measured() -> None:
    columns = (Column("row", "cell", rank=0), Column("p", "a figure, printed", rank=3))
    columns = (*columns, Column("m", "a figure, measured", rank=2))
    name = "multi_head heads=some-heads (levels=3) delta=0.7"
    rows = [[name, "2.02", "1.35 [1.05, 1.76]"], ["other", "-", UNMEASURED]]
    table = TextTable("t", columns, rows, [])
    assert [title for title, *_ in text_table.fit_columns(table, 100).values()] == [column.title for column in columns]
    assert text_table.fit_columns(table, 100)[2][1:] == ["1.35 [1.05, 1.76]", UNMEASURED]
    # 16 for the longest word of a name, 7 and 8 for those of headings, and gaps
    narrow = text_table.fit_columns(table, 35)
    assert list(narrow) == [0, 1, 2] and narrow[0][1] == name and narrow[2] == ["a\nfigure,\nmeasured", "1.35", "-"]
    assert list(text_table.fit_columns(table, 34)) == [0, 2]


def test_a_legend_of_long_names_stays_inside_its_figure() -> None:
    figure = Figure(figsize=(12, 5), layout="constrained")
    axes = figure.subplots()
    for i in range(7):
        axes.plot([0, 1], label=f"cross_regression horizon=8 mode=det beta=0.05 tau=-{i} clip=True")
    legend(figure, axes)
    [drawn] = figure.legends
    assert drawn.get_window_extent().width <= figure.bbox.width and len(drawn.get_texts()) == 7


def test_skipped_and_unfinished_cells_have_a_row_with_the_reason() -> None:
    store = tiny().skip(meta("tree", label="tree"), "needs TREE_MASK")
    store.manifest["cells"]["later"] = {"label": "later"}
    rows = summarise(store).set_index("cell")
    assert rows.loc["tree", "status"] == "skipped" and rows.loc["tree", "reason"] == "needs TREE_MASK"
    assert rows.loc["later", "status"] == "unfinished"
    page = tables.markdown(summarise(store))
    assert "skipped: tree: needs TREE_MASK" in page and "unfinished: later" in page


def flags(store: FakeStore) -> str:
    return str(summarise(store).set_index("cell").loc["m", "flags"])


def test_a_dead_drafter_raises_an_alarm() -> None:
    dead = [record(f"p{i}", [step(0, 2, tested=1)] * 50) for i in range(4)]
    assert "dead drafter" in flags(tiny().add(meta("m"), dead))
    few = [record(f"p{i}", [step(0, 2, tested=1)] * 49) for i in range(4)]  # 196 tested: too few to say
    assert "dead drafter" not in flags(tiny().add(meta("m"), few))


def test_more_than_a_tenth_failed_makes_a_cell_invalid() -> None:
    good = [record(f"p{i}", [step(1, 2)] * 5) for i in range(9)]
    bad = [record(f"q{i}", [], status="failed", error="boom") for i in range(2)]
    rows = summarise(tiny().add(meta("m"), good + bad[:1])).set_index("cell")
    assert (
        rows.loc["m", "valid"] and rows.loc["m", "n_failed"] == 1 and rows.loc["m", "flags"] == "1 of 10 failed: boom"
    )
    store = tiny().add(meta("m"), good + bad)
    assert not summarise(store).set_index("cell").loc["m", "valid"] and flags(store) == "invalid: 2 of 11 failed: boom"
    other = record("q2", [], status="failed", error="no end; give more tokens")
    assert flags(tiny().add(meta("m"), [*good, *bad, other])) == "invalid: 3 of 12 failed: 2 of them: boom"
    alone = flags(tiny().add(meta("m"), [*good, other]))
    assert alone == "1 of 10 failed: no end, give more tokens"


def test_a_wrong_clock_shows_as_a_mismatch() -> None:
    """Three prompts in four are fast and the fourth is not: the median and the mean then disagree."""
    store = tiny()
    slow = [record(f"p{i}", [step(1, 2, ms=12.0 if i else 400.0)] * 5) for i in range(12)]
    store.add(meta("ar", role="baseline"), [record(f"p{i}", [step()] * 10) for i in range(12)])
    assert "mismatch" in flags(store.add(meta("m"), slow))


def test_a_cell_without_its_baseline_says_so() -> None:
    assert "no baseline in this run" in flags(tiny(baseline="elsewhere"))


def test_no_sample_at_all() -> None:
    store = tiny().add(meta("m", expected=2), [record("p0", [], status="failed", error="boom")])
    rows = summarise(store).set_index("cell")
    assert "no sample" in rows.loc["m", "flags"] and rows.loc["m", "n_ok"] == 0


def test_output_without_logprobs_has_none() -> None:
    records = [record(f"p{i}", [step(1, 2)] * 5, logprobs=()) for i in range(4)]
    rows = summarise(tiny().add(meta("m"), records)).set_index("cell")
    assert np.isnan(rows.loc["m", "logprob"])


def test_sampled_cells_are_tested_against_the_baseline(frame: pd.DataFrame) -> None:
    rows = frame.set_index("cell")
    assert rows.loc["t1-spec", "tv_p"] > 0.01 and rows.loc["t1-spec", "tv_floor"] > 0
    assert np.isnan(rows.loc["t0-spec", "tv"]) and np.isnan(rows.loc["t1-ar", "tv"])
    assert rows.loc["t1-bad", "ks_p"] < 0.05 < rows.loc["t1-spec", "ks_p"]
    assert np.isnan(rows.loc["t1-spec", "agreement"])  # agreement is of greedy outputs alone


def test_scores_have_an_interval_and_n(frame: pd.DataFrame) -> None:
    row = frame.set_index("cell").loc["t0-ar"]
    assert 0 <= row["score.pass@1_low"] <= row["score.pass@1"] <= row["score.pass@1_high"] <= 1
    assert row["score.pass@1_n"] == 6


def test_categories() -> None:
    store = empty()
    store.add(meta("ar", role="baseline"), simulate(Sim(gamma=0), 8)).add(meta("m"), simulate(Sim(), 8))
    rows = by_category(store)
    assert set(rows["category"]) == {"code", "prose"} and set(rows["n_ok"]) == {4}
    assert "## By category" in tables.markdown(summarise(store), rows)
    assert by_category(tiny()).empty


def test_numbers_are_written_one_way() -> None:
    row = pd.Series({"x": 1.4249, "x_low": 1.31, "x_high": 1.551, "x_n": 9})
    assert text_table.interval(row, "x") == "1.42 [1.31, 1.55]"
    assert text_table.interval(row, "y") == "-"
    assert text_table.interval(pd.Series({"x": 1.4, "x_low": None, "x_n": 3}), "x") == "1.40 (n=3)"


@pytest.mark.parametrize("width", [60, 80, 100, 140, 200])
def test_the_terminal_table_fits(frame: pd.DataFrame, width: int) -> None:
    out = io.StringIO()
    tables.terminal(frame, Console(file=out, width=width))
    assert max(map(len, out.getvalue().splitlines())) <= width
    assert "speculative gamma=5" in out.getvalue() and "speed-up" in out.getvalue()
    assert ("agreement" in out.getvalue().split("not shown")[0]) == (width >= 80)


def test_write_makes_three_files(tmp_path: Path) -> None:
    paths = tables.write(suite(6), tmp_path / "report")
    assert [path.name for path in paths] == ["summary.md", "summary.csv", "summary.tex"]
    assert pd.read_csv(paths[1])["cell"].tolist() == list(suite(6).manifest["cells"])
    for line in paths[0].read_text().split("## Legend")[0].splitlines():
        assert not line.startswith("|") or line.endswith("|")


def test_latex_is_escaped() -> None:
    store = tiny(label="a_b & 50% {x} ~^\\")
    text = tables.latex(summarise(store))
    assert r"a\_b \& 50\% \{x\} \textasciitilde{}\textasciicircum{}\textbackslash{}" in text
    for body in re.findall(r"\\begin{tabular}{(\w+)}(.*?)\\end{tabular}", text, flags=re.S):
        for line in body[1].splitlines():
            if line.endswith(r"\\"):
                assert len(re.findall(r"(?<!\\)&", line)) == len(body[0]) - 1


def test_markdown_escapes_pipes() -> None:
    assert "a\\|b" in tables.markdown(summarise(tiny(label="a|b")))


def test_the_front_by_hand() -> None:
    x, y = [1.0, 2.0, 3.0, 2.0, 0.5], [1.0, 0.9, 0.2, 0.5, 1.0]
    assert pareto.front(x, y) == [0, 1, 2]


def test_a_sweep_is_one_number_of_one_method(frame: pd.DataFrame) -> None:
    cells = frame[(frame["temperature"] == 0) & (frame["status"] == "done")].reset_index(drop=True)
    (sweep,) = pareto.sweeps(cells)
    assert (sweep.parameter, sweep.values) == ("tau", [0.25, 0.5, 0.75, 1.0])


def test_figures_repeat_byte_for_byte_and_leave_matplotlib_alone(frame: pd.DataFrame, tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    greedy = frame[frame["temperature"] == 0]
    one, two = (pareto.write(greedy, tmp_path / name) for name in "ab")
    assert [p.name for p in one] == ["pareto.png", "pareto.svg"]
    assert [p.read_bytes() for p in one] == [p.read_bytes() for p in two]
    assert dict(matplotlib.rcParams) == before
    assert one[0].read_bytes()[:4] == b"\x89PNG" and "<svg" in one[1].read_text()


def test_panels_hold_the_quality_that_was_measured(frame: pd.DataFrame) -> None:
    panels = [(panel.title.split(", ")[1], panel.quality) for panel in pareto.panels(frame)]
    greedy, sampled = ("agreement", "score.pass@1"), ("logprob_diff", "score.pass@1")
    assert panels == [("T = 0", one) for one in greedy] + [("T = 1", one) for one in sampled]
    assert pareto.write(summarise(empty()), Path("unused")) == []


def test_cells_of_one_configuration_match_whatever_they_are_called() -> None:
    a, b = tiny(), tiny()
    del b.held["m"]
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


def test_seconds_of_unlike_machines_are_not_compared() -> None:
    comparison = compare.compare(suite(6), suite(6, fingerprint="other"))
    assert "ms_per_token" not in set(comparison.frame["metric"])
    assert "f00d and other" in comparison.notes[0]
    out = io.StringIO()
    compare.terminal(comparison, Console(file=out, width=100))
    assert "seconds are not compared" in out.getvalue()


def test_a_run_compared_with_itself_differs_nowhere() -> None:
    store = suite(6)
    rows = compare.compare(store, store).frame
    assert (rows["difference"] == 0).all() and (rows["equal"] == rows["pairs"]).all()


def test_a_real_store_gives_the_same_rows(tmp_path: Path) -> None:
    fake = suite(5)
    real = Store.create(tmp_path / "run", fake.manifest)
    for name, records in fake.records.items():
        for one in records:
            real.write(name, one)
        real.seal(name, fake.cell(name).meta)
    pd.testing.assert_frame_equal(summarise(Store.open(tmp_path / "run")), summarise(fake), check_dtype=False)
    assert list(fake.cell("t0-ar").steps.columns) == list(real.cell("t0-ar").steps.columns)
    assert set(STEP_FIELDS) <= set(real.cell("t0-ar").steps.columns) and GREEDY["temperature"] == 0.0


def test_reports_do_not_import_torch() -> None:
    names = [f"reports.{one}" for one in ("summary", "tables", "pareto", "gate.compare", "gate.decision")]
    code = f"import sys, harness.record.stats, {', '.join(names)}; "
    code += "sys.exit('torch' in sys.modules or 'matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 0


def test_what_several_cells_share_is_said_once() -> None:
    rows = pd.DataFrame(
        {
            "status": ["done", "done", "done", "skipped"],
            "label": ["a", "b", "c", "d"],
            "flags": ["no judge; slow", "no judge; slow", "no judge", ""],
            "reason": ["", "", "", "no weights"],
        }
    )
    assert tables._notes(rows) == ["skipped: d: no weights", "! all cells: no judge", "! a, b: slow"]
