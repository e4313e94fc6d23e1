"""The report of a run, whose plots are drawn if they are asked for or missing, and the lines of a history."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stridebench.harness.record.store import Store
from stridebench.reports import forest, pareto, run_report
from tests.support import fake_store
from tests.support.cli import stride, undrawn, undrawn_forest
from tests.support.page_runs import stored

APPROXIMATE = {"word": "approximate", "total_variation": 0.1, "greedy": None, "note": ""}


def opened(path: Path, created: str) -> Store:
    """A run without cells, of a time and a folder."""
    return Store.create(path, {"cells": {}, "key": {}, "created": created})


def test_lines_of_others_stay_byte_by_byte_and_half_a_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    others = b'{"cell": "c\xff"}\n{"cell": "c0", "crea'
    path.write_bytes(others)
    run_report.append(path, [{"cell": "c0"}], opened(tmp_path / "run", "2026-01-01T00:00:00+00:00"))
    head, tail = path.read_bytes().split(b"crea\n")
    assert head + b"crea" == others and json.loads(tail)["cell"] == "c0"


def test_a_run_that_was_moved_and_resumed_writes_its_lines_anew(tmp_path: Path) -> None:
    path, created = tmp_path / "history.jsonl", "2026-01-01T00:00:00+00:00"
    run_report.append(path, [{"cell": "c0", "scr": 1.0}, {"cell": "c1", "scr": 1.0}], opened(tmp_path / "a", created))
    run_report.append(path, [{"cell": "c0", "scr": 2.0}], opened(tmp_path / "b", created))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["cell"], row["scr"]) for row in rows] == [("c1", 1.0), ("c0", 2.0)]


def test_plots_are_drawn_if_they_are_asked_for_missing_or_of_other_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forest, "write", undrawn_forest)
    monkeypatch.setattr(pareto, "write", undrawn)

    def plots(run: Store, draw: bool = False) -> list[str]:
        files = run_report.RunReport(run).write(tmp_path / "report", draw)
        assert {"summary.md", "summary.csv", "summary.tex"} <= {path.name for path in files}
        return [path.name for path in files if path.name.startswith("forest")]

    run, other = stored(fake_store.tiny(), tmp_path / "run"), fake_store.tiny(verdict=APPROXIMATE)
    assert plots(run) == ["forest.png", "forest.svg"] and plots(run) == []
    assert plots(run, draw=True) == ["forest.png", "forest.svg"]
    (tmp_path / "report" / "forest.svg").unlink()
    assert plots(run) == ["forest.png", "forest.svg"]
    assert plots(stored(other, tmp_path / "other")) == ["forest.png", "forest.svg"]


def test_json_prints_rows_and_writes_nothing(tmp_path: Path) -> None:
    run = stored(fake_store.tiny(), tmp_path / "run")
    before = sorted(tmp_path.rglob("*"))
    assert len(stride("report", run.path, "--json").document) == len(run.manifest.cells)
    assert sorted(tmp_path.rglob("*")) == before
