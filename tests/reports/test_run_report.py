"""Lines of a history that a run appends to a file of other lines."""

from __future__ import annotations

import json
from pathlib import Path

from stridebench.harness.record.store import Store
from stridebench.reports import run_report


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
