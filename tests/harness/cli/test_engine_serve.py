"""`stride engine serve` in a process of its own: its normal end is ^C or a supervisor's SIGTERM."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from stridebench.harness.engines.serving.keeper import PROC, descendants
from tests.support.cli import stride
from tests.support.processes import alive

SERVER = """
import http.server, os, signal, subprocess, sys, time
loop = "trap '' TERM; while :; do sleep 60; done"
subprocess.Popen(["sh", "-c", loop], start_new_session=True, stderr=subprocess.DEVNULL)  # sh says that sleep was killed
if sys.argv[2] == "stubborn":
    signal.signal(signal.SIGTERM, lambda *_: time.sleep(0.3) or os._exit(9))
if sys.argv[2] == "mute":
    time.sleep(60)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        if sys.argv[2] == "dies": os._exit(5)
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""
OWN = (
    "from stridebench.harness.engines.serving import launch; launch.PATIENCE_S = 0.5\n"
    "from stridebench.harness.cli.main import main; main()"
)


def serve(folder: Path, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SERVER, "$port", how]
    (folder / "mine.yaml").write_text(yaml.safe_dump({"engine": "openai", "command": command, "health": "/"}))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    words = [sys.executable, "-c", OWN, "engine", "serve", str(folder / "mine.yaml"), "--port", port]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.skipif(not PROC.is_dir(), reason="other sessions are found in /proc alone")
@pytest.mark.parametrize(("number", "how"), [(signal.SIGINT, "stubborn"), (signal.SIGTERM, "mute")])
def test_a_signal_is_the_normal_end_of_a_server_with_all_its_processes(tmp_path: Path, number: int, how: str) -> None:
    command = serve(tmp_path, how)
    assert command.stdout is not None
    if how == "mute":  # it is still loading
        until = time.monotonic() + 60
        while len(descendants(command.pid)) < 3 and time.monotonic() < until:
            time.sleep(0.01)
    else:
        assert command.stdout.readline().endswith("; ^C ends it\n")
    started = descendants(command.pid)
    assert len(started) >= 3  # the keeper, the server and its child
    command.send_signal(number)
    time.sleep(0.05)
    command.send_signal(number)  # a second one changes nothing
    out, err = command.communicate(timeout=60)
    assert (command.returncode, err) == (0, "") and "openai and its processes have ended" in out
    assert not alive(started)


@pytest.mark.slow
def test_a_server_that_ends_by_itself_is_told(tmp_path: Path) -> None:
    out, err = serve(tmp_path, "dies").communicate(timeout=60)
    assert "answers at" in out and "stride: openai ended with exit code 5" in err


def test_handlers_are_put_back(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"engine": "openai", "command": ["/no/such/program"]}))
    done = stride("engine", "serve", tmp_path / "mine.yaml")
    assert done.code == 2 and "cannot be started: there is no such program" in done.err
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
