"""Values that the documentation quotes are those of the data files, which say how they were made."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import yaml

from stridebench.harness.errors import UsageError
from stridebench.harness.record.entries import Manifest
from stridebench.harness.record.store import Store
from tests import results
from tests.support.cli import stride
from tests.support.table_engine import NAME, table_engine

ROOT = Path(__file__).resolve().parents[2]
INTERVAL = re.compile(r"\[([^\]]+)\]")


@pytest.mark.parametrize("name", results.all_names())
def test_results_say_what_made_them(name: str) -> None:
    data = results.read(name)
    assert data.command.startswith(("stride ", "python -m ", "tox -e bench")) and re.search(
        r"\b[0-9a-f]{7}\b", data.commit
    )
    assert data.tables and all(table.rows for table in data.tables)


@pytest.mark.parametrize("name", results.all_names())
def test_an_interval_holds_its_value(name: str) -> None:
    for table in results.read(name).tables:
        for value in (value for row in table.rows for value in row):
            for interval in INTERVAL.findall(value):
                low, high = map(float, interval.split(","))
                middle = float(re.search(r"[-+]?[\d.]+", value)[0])  # type: ignore[index]
                assert low <= middle <= high, f"{table.name}: {value}"


@pytest.mark.parametrize(
    ("name", "tables"),
    [
        ("README.md", 1),
        ("docs/gate.md", 1),
        ("docs/engines.md", 2),
        ("docs/machines.md", 3),
        ("docs/report.md", 1),
        ("docs/speed.md", 7),
    ],
)
def test_a_pages_tables_are_those_of_the_data(name: str, tables: int) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    assert len(results.BLOCK.findall(page)) >= tables
    assert results.filled(page) == page, f"run `python -m tests.results {name}`"


COVERAGE = results.read("intervals").table("coverage").rows


@pytest.mark.parametrize("figure", list(dict.fromkeys(row[0] for row in COVERAGE)))
def test_intervals_cover_the_truth_in_92_to_98_percent_or_are_not_given(figure: str) -> None:
    """Of kinds that are named as clusters a run has two, which give no interval."""
    rows = [row for row in COVERAGE if row[0] == figure]
    assert [row[1] for row in rows] == ["6", "12", "24"]
    if "kinds named" in figure:
        assert all(row[2:] == ["0.0", "-"] for row in rows)
    else:
        assert all(92 <= float(row[3]) <= 98 for row in rows)


def test_samples_without_a_rare_kind_of_prompt_are_as_many_as_the_page_says() -> None:
    for prompts, lacking, without, others in results.read("intervals").table("unseen").rows:
        assert float(lacking) == pytest.approx(100 * 0.9 ** int(prompts), abs=0.05)
        assert float(without) < 50 and float(others) >= 95


def test_a_changed_value_in_a_page_is_replaced() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert results.filled(page.replace("1.65 [1.64, 1.68]", "1.95 [1.94, 1.98]")) == page


def test_a_mark_without_a_table_is_refused() -> None:
    with pytest.raises(UsageError, match="has no table 'nowhere'; it has speed"):
        results.filled("<!-- results: bench/nowhere -->\n<!-- end -->")
    with pytest.raises(UsageError, match="there are no results 'nothing'"):
        results.filled("<!-- results: nothing/speed -->\n<!-- end -->")


@pytest.mark.slow
def test_a_run_becomes_a_results_file_with_its_origin_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [{"name": NAME, "label": "plain"}, {"name": NAME, "label": "drafts", "plain": "plain"}]
    body = {
        **{"backbones": ["tabular"], "engines": entries, "tasks": [{"name": "tabular", "limit": 2}]},
        **{"methods": ["prompt_lookup"], "prove": False, "temperature": [0], "max_new_tokens": 4, "warmup": 0},
        **{"load": {"concurrency": [1, 2]}},
    }
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(body))
    with table_engine():
        assert stride("run", tmp_path / "suite.yaml", "--out", tmp_path / "run").code == 0
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    monkeypatch.setattr(results, "IMAGES", tmp_path / "images")
    results.write_runs([str(tmp_path / "run")], "engines")
    written = results.read("engines")
    rows = written.table("side_by_side").rows
    assert {row[0] for row in rows} == {"plain", "drafts", "autoregressive", "prompt_lookup"}
    assert [row[0] for row in written.table("crossover 1").rows][:2] == ["1", "2"] and written.commit
    for name in ("engines.png", "crossover.png"):
        assert (tmp_path / "images" / name).read_bytes()[:4] == b"\x89PNG"


def test_runs_of_two_commits_are_not_one_file_and_a_command_has_no_folder() -> None:
    def run(commit: str) -> Store:
        words = ["main.py", "run", "crossover", "--limit", "8", "--out", "runs/a b", "--resume"]
        machine = {"cores": 2, "cpu": "a", "threads": 1}
        provenance = {"argv": words, "machine": machine, "versions": {"torch": "2"}, "git": {"commit": commit}}
        suite = {"tasks": [{"name": "humaneval", "limit": 8}], "max_new_tokens": 4, "description": "where it ends"}
        manifest = {"provenance": provenance, "suite": suite, "created": "2026-11-25T00", "key": {}, "cells": {}}
        return cast("Store", SimpleNamespace(path=Path("none"), manifest=Manifest.read(manifest), cells=list))

    written = results.of_runs("engines", [run("a" * 40)])
    assert written.command == "stride run crossover --limit 8" and written.title == "where it ends"
    assert written.commit == "aaaaaaa" and "8 prompts of humaneval, 4 tokens each" in written.setting
    with pytest.raises(UsageError, match="several commits: aaaaaaa, bbbbbbb"):
        results.of_runs("engines", [run("a" * 40), run("b" * 40)])
