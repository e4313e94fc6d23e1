"""A run with engines becomes results that a page can quote."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from reports import engine_results, results
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
