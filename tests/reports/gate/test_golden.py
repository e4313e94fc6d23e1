"""Engines of a run in the layouts of other tools, and against one reference length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from stridebench.harness.core.engine import EngineRequest, Reply
from stridebench.reports.interchange.readers import read
from tests.support.cli import refused, stride
from tests.support.table_engine import NAME, TableEngine, table_engine


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("golden")
    entries = [{"name": NAME, "label": "plain"}, {"name": NAME, "label": "drafts", "plain": "plain"}]
    body = {
        **{"backbones": ["tabular"], "engines": entries, "tasks": [{"name": "tabular", "limit": 8}]},
        **{"temperature": [0], "max_new_tokens": 4, "warmup": 0, "reference": False},
    }
    (folder / "suite.yaml").write_text(yaml.safe_dump(body))
    with table_engine():
        assert stride("run", folder / "suite.yaml", "--out", folder / "run").code == 0
        yield folder / "run"


def test_records_and_golden_lengths_are_written_and_read_again(run: Path, tmp_path: Path) -> None:
    records, golden = tmp_path / "a.jsonl", tmp_path / "g.yaml"
    assert stride("exchange", "export", run, "--layout", "aiperf", "--out", records).code == 0
    result = read(records)
    assert len(result.requests) == 8 and (result.length, result.rate, result.flaws) == (2.0, 0.5, ())
    assert stride("exchange", "export", run, "--layout", "golden-al", "--drafts", 2, "--out", golden).code == 0
    assert read(golden).golden == {("drafts, T = 0, 1", 2): 2.0}
    assert "is there already" in refused("exchange", "export", run, "--layout", "aiperf", "--out", records)
    assert "add --drafts" in refused("exchange", "export", run, "--layout", "golden-al")
    assert (
        stride("gate", "check", run, "--golden", golden).code
        == stride("gate", "check", run, "--golden", records).code
        == 0
    )


def test_a_baseline_holds_engines_and_the_gate_sees_drafts_that_are_lost(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    baseline = tmp_path / "b.json"
    assert stride("gate", "make", run, "--out", baseline).code == 0
    same = stride("gate", "check", run, "--baseline", baseline)
    assert same.code == 0 and same.out.startswith("pass: all ")
    generate = TableEngine.generate

    def fewer(engine: TableEngine, request: EngineRequest) -> Reply:
        reply = generate(engine, request)
        assert reply.acceptance is not None
        return replace(reply, acceptance=replace(reply.acceptance, accepted=1, histogram=(1, 1), told_length=None))

    monkeypatch.setattr(TableEngine, "generate", fewer)
    assert stride("run", run.parent / "suite.yaml", "--out", tmp_path / "worse").code == 0
    worse = stride("gate", "check", tmp_path / "worse", "--baseline", baseline)
    assert worse.code == 1 and "tau - 1" in worse.out


def test_a_longer_reference_fails_and_a_near_one_passes_within_its_margin(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "g.yaml"
    path.write_text(yaml.safe_dump({"m": {"on": {2: 2.04, 3: 2.5}, "off": {2: 1.5}}}))
    asked = ("gate", "check", run, "--golden", path, "--setting", "on", "--drafts")
    assert stride(*asked, 2).code == 0
    failed = stride(*asked, 3, "--json")
    assert failed.code == 1 and failed.document["verdict"] == "fail"
    assert failed.document["rows"][0]["length"] == 2.0
    assert stride(*asked, 2, "--margin", 0.01).code == 1
    assert "name one of its settings" in refused("gate", "check", run, "--golden", path)
    assert "name a draft length" in refused(*asked, 9)
    assert "one of them" in refused("gate", "check", run)
