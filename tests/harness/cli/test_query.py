"""`stride query`: SQL over the views of stored runs, which reads nothing else."""

from __future__ import annotations

import csv
import io
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import stridebench
from stridebench.harness.record.entries import CellMeta
from stridebench.harness.record.requests import Request
from stridebench.harness.record.store import Store
from stridebench.reports.query.schema import VIEWS
from tests.support import fake_store, page_runs
from tests.support.cli import refused, stride

ESCAPE = "red \x1b[31m \u202egnp.exe"


def stored(path: Path, *labels: str, text: str = "") -> None:
    """A run whose first cell is the baseline; outputs have this text."""
    fake = fake_store.empty()
    for number, label in enumerate(labels):
        sim = fake_store.Sim(step_ms=10.0 + number, seed=number)
        records = [
            fake_store.Record(fake_store.replace(one.sample, text=text, scores={"right": 1.0}), one.steps)
            for one in fake_store.simulate(sim, prompts=4)
        ]
        fake.add(fake_store.meta(label, method=label, baseline=labels[0]), records)
    page_runs.stored(fake, path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("query")
    stored(folder / "a", "ar", "fast", text=ESCAPE)
    stored(folder / "b", "ar")
    return folder


def asked(sql: str, *runs: Path) -> Any:
    outcome = stride("query", sql, *runs, "--json")
    assert outcome.code == 0, outcome
    return outcome.document


def test_every_view_has_the_documented_columns(runs):
    for view in VIEWS.values():
        described = asked(f"describe {view.name}", runs / "a")
        assert {row["column_name"]: row["column_type"] for row in described} == {
            column.name: column.sql_type for column in view.columns
        }
        assert all(column.meaning for column in view.columns), view.name


def test_cells_have_the_figures_of_the_report(runs):
    report = stridebench.StoredRun(runs / "a").table.set_index("cell")
    rows = asked("select cell, speedup, speedup_low, tau, n_ok from cells", runs / "a")
    assert [row["cell"] for row in rows] == ["ar", "fast"]
    for row in rows:
        assert row["tau"] == report.loc[row["cell"], "tau"] and row["n_ok"] == 4
        assert row["speedup"] == report.loc[row["cell"], "speedup"] and row["speedup_low"] is None


def test_samples_and_steps_are_those_of_the_store(runs):
    cell = Store.open(runs / "a").cell("fast")
    (sums,) = asked("select sum(accepted) accepted, count(*) n from steps where cell = 'fast'", runs / "a")
    assert sums == {"accepted": int(cell.steps["accepted"].sum()), "n": len(cell.steps)}
    tokens = asked("select tokens from samples where cell = 'fast' order by prompt", runs / "a")
    assert [row["tokens"] for row in tokens] == [list(row) for row in cell.samples["tokens"]]


def test_a_folder_of_runs_is_all_of_them_and_a_run_named_twice_is_one(runs):
    assert asked("select run, cells, done from runs", runs, runs / "a") == [
        {"run": str(runs / "a"), "cells": 2, "done": 2},
        {"run": str(runs / "b"), "cells": 1, "done": 1},
    ]


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("select distinct name, value from scores", [{"name": "right", "value": 1.0}]),
        (
            "select kind, name, value, n from cell_scores where run like '%b'",
            [{"kind": "score", "name": "right", "value": 1.0, "n": 4}],
        ),
        ("select * from requests", []),
        ("select 1 a, 2 a, 3 a", [{"a": 1, "a_2": 2, "a_3": 3}]),
    ],
)
def test_answers(runs, sql, rows):
    assert asked(sql, runs) == rows


def test_requests_of_engines(tmp_path):
    planned = {"engine": "vllm", "label": "vllm ngram", "backbone": "toy", "dtype": "fp32", "task": "toy"}
    store = Store.create(tmp_path / "run", {**fake_store.empty().body, "engines": {"e": planned}})
    for repetition, accepted in enumerate((3, None)):
        store.write_request("e", Request("p", repetition, False, "ok", tokens=(1, 2), accepted=accepted))
    store.seal("e", CellMeta.read({**planned, "status": "done"}))
    rows = asked("select run, method, label, repetition, tokens, accepted from requests", tmp_path / "run")
    fixed = {"run": str(tmp_path / "run"), "method": "vllm", "label": "vllm ngram", "tokens": [1, 2]}
    assert rows == [{**fixed, "repetition": 0, "accepted": 3}, {**fixed, "repetition": 1, "accepted": None}]


def test_summarize_reads_the_rows_that_it_names(runs):
    (steps,) = asked("select count from (summarize steps) where column_name = 'nfe'", runs / "b")
    assert steps["count"] == len(Store.open(runs / "b").cell("ar").steps)


def test_a_table_shows_control_characters_as_escapes(runs):
    outcome = stride("query", "select text, null as n, 0.1 + 0.2 as x from samples limit 1", runs / "a")
    assert outcome.code == 0 and "\x1b" not in outcome.out and r"red \x1b[31m \u202egnp.exe" in outcome.out
    assert "0.3" in outcome.out and outcome.err == "1 row\n"


