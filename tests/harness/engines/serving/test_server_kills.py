"""`kill -9` of a server in the middle of a suite: nothing that was finished is asked again, and counts are equal."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from stridebench.harness.engines.serving.keeper import descendants
from stridebench.harness.engines.serving.launch import kept, stop
from stridebench.harness.record.store import Store

PROMPTS, KILLED_AFTER = 8, 3
ROOT = Path(__file__).parents[4]
SERVER = """
import sys, threading
from tests.support.answer_server import Answers, answer_server
told = {"num_spec_steps": 1, "num_draft_tokens": 4, "num_accepted_draft_tokens": 2, "acceptance_histogram": [0, 0, 1]}
events = [{"choices": [{"index": 0, "text": "a", "token_ids": [1]}]},
          {"choices": [{"index": 0, "text": "bc", "token_ids": [2, 3], "finish_reason": "length"}]},
          {"choices": [], "usage": {"completion_tokens": 3}, "metrics": {"speculative_decoding": told}}]
with answer_server(Answers(events=events, pause_s=0.03, port=int(sys.argv[1]))):
    threading.Event().wait()
"""


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextmanager
def serving(port: int) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = kept([sys.executable, "-c", SERVER, str(port)], environment, sys.__stderr__)  # it ends with this test
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False)
                break
            except httpx.TransportError:
                time.sleep(0.05)
        yield process
    finally:
        stop(process)


def suite(folder: Path, port: int) -> Path:
    entry = {"name": "vllm", "label": "served", "url": f"http://127.0.0.1:{port}", "prompt": "text"}
    body = {
        **{"backbones": ["smollm2-135m"], "engines": [entry], "tasks": [{"name": "humaneval", "limit": PROMPTS}]},
        **{"temperature": [0], "max_new_tokens": 3, "warmup": 0, "reference": False},
    }
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump(body))
    return path


def stride(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "stridebench.harness.cli.main", *map(str, words)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(run: Path) -> list[dict[str, object]]:
    payloads = [json.loads(path.read_text())["payload"] for path in run.glob("requests/*/*.json")]
    return [row for row in payloads if row["status"] == "ok"]


@pytest.mark.faults
def test_a_server_that_is_killed_costs_the_requests_under_way_alone(tmp_path: Path) -> None:
    port, run = free_port(), tmp_path / "run"
    path = suite(tmp_path, port)
    with serving(port) as server:
        command = stride("run", path, "--out", run)
        until = time.monotonic() + 300
        while len(finished(run)) < KILLED_AFTER and command.poll() is None and time.monotonic() < until:
            time.sleep(0.005)
        (killed,) = descendants(server.pid)
        os.kill(killed, signal.SIGKILL)
        _, err = command.communicate(timeout=300)
    assert command.returncode == 3 and "--resume" in err, err
    before = {str(row["prompt"]): row for row in finished(run)}
    assert KILLED_AFTER <= len(before) < PROMPTS
    with serving(port):
        command = stride("run", path, "--out", run, "--resume")
        _, err = command.communicate(timeout=300)
    assert command.returncode == 0, err
    store = Store.open(run)
    (name,) = store.engine_cells()
    table = store.cell(name).requests.set_index("prompt")
    assert len(table) == PROMPTS and (table["status"] == "ok").all() and (table["accepted"] == 2).all()
    assert {prompt for prompt, session in table["session"].items() if session == 0} == set(before)
    for prompt, row in before.items():
        assert (table.loc[prompt, "sent_ns"], table.loc[prompt, "ended_ns"]) == (row["sent_ns"], row["ended_ns"])
