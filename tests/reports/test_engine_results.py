"""A run with engines becomes results that a page can quote."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import yaml

from stridebench.harness.errors import UsageError
from stridebench.harness.record.entries import Manifest
from stridebench.harness.record.store import Store
from stridebench.reports import engine_results, results
from tests.support.cli import stride
from tests.support.table_engine import NAME, table_engine


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
    monkeypatch.setattr(engine_results, "IMAGES", tmp_path / "images")
    engine_results.main([str(tmp_path / "run")])
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
        return cast("Store", SimpleNamespace(path=Path("none"), manifest=Manifest.read(manifest), engine_cells=list))

    written = engine_results.document([run("a" * 40)])
    assert written["command"] == "stride run crossover --limit 8" and written["title"] == "where it ends"
    assert written["commit"] == "aaaaaaa" and "8 prompts of humaneval, 4 tokens each" in written["setting"]
    with pytest.raises(UsageError, match="several commits: aaaaaaa, bbbbbbb"):
        engine_results.document([run("a" * 40), run("b" * 40)])
