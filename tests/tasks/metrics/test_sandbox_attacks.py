"""Programs of attack, as root and as an ordinary user, with namespaces and without: nothing outside may change."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from stridebench.harness.registry import TASKS
from stridebench.tasks.metrics import sandbox, sandbox_calls
from stridebench.tasks.metrics.sandbox import Limits, run
from tests.support.cli import stride
from tests.tasks.metrics import sandbox_attacks

ROOT = Path(__file__).resolve().parents[3]
NOBODY = 65534
PYTHON = "/usr/bin/python3"  # an ordinary user may be unable to read this interpreter

pytestmark = pytest.mark.skipif(
    sandbox_calls.architecture() is None or not sandbox.isolation().calls,
    reason="no seccomp filter for this kernel or architecture",
)


@pytest.fixture(params=["this user", pytest.param("ordinary user", marks=pytest.mark.faults)])
def user(request) -> int:
    if request.param == "this user":
        return 0
    if os.geteuid() != 0:
        pytest.skip("this user is an ordinary one")
    version = [PYTHON, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    if not Path(PYTHON).exists() or subprocess.run(version).returncode:
        pytest.skip(f"{PYTHON} is not Python 3.11 or later")
    return NOBODY


@pytest.fixture
def folder(user):
    """A folder that the ordinary user reaches too."""
    above = Path(tempfile.mkdtemp(prefix="stride-attacks-", dir="/tmp"))
    path = above / "attacked"
    path.mkdir()
    if user:
        os.chown(above, user, user)
        os.chown(path, user, user)
    yield path
    shutil.rmtree(above)


@pytest.fixture(params=[True, pytest.param(False, marks=pytest.mark.faults)], ids=["namespaces", "none"])
def namespaces(request) -> bool:
    return request.param


def test_there_are_a_hundred_attacks():
    some = Path("/x")
    groups = (
        sandbox_attacks.refused_calls(),
        sandbox_attacks.outside(some, some, some, 1),
        sandbox_attacks.seen(some, 1),
    )
    assert sum(map(len, groups)) >= 150


def test_a_few_attacks_of_each_kind_are_refused(folder):
    few = sandbox_attacks.FEW if sandbox.isolation().view else sandbox_attacks.FEW[:-1]
    assert sandbox_attacks.attempt(folder, True, few) == []


@pytest.mark.faults
@pytest.mark.parametrize("layer", sandbox_attacks.LAYERS)
def test_no_attack_succeeds(user, folder, layer):
    if layer.startswith("bubblewrap") and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    if layer == "bubblewrap alone" and os.geteuid() == 0 and not user:
        pytest.skip("root may always make namespaces")
    command = [PYTHON if user else sys.executable, "-s", "-B", "-m", sandbox_attacks.__name__]
    ended = subprocess.run(
        [*command, str(user), str(folder), layer],
        cwd="/",
        env={"PYTHONPATH": str(ROOT), "TMPDIR": "/tmp", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    if "PermissionError" in ended.stderr and user:
        pytest.skip("the ordinary user cannot read this checkout")
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    assert result["problems"] == []
    around = layer.startswith("bubblewrap")
    assert result["isolation"]["bubblewrap"] is around
    absent = {sandbox.MISSING["group"]} | (
        {sandbox.MISSING[name] for name in ("processes", "view")} if layer == "none" else set()
    )
    assert set(result["missing"]) <= absent or not sandbox.isolation().view, result


@pytest.mark.faults
def test_the_attacks_succeed_without_the_filter(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "filter_rules", lambda: None)
    assert not sandbox.run("pass").isolation.calls
    # Attacks that do no harm: an ordinary user may limit, slow or kill the process of this test.
    harmless = ("bind", "socket UNIX", "pair of packets", "code in memory")
    problems = " ".join(sandbox_attacks.attempt(tmp_path, False, harmless))
    assert all(title in problems for title in harmless), problems


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (
            "import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n        break\n"
            "kept = bytearray(b'x') * (60 << 20)\ntime.sleep(20)",
            "memory",
        ),
        (
            "import mmap, os, time\nfor _ in range(4):\n    if os.fork() == 0:\n        break\n"
            "kept = mmap.mmap(-1, 60 << 20)\nkept.write(bytes(60 << 20))\ntime.sleep(20)",
            "memory",
        ),
        (
            "for name in range(100):\n    open(str(name), 'wb').write(bytes(5 << 20))\nimport time; time.sleep(20)",
            "disk",
        ),
        pytest.param("for name in range(10 ** 7):\n    open(str(name), 'w').close()", "disk", marks=pytest.mark.slow),
        (
            "import os, time\nkept = []\nfor _ in range(30):\n    kept.append(open('a', 'wb'))\n"
            "    kept[-1].write(bytes(5 << 20))\n    kept[-1].flush()\n    os.remove('a')\ntime.sleep(20)",
            "disk",
        ),
    ],
    ids=["processes", "shared pages", "files", "empty files", "removed files"],
)
def test_memory_and_disk_are_those_of_the_whole_program(namespaces, program, reason):
    if not sandbox.isolation().resources:
        pytest.skip("this kernel does not list the children of a process")
    start = time.monotonic()
    outcome = run(program, limits=Limits(timeout_s=15, memory_mb=160, namespaces=namespaces))
    assert outcome.reason == reason, outcome
    assert time.monotonic() - start < 12


@pytest.mark.parametrize(
    "program",
    [
        "import asyncio\nasync def f():\n    await asyncio.sleep(0.01)\n    return 3\nassert asyncio.run(f()) == 3",
        "import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()",
        "import shutil, tempfile\nopen('a', 'w').write('x')\nshutil.copy2('a', 'b')\nassert open('b').read() == 'x'\n"
        "with tempfile.NamedTemporaryFile() as f: f.write(b'x')\ntempfile.mkdtemp(dir='.')",
        "import hashlib, re, math, random, decimal, datetime, zlib, json, uuid, queue\n"
        "uuid.uuid4()\nqueue.Queue().put(1)",
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as p: assert list(p.map(abs, [-1]))",
        "import os\npid = os.fork()\nif pid == 0: os._exit(3)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3",
        "import socket\na, b = socket.socketpair()\na.sendall(b'x')\nassert b.recv(1) == b'x'",
        "import sqlite3\ndb = sqlite3.connect('d.sqlite')\ndb.execute('create table t (x)')\ndb.commit()",
    ],
    ids=["asyncio", "thread", "copies", "library", "pool", "fork", "pair", "sqlite"],
)
def test_a_program_of_the_standard_library_runs(namespaces, program):
    outcome = run(program, limits=Limits(timeout_s=20, namespaces=namespaces))
    assert outcome.passed, outcome


def test_what_is_missing_is_said():
    names = dict.fromkeys(sandbox.MISSING, True)
    assert sandbox.Isolation(**names).missing() == []
    assert sandbox.Isolation(**{**names, "network": False}).missing() == []  # without sockets there is no network
    bare = sandbox.Isolation(False, False, False)
    assert bare.missing() == list(sandbox.MISSING.values())


def test_the_warning_says_what_is_missing_and_the_run_stores_it(tmp_path, monkeypatch):
    bare = sandbox.Isolation(False, False, False)
    monkeypatch.setattr(sandbox, "isolation", lambda: bare)
    monkeypatch.setattr(TASKS.get("tabular"), "runs_code", True)
    words = (
        "--backbone",
        "tabular",
        "--task",
        "{name: tabular, limit: 1}",
        "--method",
        "autoregressive",
        "--max-new-tokens",
        2,
    )
    outcome = stride("run", *words, "--json", "--allow-code-execution", "--out", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    assert all(words in outcome.err for words in bare.missing())
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["provenance"]["sandbox"]["sockets"] is False
    assert "sandbox" not in manifest["key"]
