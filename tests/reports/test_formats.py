"""Each text format of the reports, held character by character on small synthetic runs.

``RENEW_FORMATS=1 pytest tests/reports/test_formats.py`` writes the files of ``formats`` anew; read the difference.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from stridebench.harness.cli.query import csv_of
from stridebench.harness.record.outputs import json_values
from stridebench.reports import tables, text_table
from stridebench.reports.gate import baseline, compare, decision, rendering
from stridebench.reports.papers.report import one_table
from stridebench.reports.query.database import Answer
from stridebench.reports.query.schema import VIEWS
from stridebench.reports.summary import summarise
from tests.support.fake_store import FakeStore, tiny
from tests.support.paper_runs import paper_run

FOLDER = Path(__file__).parent / "formats"
NASTY = "evil <script>|\x1b[31m \u202e & 50% _x_"
ANSWER = Answer(
    ["label", "n", "list"],
    ["VARCHAR", "BIGINT", "BIGINT[]"],
    [(NASTY, 1, [1, 2]), (None, None, None), ('a,"b"\nc', 2, [])],
)


def run() -> FakeStore:
    return tiny(label=NASTY)


def compared() -> compare.Comparison:
    return compare.compare(tiny(label=NASTY), tiny(label=NASTY, params={"w": 1}), tiny(label=NASTY))


def gated() -> decision.GateResult:
    return decision.gate(run(), baseline.make_baseline(run()))


def printed_comparison() -> str:
    out = io.StringIO()
    compare.terminal(compared(), Console(file=out, width=120), ["runs/a", "runs/b", "runs/c"])
    return out.getvalue()


def paper_table() -> list[tables.TextTable]:
    return one_table(paper_run(prompts=2), "sjdpp", "1")


def schema() -> str:
    return "".join(
        f"{view.name}.{column.name} {column.sql_type}: {column.meaning}\n"
        for view in VIEWS.values()
        for column in view.columns
    )


FORMATS: dict[str, Callable[[], str]] = {
    "summary.md": lambda: tables.markdown(summarise(run())),
    "summary.tex": lambda: text_table.latex_tables(tables.text_tables(summarise(run()))),
    "summary.csv": lambda: summarise(run()).to_csv(index=False),
    "summary.html": lambda: "\n".join(text_table.html_tables(tables.text_tables(summarise(run())))),
    "comparison.md": lambda: compare.markdown(compared(), ["runs/a", "runs/b", "runs/c"]),
    "comparison.txt": printed_comparison,
    "gate.md": lambda: rendering.markdown(gated()),
    "gate.xml": lambda: rendering.junit(gated()),
    "paper_table.md": lambda: "\n".join(map(text_table.markdown_of, paper_table())),
    "paper_table.tex": lambda: text_table.latex_tables(paper_table(), notes=True),
    "paper_table.html": lambda: "\n".join(text_table.html_tables(paper_table())),
    "query.csv": lambda: csv_of(ANSWER),
    "query.json": lambda: json.dumps(
        json_values([dict(zip(ANSWER.names, row, strict=True)) for row in ANSWER.rows]), indent=1
    ),
    "query_schema.txt": schema,
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_what_it_was(name: str) -> None:
    text, path = FORMATS[name](), FOLDER / name
    assert "\x1b" not in text and "\u202e" not in text
    if "RENEW_FORMATS" in os.environ:
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_every_file_belongs_to_a_format() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(FORMATS)
