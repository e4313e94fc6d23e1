"""`stride engine watch` against a server that gives recorded answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stridebench.harness.cli.engine as watch_module
from stridebench.harness.discover import declare_all
from stridebench.harness.engines.serving.engines import Watched
from stridebench.harness.errors import UsageError
from stridebench.harness.plan.entries import EngineUse, TaskUse
from stridebench.harness.registry import TASKS
from tests.support.answer_server import Answers, answer_server
from tests.support.cli import refused, stride

WORDS = ("--every", "0.01s", "--limit", "1", "--max-new-tokens", "3", "--json")


def answer(accepted: int) -> tuple[dict[str, Any], ...]:
    told = {"num_spec_steps": 1, "num_draft_tokens": 4, "num_accepted_draft_tokens": accepted}
    choice = {"index": 0, "text": "abc", "finish_reason": "length", "token_ids": [1, 2, 3]}
    last = {"choices": [], "usage": {"completion_tokens": 3}, "metrics": {"speculative_decoding": told}}
    return ({"choices": [choice]}, last)


@pytest.fixture
def answers() -> Iterator[Answers]:
    with answer_server(Answers(events=answer(2))) as running:
        yield running


def watch(answers: Answers, history: Path, *words: str) -> Any:
    return stride("engine", "watch", answers.url, *WORDS, "--history", history, *words)


def test_each_reading_is_a_line_and_a_move_is_told_at_its_third(answers: Answers, tmp_path: Path) -> None:
    history = tmp_path / "watch.jsonl"
    done = watch(answers, history, "--for", "0.05s")
    before = done.document["readings"]
    while before < 4:
        before += watch(answers, history, "--for", "0.05s").document["readings"]
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    assert done.code == 0 and done.document["moved"] == [] and len(lines) == before
    assert {line["acceptance"] for line in lines} == {0.5} and {line["length_per_draft"] for line in lines} == {3.0}
    assert all(line["status"] == "done" and line["ttft_ms"] > 0 for line in lines)
    assert answers.asked[0]["temperature"] == 0 and isinstance(answers.asked[0]["prompt"], str)
    answers.events = answer(1)
    moved = []
    while not moved:
        done = watch(answers, history, "--for", "0.03s")
        moved = done.document["moved"]
    assert done.code == 1 and "acceptance moved from 0.50 to 0.25" in moved[0]
    assert "acceptance" in stride("gate", "history", history, "--out", tmp_path).out


def test_a_server_that_is_gone_is_a_line_and_the_watch_goes_on(answers: Answers, tmp_path: Path) -> None:
    history = tmp_path / "watch.jsonl"
    answers.status, answers.body = 500, "boom"
    done = watch(answers, history, "--for", "0.01s")
    assert done.code == 3 and done.document == {"readings": 1, "failed": 1, "moved": []}
    (line,) = map(json.loads, history.read_text().splitlines())
    assert line["status"] == "failed" and line["fault"] == "server_error"
    answers.status = 200
    assert watch(answers, history, "--for", "0.01s").code == 0


def test_the_key_comes_from_the_variable_that_is_named(
    answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret")
    history = tmp_path / "watch.jsonl"
    assert watch(answers, history, "--for", "0.01s", "--key-env", "MY_KEY").code == 0
    assert answers.keys == ["Bearer sk-secret"]
    answers.status, answers.body = 401, "no such key: sk-secret"
    failed = watch(answers, history, "--for", "0.01s", "--key-env", "MY_KEY")
    assert failed.code == 3 and "secret" not in failed.out + failed.err + history.read_text()


def counted(tokens: int) -> str:
    return f"# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total {tokens}\n"


def test_a_restart_between_two_readings_is_told_and_one_within_is_a_fault(answers: Answers) -> None:
    answers.metrics = [counted(number) for number in (100, 103, 0, 3, 9, 2)]
    declare_all()
    probes = TASKS.get("humaneval")()
    use = EngineUse("vllm", "server", {"url": answers.url, "prompt": "text"})
    watched = Watched(use, TaskUse("humaneval", probes, 1), probes.prompts()[:1], 3)
    first, second, third = (watched.line() for _ in range(3))
    assert first["status"] == second["status"] == "done" and "restarted" not in first and second["restarted"] is True
    told = "was started again since the reading before"
    assert told in watch_module._text(second) and told not in watch_module._text(first)
    assert third["status"] == "failed" and "went backwards" in third["error"]


def test_wrong_durations_and_engines_are_one_message(tmp_path: Path) -> None:
    wrong = stride("engine", "watch", "http://127.0.0.1:9", "--every", "soon")
    assert wrong.code == 2 and "write 60s, 5m, 8h or 1d" in wrong.err
    assert "nothing to watch" in refused("engine", "watch", "http://127.0.0.1:9", "--engine", "transformers")
    assert "did you mean 'vllm'" in refused("engine", "watch", "http://127.0.0.1:9", "--engine", "vlm")


def test_engines_and_probes_are_declared_before_they_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def declared() -> None:
        raise UsageError("declared")

    monkeypatch.setattr(watch_module, "declare_all", declared)
    assert refused("engine", "watch", "http://127.0.0.1:9", "--engine", "vlm") == "stride: declared\n"
