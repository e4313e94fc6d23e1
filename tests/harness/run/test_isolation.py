"""Methods that end or hold up their process fail their own cells, and no others."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harness.record.store import Store
from harness.registry import METHODS
from tests.support.cli import stride
from tests.support.runs import by_label, counted

PLUGIN = Path(__file__).resolve().parents[2] / "plugins" / "bad_day"
WORDS = ("--backbone", "tabular", "--task", "{name: tabular, limit: 2}", "--max-new-tokens", 4, "--json")


@pytest.fixture()
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The plugin, installed in a folder on the path; its file of starts."""
    folder, project = tmp_path / "site", tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    info = folder / "stride_bad_day-1.0.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(PLUGIN / "stride_bad_day.py", folder)
    points = (
        f"[{group}]\n{name} = {value}\n" for group, p in project["entry-points"].items() for name, value in p.items()
    )
    (info / "entry_points.txt").write_text("".join(points))
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    monkeypatch.syspath_prepend(folder)
    for name in ("_items", "_source", "_broken"):
        monkeypatch.setattr(METHODS, name, dict(getattr(METHODS, name)))
    monkeypatch.setattr(METHODS, "_plugins", set())
    monkeypatch.setattr(METHODS, "_loaded", False)
    starts = tmp_path / "starts"
    monkeypatch.setenv("BAD_DAY_STARTS", str(starts))
    return starts


def bad_day(fault: str, proof: bool = False) -> tuple[str, str]:
    return "--method", f"{{name: bad_day, fault: {fault}, proof: {str(proof).lower()}}}"


def cell_of(cells: dict[str, Any], fault: str) -> Any:
    (cell,) = [cell for cell in cells.values() if cell.meta["params"].get("fault") == fault]
    return cell


def columns(cell: Any) -> Any:
    """What does not depend on the time that a decode takes."""
    return [tuple(map(str, row)) for row in counted(cell)[["status", "tokens", "agreement", "logprobs"]].values]


@pytest.mark.slow
def test_what_ends_a_plugins_process_fails_its_cells_alone(tmp_path: Path, plugin: Path) -> None:
    reasons = {"segfault": "SIGSEGV", "exit": "exit code 0", "kill": "SIGKILL", "hang": "passed the limit of 3 s"}
    methods = [word for fault in (*reasons, "none") for word in bad_day(fault)]
    limits = ("--set", "sample_limit_s=3")
    outcome = stride("run", "--method", "sjd", *methods, *WORDS, *limits, "--out", tmp_path / "run")
    cells = by_label(Store.open(tmp_path / "run"))
    assert (outcome.code, outcome.document["done"], outcome.document["failed"]) == (1, 7, 2 * len(reasons))
    for fault, reason in reasons.items():
        cell = cell_of(cells, fault)
        assert counted(cell)["error"].str.contains(reason).all(), counted(cell)["error"].tolist()
        assert cell.meta["verdict"]["word"] is None
    assert Counter(plugin.read_text().split()) >= Counter({fault: 1 for fault in reasons})
    assert all(plugin.read_text().split().count(fault) == 1 for fault in reasons)  # the warm-up; no decode after it
    error = counted(cell_of(cells, "segfault"))["error"].iloc[0]
    log = tmp_path / "run" / error.partition("see ")[2].partition(" in the run")[0]
    assert "Fatal Python error: Segmentation fault" in log.read_text()
    assert "stride_bad_day.py" in log.read_text()
    assert not list((tmp_path / "run" / "started").iterdir())

    healthy = cell_of(cells, "none")
    assert healthy.meta["verdict"]["word"] == "exact"
    alone = ("--method", "sjd", *bad_day("none"), *WORDS, "--set", "isolation=none", "--out", tmp_path / "alone")
    assert stride("run", *alone).code == 0
    for name, cell in by_label(Store.open(tmp_path / "alone")).items():
        assert columns(cell) == columns(cells[name])
        assert cell.meta["verdict"] == cells[name].meta["verdict"]
