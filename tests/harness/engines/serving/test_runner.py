"""Engines that cannot start on this machine are skipped with their reason, and tried again by `--resume`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from stridebench.harness.record.store import Store
from tests.support.answer_server import Answers, answer_server
from tests.support.cli import Outcome, refused, stride
from tests.support.table_engine import NAME, REQUESTS, TableEngine, table_engine

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def _engine() -> Any:
    with table_engine():
        yield


def suite(folder: Path, *engines: dict[str, Any], **more: Any) -> Path:
    body = {"backbones": ["tabular"], "engines": engines, "tasks": [{"name": "tabular", "limit": 2}]}
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump({**body, "temperature": [0.0], "max_new_tokens": 5, "warmup": 0, **more}))
    return path


def run(path: Path, *words: object) -> Outcome:
    return stride("run", path, "--out", path.parent / "run", *words)


def test_the_shipped_suite_skips_every_engine_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("stridebench.harness.engines.serving.launch.find_spec", lambda name: None)
    document = stride("run", "servers", "--dry-run", "--json").document
    skips = {entry["label"]: entry["skip"] for entry in document["engines"]}
    assert all(skip or label.startswith("transformers") for label, skip in skips.items()), "it comes with the package"
    assert "httpx" in skips["vLLM"] and "openvino_genai" in skips["openvino"]


@pytest.mark.parametrize(
    ("entry", "command", "reason"),
    [
        ({"name": "openai", "url": NOWHERE}, [], "nothing answers at http://127.0.0.1:9"),
        ({"name": "openai", "url": "there"}, [], "not the address of a server"),
        ({"name": "vllm"}, ["no-such-program"], "there is no program no-such-program"),
        ({"name": "vllm"}, ["python", "-m", "no_such_module.server"], "has no module no_such_module"),
        ({"name": "vllm"}, ["python", "-m", "http.server"], None),
    ],
)
def test_each_reason_why_an_entry_cannot_start_is_told(
    tmp_path: Path, entry: dict[str, Any], command: list[str], reason: str | None
) -> None:
    if command:
        (tmp_path / "server.yaml").write_text(yaml.safe_dump({"engine": "vllm", "command": command}))
        entry = {**entry, "serve": str(tmp_path / "server.yaml")}
    path = suite(tmp_path, entry, reference=False)
    (told,) = stride("run", path, "--dry-run", "--json").document["engines"]
    if reason is None:
        assert told["skip"] is None and shutil.which("python")
        return
    assert reason in told["skip"]
    assert f"nothing to run; {entry['name']}: " in refused("run", path, "--out", tmp_path / "run")


def test_cells_of_engines_that_run_are_counted_and_timed(tmp_path: Path) -> None:
    path = suite(tmp_path, {"name": NAME, "label": "here"}, {"name": "openai", "url": NOWHERE})
    dry = stride("run", path, "--dry-run", "--json").document["estimate"]
    assert (dry["decodes"], dry["tokens"]) == (2, 10) and dry["seconds"] > 0
    assert "1 cell, 2 decodes of up to 10 tokens together" in stride("run", path, "--dry-run").out


def test_a_skipped_engine_is_told_by_the_run_and_runs_when_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = suite(tmp_path, {"name": NAME, "label": "here"}, {"name": NAME, "label": "late", "tag": "late"})
    monkeypatch.setattr(TableEngine, "needs", ("no_such_module",))
    assert "needs the module no_such_module" in refused("run", path, "--out", tmp_path / "run")
    monkeypatch.setattr(TableEngine, "needs", ())
    there = {"name": "vllm", "label": "there", "url": NOWHERE}
    path = suite(tmp_path, {"name": NAME, "label": "here"}, there, reference=False)
    first = run(path)
    assert first.code == 0 and "skipped: there, load 1: nothing answers" in first.out.replace("\n", " ")
    skipped = run(path, "--resume", "--json").document["engines_skipped"]
    assert [(one["label"], one["load"]) for one in skipped] == [("there", "1")]
    REQUESTS.clear()
    ids = [1, 2, 3, 1, 2]
    events: list[Any] = [{"choices": [{"index": 0, "text": "abc", "token_ids": ids, "finish_reason": "length"}]}]
    with answer_server(Answers(events=[*events, {"choices": [], "usage": {"completion_tokens": 5}}])) as server:
        again = run(path, "--resume", "--url", f"there={server.url}", "--json")
    assert again.code == 0, again.err
    rows = {row["label"]: row["status"] for row in again.document["engines"]}
    assert rows == {"here": "done", "there": "done"} and not REQUESTS


@pytest.mark.parametrize("removed", ["folder", "requests"])
def test_a_run_whose_folder_or_requests_are_removed_ends_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: str
) -> None:
    path = suite(tmp_path, {"name": NAME, "label": "plain"}, tasks=[{"name": "tabular", "limit": 3}])
    answer, asked = TableEngine.generate, iter(range(100))

    def removing(engine: TableEngine, request: Any) -> Any:
        if next(asked) == 2:
            shutil.rmtree(tmp_path / "run" / ("" if removed == "folder" else "requests"))
        return answer(engine, request)

    monkeypatch.setattr(TableEngine, "generate", removing)
    ended = run(path)
    reason = {"folder": "holds no run any more", "requests": "has 1 of 3 decodes"}[removed]
    assert ended.code == 3 and reason in ended.err
    if removed == "requests":
        assert run(path, "--resume").code == 0
        store = Store.open(tmp_path / "run")
        assert len(store.cell(store.engine_cells()[0]).requests) == 3
