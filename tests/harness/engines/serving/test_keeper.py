"""What a server started ends with it, in whatever session it lies and however the process ends that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stridebench.harness.core.engine import EngineFault
from stridebench.harness.engines.serving import keeper, launch
from tests.support.processes import alive

pytestmark = pytest.mark.skipif(not keeper.PROC.is_dir(), reason="other sessions are found in /proc alone")
STUBBORN = "trap '' TERM; echo $$ >> {pids}; while :; do sleep 60; done"
SERVER = (
    'setsid sh -c "$1" & '  # a child in a session of its own
    '(setsid sh -c "$1" &) ; '  # one whose parent has ended: it belongs to nobody
    "echo $$ >> $0; $2"
)
OWNER = """
import os, signal, sys
import time
from stridebench.harness.engines.serving import launch
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so do its children
launch.PATIENCE_S = 0.1
launch.kept(sys.argv[3:], os.environ, sys.stderr)
if sys.argv[2] == "forked" and os.fork() == 0:
    os.setsid()
    time.sleep(20)  # holds the owner's end of the pipe
    os._exit(0)
print("ready", flush=True)
sys.stdin.read()
"""
ROOT = Path(__file__).parents[4]


def words(pids: Path, then: str = "exec sleep 60") -> list[str]:
    """A server with two children that ignore SIGTERM, which then does something."""
    return ["sh", "-c", SERVER.replace("$2", then), str(pids), STUBBORN.format(pids=pids)]


def read(pids: Path, number: int = 3) -> list[int]:
    """The processes of a server, once all have told their ids."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if pids.is_file() and len(ids := pids.read_text().split()) == number:
            return [int(one) for one in ids]
        time.sleep(0.005)
    raise AssertionError("the server did not start")


def ended(pids: list[int], seconds: float = 60) -> bool:
    until = time.monotonic() + seconds
    while left := alive(pids):
        if time.monotonic() > until:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            return False
        time.sleep(0.005)
    return True


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    with (tmp_path / "log").open("wb"):
        yield tmp_path / "log"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "PATIENCE_S", 0.1)


def start(log: Path, command: list[str]) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return launch.kept(command, os.environ, file)


def test_a_stop_ends_children_that_ignore_sigterm_in_sessions_of_their_own(tmp_path: Path, log: Path) -> None:
    process = start(log, words(tmp_path / "pids"))
    pids = read(tmp_path / "pids")
    assert len(alive(pids)) == 3
    launch.stop(process)
    assert not alive(pids) and process.returncode == -signal.SIGTERM
    assert set(log.read_text().split()) <= {"Killed"}  # a shell says so of a child that ends before it


def test_a_server_that_needs_a_moment_to_end_is_given_it(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "PATIENCE_S", 3600)  # a stop that waits for all of it is ended as a test that hangs
    slow = f"trap 'sleep 0.2; echo ended > {tmp_path}/told; exit 3' TERM; echo $$ > {tmp_path}/pids; "
    slow += "while :; do sleep 0.05; done"  # a long child that is being forked may miss the signal
    process = start(log, ["sh", "-c", slow])
    read(tmp_path / "pids", 1)
    launch.stop(process)
    assert process.returncode == 3 and (tmp_path / "told").is_file()


def test_the_children_of_a_server_that_died_end_and_its_end_is_told(tmp_path: Path, log: Path) -> None:
    process = start(log, words(tmp_path / "pids", "while ! [ $(wc -l < $0) = 3 ]; do sleep 0.01; done; kill -9 $$"))
    assert process.wait(60) == -signal.SIGKILL
    assert not alive(read(tmp_path / "pids"))


@pytest.mark.parametrize(("command", "code"), [("exit 7", 7), ("exit 0", 0), ("kill -ILL $$", -signal.SIGILL)])
def test_a_keeper_ends_as_its_server_ended(log: Path, command: str, code: int) -> None:
    assert start(log, ["sh", "-c", command]).wait(60) == code


def test_a_program_that_is_none_is_told(tmp_path: Path, log: Path) -> None:
    with pytest.raises(EngineFault, match=r"/no/such/program cannot be started: there is no such program"):
        start(log, ["/no/such/program"])
    (tmp_path / "garbled").write_bytes(b"\x7fELF")
    (tmp_path / "garbled").chmod(0o755)
    assert start(log, [str(tmp_path / "garbled")]).wait(60) == keeper.NOT_STARTED
    assert "cannot be started: [Errno 8]" in log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_keeper_that_is_asked_itself_ends_the_server(tmp_path: Path, log: Path, number: int) -> None:
    process = start(log, words(tmp_path / "pids"))
    pids = read(tmp_path / "pids")
    process.send_signal(number)
    process.wait(60)
    assert not alive(pids)


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSEGV])
@pytest.mark.parametrize("forked", ["alone", "forked"])
def test_a_server_and_its_children_end_with_an_owner_that_is_killed(tmp_path: Path, number: int, forked: str) -> None:
    command = [sys.executable, "-c", OWNER, "owner", forked, *words(tmp_path / "pids")]
    owner = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert owner.stdout is not None and owner.stdout.readline() == b"ready\n"
    pids = read(tmp_path / "pids")
    os.killpg(owner.pid, number)
    owner.wait(60)
    assert ended(pids)


@pytest.mark.faults
def test_a_server_is_asked_to_end_where_its_keeper_is_killed(tmp_path: Path, log: Path) -> None:
    process = start(log, ["sh", "-c", f"echo $$ > {tmp_path}/pids; exec sleep 60"])
    pids = read(tmp_path / "pids", 1)
    process.kill()
    process.wait()
    assert ended(pids)
