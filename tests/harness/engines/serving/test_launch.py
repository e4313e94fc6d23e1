"""`stride engine serve`: a declared server is started, answers, and ends with its children."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import pytest
import yaml

from stridebench.harness.core.engine import EngineFault
from stridebench.harness.engines.serving import launch
from stridebench.harness.engines.serving.launch import declared, names, started
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import ENGINES
from tests.support.cli import refused, stride
from tests.support.processes import alive

CHILD = "import time; time.sleep(60)"
SERVER = (
    "import subprocess, sys; from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer;"
    f"child = subprocess.Popen([sys.executable, '-c', {CHILD!r}]);"
    "print(child.pid, flush=True);"
    "ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), SimpleHTTPRequestHandler).serve_forever()"
)


def declare(folder: Path, *command: str, **more: object) -> Path:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({"engine": "openai", "command": [sys.executable, "-c", *command], **more}))
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_server_answers_and_ends_with_its_child(tmp_path: Path) -> None:
    server = declared(str(declare(tmp_path, SERVER, "$port", health="/")))
    port = free_port()
    log = tmp_path / "log"
    words, url = server.words("", "", "127.0.0.1", port), f"http://127.0.0.1:{port}"
    with log.open("wb") as file, started(server, words, url, file) as process:
        child = int(log.read_text().split()[0])
        assert len(alive([process.pid, child])) == 2
    until = time.monotonic() + 60
    while alive([child]) and time.monotonic() < until:
        time.sleep(0.01)
    assert process.returncode is not None and not alive([child])


def test_another_server_at_the_address_is_not_taken_for_the_one_that_is_started(tmp_path: Path) -> None:
    server = declared(str(declare(tmp_path, SERVER, "$port", health="/")))
    with socket.socket() as other, (tmp_path / "log").open("wb") as log:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        assert launch.free_port("127.0.0.1", port) == port
        other.listen()
        words, url = server.words("", "", "127.0.0.1", port), f"http://127.0.0.1:{port}"
        with pytest.raises(EngineFault, match=f"something else answers at {url} already"):
            started(server, words, url, log).__enter__()
        assert launch.free_port("127.0.0.1", port) != port
    assert not (tmp_path / "log").read_text()


ILLEGAL = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
REMEDY = "set LLAMA_ARG_REPACK=0"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise SystemExit(7)", "ended with exit code 7 before it answered$"),
        (ILLEGAL, f"ended with SIGILL before it answered; {REMEDY}$"),
        (None, "cannot be started"),
    ],
)
def test_a_server_that_ends_at_once_is_a_fault_with_what_its_file_says_to_try(
    tmp_path: Path, code: str | None, told: str
) -> None:
    server = declared(str(declare(tmp_path, code or "", remedies={"SIGILL": REMEDY})))
    words = ["/no/such/program"] if code is None else server.words("", "", "127.0.0.1", 1)
    with (tmp_path / "log").open("wb") as log, pytest.raises(EngineFault, match=told):
        started(server, words, "http://127.0.0.1:9", log).__enter__()
    assert REMEDY in declared("llama_cpp").remedies["SIGILL"]


def test_a_run_quotes_the_last_lines_of_a_server_that_ended_without_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRIDE_API_KEY", secret := "sk-4711")
    code = f"import sys; print('one\\ntwo\\n\\nkey {secret}\\nno such file'); sys.exit(7)"
    entry = {"name": "openai", "serve": str(declare(tmp_path, code)), "model": "m"}
    body = {
        **{"backbones": ["tabular"], "engines": [entry], "tasks": [{"name": "tabular", "limit": 1}]},
        **{"temperature": [0], "max_new_tokens": 2},
    }
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(body))
    done = stride("run", tmp_path / "suite.yaml", "--out", tmp_path / "run")
    assert done.code == 3 and secret not in done.err
    assert "ended with exit code 7 before it answered; its output: " in done.err
    assert ", which ends: two | key (key) | no such file" in done.err


@pytest.mark.parametrize("name", names())
def test_each_shipped_server_is_of_an_engine_and_takes_a_model(name: str) -> None:
    server = declared(name)
    assert server.engine in ENGINES
    assert "synthetic" in server.ways
    for way in ("", *server.ways):
        method = f"{way}=2.5" if way == "synthetic" else way
        words = server.words("MODEL", method, "127.0.0.1", 1234)
        told = [*words, *server.variables(method, {}).values()]
        assert (way == "synthetic") == any(length in word for word in told for length in ("2.5", "1.5"))
        assert "MODEL" in words and "1234" in words and "127.0.0.1" in words and not any("$" in word for word in words)
    with pytest.raises(UsageError, match="needs a model"):
        server.words("", "", "127.0.0.1", 1)


def test_the_servers_are_listed_and_a_wrong_name_or_file_is_one_message(tmp_path: Path) -> None:
    assert "llama_cpp: ngram" in stride("engine", "serve").out
    for method in ("synthetic", "synthetic=0.5", "synthetic=much", "ngram=2"):
        assert (
            "synthetic=LENGTH" in (text := refused("engine", "serve", "vllm", "--model", "x", "--method", method))
            or "from 1" in text
        )
    variables = declared("tensorrt_llm").variables("synthetic=2.5", {})
    assert variables == {"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS": "1.5"}
    assert "did you mean 'vllm'" in refused("engine", "serve", "vlm")
    assert "no method of the server 'eagle'" in refused("engine", "serve", "vllm", "--model", "x", "--method", "eagle")
    path = tmp_path / "bad.yaml"
    path.write_text("engine: vllm\n")
    assert "declares no server" in refused("engine", "serve", path)


def test_a_plain_server_of_vllm_is_not_asked_for_the_acceptance_of_requests() -> None:
    option = "--per-request-spec-decode-metrics"  # vllm 0.32 ends with an error where nothing is drafted
    server = declared("vllm")
    assert option not in server.words("m", "", "127.0.0.1", 1)
    assert all(option in server.words("m", way, "127.0.0.1", 1) for way in ("ngram", "synthetic=2"))


def test_a_callers_variable_stands_above_a_files_and_below_a_methods() -> None:
    assert declared("vllm").variables("", {}) == {"VLLM_CPU_KVCACHE_SPACE": "2"}
    assert declared("vllm").variables("ngram", {"VLLM_CPU_KVCACHE_SPACE": "9"}) == {"VLLM_CPU_KVCACHE_SPACE": "9"}
    chosen = declared("sglang").variables("synthetic=3", {"SGLANG_SIMULATE_ACC_LEN": "1"})
    assert chosen["SGLANG_SIMULATE_ACC_LEN"] == "3"