def test_csv_has_one_line_a_row_and_escapes(runs):
    outcome = stride("query", "select text, [1, 2] as many, null as none from samples limit 1", runs / "a", "--csv")
    assert "\x1b" not in outcome.out and outcome.err == ""
    assert list(csv.reader(io.StringIO(outcome.out))) == [
        ["text", "many", "none"],
        [r"red \x1b[31m \u202egnp.exe", "[1, 2]", ""],
    ]


def test_a_long_answer_says_what_a_table_leaves_out(runs):
    outcome = stride("query", "select * from range(500)", runs / "a")
    assert "199" in outcome.out.split() and "200" not in outcome.out.split()
    assert "500 rows; the table has the first 200" in outcome.err


def test_the_facade_reads_the_same_views(runs):
    sql = "select cell, tau from cells order by tau"
    frame = stridebench.query(sql, runs / "a")
    assert frame.to_dict("records") == asked(sql, runs / "a")
    pd.testing.assert_frame_equal(stridebench.StoredRun(runs / "a").query(sql), frame)


def test_the_schema_is_printed_in_both_forms():
    assert [view["view"] for view in stride("query", "--schema", "--json").document] == list(VIEWS)
    text = stride("query", "--schema").out
    assert "speedup_low" in text and "DOUBLE" in text and "forward passes" in text


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("selec 1", "syntax error"),
        ("", "found no statement"),
        ("select speedupp from cells", '"speedup"'),
        ("select 1; select 2", "found SELECT and SELECT"),
        ("create table x as select 1", "found CREATE"),
        ("set threads = 1", "found SET"),
        ("copy cells to '{folder}/stolen.csv'", "found COPY"),
        ("attach '{folder}/other.db'", "found ATTACH"),
        ("install httpfs", "found LOAD"),
        ("select * from read_text('{folder}/secret.txt')", "reads the views of the runs only"),
        ("select * from '{folder}/secret.csv'", "reads the views of the runs only"),
        ("select * from read_csv('http://127.0.0.1:9/x.csv')", "stride query --schema"),
        ("select * from glob('{folder}/*')", "reads the views of the runs only"),
        ("select getenv('HOME')", "getenv"),
        ("select * from frame", "frame does not exist"),
    ],
)
def test_what_is_no_query_of_the_views_is_one_line(runs, tmp_path, sql, said):
    frame = pd.DataFrame({"secret": [1]})  # a variable that DuckDB would read by its name
    for name in ("secret.txt", "secret.csv"):
        (tmp_path / name).write_text("a,b\n1,2\n")
    message = refused("query", sql.format(folder=tmp_path), runs / "a")
    assert said in message and message.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret.csv", "secret.txt"] and len(frame) == 1


def test_bad_command_lines(runs, tmp_path, monkeypatch):
    assert "--schema" in refused("query")
    assert "choose one" in refused("query", "select 1", runs, "--json", "--csv")
    assert "does not exist" in refused("query", "select 1", tmp_path / "none")
    assert "holds no run" in refused("query", "select 1", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert "the folder runs does not exist" in refused("query", "select 1")


def test_without_duckdb_it_says_what_to_install(runs, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    assert "[query]" in refused("query", "select 1", runs)


def test_an_unfinished_run_says_so(runs, tmp_path):
    path = tmp_path / "half"
    shutil.copytree(runs / "a", path)
    shutil.rmtree(path / "cells" / "fast")
    outcome = stride("query", "select cell, status from cells", path, "--json")
    assert [row["status"] for row in outcome.document] == ["done", "planned"]
    assert "1 of 2 cells are not finished" in outcome.err


def test_a_damaged_table_is_named(runs, tmp_path):
    path = tmp_path / "damaged"
    shutil.copytree(runs / "b", path)
    (path / "cells" / "ar" / "steps.parquet").write_bytes(b"PAR1")
    assert "steps.parquet is damaged" in refused("query", "select * from steps", path)
    assert asked("select count(*) n from samples", path) == [{"n": 4}]


def test_times_with_a_zone_are_texts(runs):
    (row,) = asked("select now() as at, [now()] as several, 1 as one -- a comment", runs / "a")
    assert row["at"].startswith("20") and row["several"].startswith("[") and row["one"] == 1


def test_text_that_is_not_utf8_is_one_line(runs, tmp_path):
    assert "not UTF-8" in refused("query", "select '\udcff'", runs / "a")
    folder = shutil.copytree(runs / "a", tmp_path / "odd-\udcff")
    assert asked("select run from runs", folder)[0]["run"].endswith("odd-\\udcff")


def test_a_query_that_never_ends_has_a_limit(runs):
    endless = "select sum(a.range * b.range) from range(1000000000) a, range(1000000000) b"
    assert "took over 0.2 s" in refused("query", endless, runs / "a", "--time-limit", 0.2)
