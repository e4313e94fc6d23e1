"""The run's own table on a terminal, in Markdown and in LaTeX."""

from __future__ import annotations

import io

import pandas as pd
import pytest
from rich.console import Console

from stridebench.harness.errors import UsageError
from stridebench.harness.record.entries import StoredSampling
from stridebench.reports import tables, text_table
from stridebench.reports.summary import summarise
from stridebench.reports.text_table import (
    UNMEASURED,
    Column,
    TextTable,
    fit_columns,
    html_tables,
    latex_tables,
    paper_table,
)
from tests.support.fake_store import tiny


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 80, 100, 140, 200])
def test_the_terminal_table_fits(frame: pd.DataFrame, width: int) -> None:
    out = io.StringIO()
    tables.terminal(frame, Console(file=out, width=width))
    assert max(map(len, out.getvalue().splitlines())) <= width
    assert "speculative gamma=5" in out.getvalue() and "speed-up" in out.getvalue()
    shown = set(out.getvalue().split("not shown")[0].split())
    assert width < 80 or {"verdict", "speed-up", "tau", "pass@1"} <= shown


def test_flags_that_differ_in_a_percentage_are_one_note() -> None:
    flag = "disturbed timing: threads waited for a core in {}% of the steps"
    rows = pd.DataFrame({"status": "done", "label": list("abc"), "flags": [flag.format(n) for n in (87, 96, 90)]})
    assert tables.cell_notes(rows) == [f"! all cells: {flag.format('87 to 96')}"]
    rows["flags"] = [flag.format(87), "slow", flag.format(87)]
    assert tables.cell_notes(rows) == [f"! a, c: {flag.format(87)}", "! b: slow"]


@pytest.mark.parametrize(
    ("variation", "note", "words"),
    [
        (0.2, None, "broken (TV 0.2)"),
        (1e-16, "greedy output differs from the baseline's in fp32", "broken (greedy output differs)"),
        (1e-16, "3 of 4 timed outputs differ", "broken (greedy output differs)"),
        (1e-16, "the tokens refute it", "broken (enumerated as exact)"),
    ],
)
def test_a_broken_verdict_says_what_failed(variation: float, note: str | None, words: str) -> None:
    row = pd.Series({"verdict": "broken", "total_variation": variation, "note": note})
    column = next(column for column in tables.COLUMNS if column.key == "verdict")
    assert column.text(row) == words


@pytest.mark.parametrize(
    ("variation", "interval", "words"),
    [
        (0.33, (-0.1, 0.2), "approximate (TV 0.33)"),
        (0.33, (-0.92, -0.5), "approximate (TV 0.33, differs from AR)"),
        (1e-16, (-0.92, -0.5), "approximate (differs from AR)"),
        (0.009, (0.1, 0.2), "approximate (differs from AR)"),
        (None, (-0.92, -0.5), "approximate (TV not measured, differs from AR)"),
        (None, (None, None), "approximate (TV not measured)"),
    ],
)
def test_no_small_distance_stands_next_to_log_probs_that_differ(
    variation: float | None, interval: tuple[float | None, float | None], words: str
) -> None:
    low, high = interval
    verdict = {"verdict": "approximate", "total_variation": variation, "note": None}
    row = pd.Series({**verdict, "logprob_diff_low": low, "logprob_diff_high": high}, dtype=object)
    assert tables.COLUMN["verdict"].text(row) == words


def test_latex_is_escaped() -> None:
    text = latex_tables(tables.text_tables(summarise(tiny(label="a_b & 50% {x} ~^\\"))))
    assert r"a\_b \& 50\% \{x\} \textasciitilde{}\textasciicircum{}\textbackslash{}" in text


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        ({}, 1),
        ({"dtype": "fp32"}, 0),
        ({"agreement": 1.0}, 0),
        ({"verdict": "approximate"}, 0),
        ({"temperature": 1}, 0),
    ],
)
def test_a_line_says_why_an_exact_method_may_disagree_in_bf16(change: dict[str, object], lines: int) -> None:
    row = {"dtype": "bf16", "temperature": 0.0, "verdict": "exact", "agreement": 0.66, **change}
    notes = tables.rounding_notes(pd.DataFrame([row]))
    assert len(notes) == lines and all("exact with an agreement of 0.66 is no contradiction" in note for note in notes)


def test_80_columns_hold_verdict_speed_up_tau_evidence_and_the_main_score() -> None:
    figures = {"speedup": "1.43 [1.10, 1.42]", "tau": "3.52 [3.36, 3.70]", "audit": "0.63 (0.139)"}
    columns = (*(one for one in tables.COLUMNS if one.key != "batch"), Column("score.pass@1", "pass@1", 2, 3))
    words = {"label": "speculative drafter=self:weights=int4 gamma=3", "verdict": "approximate (TV 0.044)"}
    row = [(words | figures).get(column.key, "0.58 [0.25, 0.83]") for column in columns]
    shown = fit_columns(TextTable("", columns, [row], []), 80)
    titles = [columns[i].key for i in shown]
    assert titles == ["label", "verdict", "speedup", "tau", "audit", "score.pass@1"]
    assert list(shown.values())[2][1] == figures["speedup"]


