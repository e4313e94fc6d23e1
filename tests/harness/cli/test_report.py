"""`stride report`: a paper's table in each format, a figure as PDF, and what is refused."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import pytest

from stridebench.harness.record.store import Store
from stridebench.reports import pareto
from tests.support.cli import refused, stride
from tests.support.page_runs import stored
from tests.support.paper_runs import paper_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(paper_run(prompts=2), tmp_path_factory.mktemp("report") / "run").path


def test_a_table_of_a_paper_in_each_format(run, tmp_path):
    words = ("report", run, "--paper", "sjdpp", "--table", "1")
    assert "SJD++, Table 1: printed" in stride(*words).out
    latex = stride(*words, "--format", "latex").out
    assert r"\toprule" in latex and "SJD++ & 29.88 &" in latex and latex.count(r"\begin{table}") == 1
    assert stride(*words, "--out", tmp_path).code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"sjdpp-table-1.{end}" for end in ("html", "md", "tex")]
    assert "| SimpleAR (0.5B) | SJD++ | 29.88 |" in (tmp_path / "sjdpp-table-1.md").read_text()
    assert "<td>29.88</td>" in (tmp_path / "sjdpp-table-1.html").read_text()
    assert (tmp_path / "sjdpp-table-1.tex").read_text() == latex


def test_a_model_that_is_not_the_papers_has_a_row_with_its_name(run):
    lines = stride("report", run, "--paper", "sjdpp", "--table", "1", "--format", "markdown").out.splitlines()
    rows = [[text.strip() for text in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    measured = [i for i, title in enumerate(rows[0]) if title.endswith("measured")]
    filled = {row[0] for row in rows[2:] if any(row[i] not in ("-", "not measured") for i in measured)}
    assert filled == {"embedded-image"} and {"Emu3-Gen (8B)", "SimpleAR (0.5B)"} <= {row[0] for row in rows}


@pytest.mark.parametrize("task", ["humaneval", "emoji_scenes"])
def test_a_run_of_other_tasks_fills_no_table(task, tmp_path):
    """As of the suite quick: text, and pictures of prompts that no suite of the table chose."""
    store = stored(paper_run("quick", "smollm2-135m", task, prompts=1), tmp_path / "run")
    said = refused("report", store.path, "--paper", "sjdpp", "--table", "1")
    assert "no finished cell of" in said and "stride run papers/sjdpp makes it" in said


def test_a_table_of_vocabularies_needs_no_finished_cell(tmp_path):
    store = Store.create(tmp_path / "run", {"key": {}, "cells": {}, "vocabularies": {"toy": 512}})
    assert "token ids" in stride("report", store.path, "--paper", "xspecmesh", "--table", "1").out


@pytest.mark.parametrize(
    ("number", "words"), [(1, "TFLOP, printed"), (2, "information persistence"), (5, "h, Table 5")]
)
def test_a_table_of_the_cost_of_training_stands_beside_ours(number, words, tmp_path):
    store = Store.create(tmp_path / "run", {"key": {}, "cells": {}})
    asked = ("report", store.path, "--paper", "cross_regression", "--table", number)
    assert words in stride(*asked, "--format", "markdown").out
    assert r"\toprule" in stride(*asked, "--format", "latex").out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--paper", "sjdpp", "--table", "12"), "tables 1, 2, 3, 4, 5, 6, 7, 8, 9, 10"),
        (("--paper", "sjd", "--table", "1"), "did you mean 'sjdpp'"),
        (("--paper", "sjdpp"), "needs --table"),
        (("--table", "1"), "--table needs --paper"),
        (("--paper", "cross_regression", "--table", "6"), "a list of settings"),
        (("--paper", "xspecmesh", "--table", "2"), "stride run papers/xspecmesh makes it"),
        (("--figure", "pareto"), "--figure NAME --pdf FILE"),
        (("--figure", "paretto", "--pdf", "x.pdf"), "'pareto'"),
        (("--figure", "pareto", "--cells", "nothing", "--pdf", "x.pdf"), "'nothing'"),
        (("--cells", "a"), "add --figure"),
        (("--width", "column"), "add --figure forest"),
        (("--what-if", "--columns", "tau"), "--what-if has its own"),
        (("--figure", "forest", "--pdf", "x.pdf", "--out", "y"), "leave --out to a second command"),
        (("--against", "z", "--what-if"), "ask for pages, tables or figures"),
        (("--against", "z", "--format", "latex"), "--out FILE.md writes the differences"),
        (("--paper", "sjdpp", "--table", "1", "--json"), "different outputs"),
    ],
)
def test_what_cannot_be_reported_is_one_message(run, words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in refused("report", run, *words)
    assert not list(tmp_path.iterdir())


def test_a_figure_is_a_pdf_with_its_fonts_in_which_text_is_text(run, tmp_path):
    path = tmp_path / "front.pdf"
    outcome = stride("report", run, "--figure", "forest", "--cells", "sjd*", "--cells", "ar", "--pdf", path)
    assert outcome.code == 0, outcome
    data = path.read_bytes()
    assert stride("report", run, "--figure", "forest", "--cells", "sjd*", "--cells", "ar", "--pdf", tmp_path / "b.pdf")
    assert (tmp_path / "b.pdf").read_bytes() == data
    assert b"/FontFile2" in data and b"/Type3" not in data
    streams = re.findall(rb"stream\r?\n(.*?)endstream", data, re.DOTALL)
    texts = b"".join(zlib.decompressobj().decompress(one) for one in streams if one[:1] == b"\x78")
    assert b" Tj" in texts or b"] TJ" in texts


def seen_by(colour: str, matrix: list[list[float]]) -> list[float]:
    """Linear RGB of a colour as a colour-blind reader sees it (Machado et al. 2009)."""
    linear = [(int(colour[i : i + 2], 16) / 255) ** 2.2 for i in (1, 3, 5)]
    return [sum(weight * value for weight, value in zip(row, linear, strict=True)) for row in matrix]


DEUTERANOPIA = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
PROTANOPIA = [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]


@pytest.mark.parametrize("matrix", [DEUTERANOPIA, PROTANOPIA])
def test_the_first_colours_differ_for_colour_blind_readers(matrix):
    colours = [seen_by(colour, matrix) for colour in (*pareto.COLOURS[:5], pareto.BROKEN)]
    for i, one in enumerate(colours):
        for other in colours[:i]:
            assert sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5 > 0.1
    assert len(set(pareto.STYLE_MARKERS.values())) == len(pareto.COLOURS)


def test_the_runs_table_in_each_form_with_its_columns(run, tmp_path):
    words = ("report", run, "--columns", "verdict,speedup")
    assert "\n| cell | verdict | speed-up |\n" in stride(*words, "--format", "markdown").out
    latex = stride(*words, "--format", "latex").out
    assert "cell & verdict & speed-up" in latex and not (run / "report").exists()
    assert "no column 'tai'" in refused("report", run, "--columns", "verdict,tai")
    said = stride(*words, "--latex", tmp_path / "t.tex", "--label", "tab:x").out
    text = (tmp_path / "t.tex").read_text()
    assert f"wrote {tmp_path / 't.tex'}" in said and text.count(r"\begin{table}") == 1 and r"\label{tab:x}" in text
    assert stride("report", run, "--latex", tmp_path / "u.tex").code == 0
    assert "cell & verdict & speed-up & tau" in (tmp_path / "u.tex").read_text()