@pytest.mark.parametrize("columns", ["", "80"])
def test_an_output_that_is_not_a_terminal_has_every_column(
    frame: pd.DataFrame, columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    tables.terminal(frame)
    assert ("not shown at this width" in capsys.readouterr().out) == bool(columns)


def test_columns_are_chosen_by_key_or_heading_in_their_order(frame: pd.DataFrame) -> None:
    for table in tables.text_tables(frame, ["tv", "SCR", "verdict", "pass@1", "throughput"]):
        assert [one.title for one in table.columns] == [
            *("cell", "TV", "SCR", "verdict", "pass@1", "tokens/s of the batch")
        ]
        verdicts = {row[0]: (row[1], row[3]) for row in table.rows}
        assert all("(" not in word for _, word in verdicts.values())
        assert verdicts["autoregressive"] == ("-", "exact")
    tables.check_columns(["tv", "SCR", "pass@1"], frame)
    with pytest.raises(UsageError, match=r"no column 'spedup', 'x'; known: batch, verdict, .*speedup, .*pass@1"):
        tables.check_columns(["spedup", "tau", "x"], frame, pd.DataFrame())


def test_a_title_is_escaped_in_html() -> None:
    assert "<h4>&lt;b&gt;</h4>" in "".join(html_tables([TextTable("<b>", (), [], [])]))


def test_a_table_of_a_paper_has_a_block_a_setting_and_a_label(frame: pd.DataFrame) -> None:
    shown = list(tables.text_tables(frame, ["verdict", "speedup", "tv"]))
    text = paper_table(shown, "quick: 95 % of x_1", "tab:quick")
    assert r"\caption{quick: 95 \% of x\_1}" in text and r"\label{tab:quick}" in text
    assert text.count(r"\begin{table}") == 1 and text.count(r"\multicolumn{4}{l}{\emph{") == len(shown) > 1
    rows = [line for line in text.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert len(rows) == 1 + sum(len(table.rows) for table in shown) and all(row.count(" & ") == 3 for row in rows)
    assert r"\label" not in paper_table(shown, "quick")


def test_what_several_cells_share_is_said_once() -> None:
    rows = pd.DataFrame(
        {
            "status": ["done", "done", "done", "skipped"],
            "label": ["a", "b", "c", "d"],
            "flags": ["no judge; slow", "no judge; slow", "no judge", ""],
            "reason": ["", "", "", "no weights"],
        }
    )
    assert tables.cell_notes(rows) == ["skipped: d: no weights", "! all cells: no judge", "! a, b: slow"]


@pytest.mark.parametrize(
    ("log_e", "visible", "shown"),
    [(-1.0, 0.03, "0.37 (0.030)"), (12.0, 0.03, "1e+5 (0.030)"), (0.0, None, "1 (-)"), (None, None, "-")],
)
def test_an_e_value_is_shown_with_the_bias_that_it_would_have_seen(
    log_e: float | None, visible: float | None, shown: str
) -> None:
    row = pd.Series({"audit_log_e": log_e, "audit_visible_tv": visible}, dtype=object)
    assert tables.COLUMN["audit"].text(row) == shown


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({}, "exact on toys"),
        ({"verdict": "broken"}, "broken (TV 0.3)"),
    ],
)
def test_exact_says_what_it_rests_on_if_the_tokens_could_not_have_shown_a_bias(
    change: dict[str, object], word: str
) -> None:
    few = {"verdict": "exact", "audit_tokens": 650, "audit_visible_tv": None, "audit_needed": 9000}
    row = pd.Series({**few, "total_variation": 0.3 if "verdict" in change else 1e-17, **change}, dtype=object)
    assert tables.COLUMN["verdict"].text(row) == word


def test_headings_name_every_cut_and_the_order_of_filters() -> None:
    """Runs that differ in one of them have different headings."""
    words = [
        StoredSampling(**sampling).words
        for sampling in (
            {"temperature": 0.7},
            {"temperature": 0.7, "top_p": 0.9},
            {"temperature": 0.7, "min_p": 0.05},
            {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "order": "filter_first"},
        )
    ]
    both = "T = 0.7, top-k 20, top-p 0.9, filters first"
    assert words == ["T = 0.7", "T = 0.7, top-p 0.9", "T = 0.7, min-p 0.05", both]
    frame = summarise(tiny())
    title = next(tables.text_tables(frame.assign(temperature=0.7, top_p=0.9, order="filter_first"))).title
    assert "T = 0.7, top-p 0.9, filters first" in title


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


def test_numbers_have_one_format() -> None:
    row = pd.Series({"x": 1.4249, "x_low": 1.31, "x_high": 1.551, "x_n": 9})
    assert text_table.interval(row, "x") == "1.42 [1.31, 1.55]"
    assert text_table.interval(row, "y") == "-"
    assert text_table.interval(pd.Series({"x": 1.4, "x_low": None, "x_n": 3}), "x") == "1.40 (n=3)"
