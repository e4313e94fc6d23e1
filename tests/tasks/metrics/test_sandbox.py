"""What a program of a model can and cannot do, with namespaces and as on a kernel without them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stridebench.harness.errors import UsageError
from stridebench.harness.registry import TASKS
from stridebench.tasks.humaneval import HumanEval
from stridebench.tasks.metrics import sandbox, sandbox_child
from stridebench.tasks.metrics.sandbox import Limits, run
from tests.support.cli import stride

LINUX = sys.platform.startswith("linux")
ROOT = Path(__file__).resolve().parents[3]
NAMED = "import ctypes\nctypes.CDLL(None).prctl(15, {name!r}.encode(), 0, 0, 0)\n"


@pytest.fixture(params=[True, pytest.param(False, marks=pytest.mark.faults)], ids=["namespaces", "none"])
def namespaces(request) -> bool:
    if request.param and not sandbox.isolation().network:
        pytest.skip("this kernel refuses new namespaces")
    return request.param


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """Make the temporary folders of this test in one place, and return it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tmp_path.chmod(0o755)
    return tmp_path


def alive(name: str) -> list[int]:
    """Return the living processes of that name."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if f"({name})" in fields and fields.rpartition(")")[2].split()[0] != "Z":
            pids.append(int(folder.name))
    return pids


@pytest.mark.parametrize(
    ("program", "reason", "detail"),
    [
        ("x = 1", "passed", ""),
        ("print('x' * 50_000_000, flush=True)", "passed", ""),
        ("if __name__ == '__main__':\n    raise KeyError('ran')", "error", "KeyError: 'ran'"),
        ("assert 1 == 2, 'unequal'", "assertion", "AssertionError: unequal"),
        ("1 / 0", "error", "ZeroDivisionError: division by zero"),
        ("def f(:", "error", "SyntaxError"),
        ("\x00", "error", "null bytes"),
        ("x = '\ud800'", "error", "UnicodeEncodeError"),
        ("import numpy", "error", "ModuleNotFoundError"),
        ("input()", "error", "EOFError"),
        ("def f():\n    f()\nf()", "error", "RecursionError"),
        ("open('big', 'wb').write(bytes(40 << 20))", "error", "File too large"),
        ("x = bytearray(3 << 30)", "memory", "MemoryError"),
        ("kept = []\nwhile True: kept.append(bytes(1 << 20))", "memory", "MemoryError"),
        ("import sys; sys.exit(0)", "exit", "SystemExit: 0"),
        ("import os; os._exit(0)", "exit", "code 0"),
        ("import os; os._exit(3)", "exit", "code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed", "SIGSEGV"),
        ("class E(Exception):\n    def __str__(self): raise E\nraise E", "error", "E: "),
        ("raise ValueError('x' * 10**6)", "error", "ValueError: xxx"),
        ("import atexit, threading, time\natexit.register(time.sleep, 60)\n"
         "threading.Thread(target=time.sleep, args=(60,)).start()", "passed", ""),
        ("import os\nassert os.listdir('.') == []\nopen('kept', 'w').write('x')\nopen('kept').read()", "passed", ""),
    ],
)  # fmt: skip
def test_how_a_program_ends(namespaces, program, reason, detail):
    if reason == "memory" and not LINUX:
        pytest.skip("address space is limited on Linux only")
    outcome = run(program, limits=Limits(timeout_s=20, memory_mb=256, namespaces=namespaces))
    assert (outcome.reason, outcome.passed) == (reason, reason == "passed"), outcome
    assert detail in outcome.detail and len(outcome.detail) <= 300


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "import signal, time\nfor n in set(signal.Signals) - {9, 19}: signal.signal(n, signal.SIG_IGN)\n"
        "while True: time.sleep(1)",
        "import os\nos.closerange(3, 1024)\nwhile True: pass",
        "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E",
    ],
    ids=["loop", "sleep", "signals ignored", "channel closed", "endless message"],
)
def test_the_wall_limit_holds(namespaces, program):
    outcome = run(program, limits=Limits(timeout_s=0.4, namespaces=namespaces))
    assert outcome.reason == "timeout" and "0.4 s" in outcome.detail


def test_the_least_memory_is_enough_to_start():
    assert run("import re, math", limits=Limits(memory_mb=sandbox.LEAST_MEMORY_MB)).passed


# Each defines f; the check wants f(2) == 3. EVERY_FD sends bytes to whatever the program has open.
EVERY_FD = "import os, pickle\nfor fd in range(64):\n    try: os.write(fd, {data})\n    except OSError: pass\n"
EQUAL = "class E{base}:\n    __eq__ = lambda *a: True\n    __hash__ = lambda *a: 0\n"
CHEATS = {
    "a wrong answer": "f = lambda x: x",
    "nothing": "",
    "an exit": "import os\ndef f(x): os._exit(0)",
    "an exit while it is defined": "import os\nos._exit(0)",
    "a system exit": "import sys\ndef f(x): sys.exit(0)",
    "a printed pass": "f = print('[\"passed\", \"\"]', flush=True)",
    "a written pass": EVERY_FD.format(data='b\'["passed", ""]\''),
    "junk": EVERY_FD.format(data="b'x' * 70_000"),
    "values before the call": EVERY_FD.format(data="pickle.dumps(('value', 4)) * 9"),
    "an object that equals everything": EQUAL.format(base="") + "f = lambda x: E()",
    "an integer that equals everything": EQUAL.format(base="(int)") + "f = lambda x: E(7)",
    "a list that equals everything": EQUAL.format(base="(list)") + "f = lambda x: E()",
    "a changed comparison": "import builtins\nbuiltins.AssertionError = KeyError\ndef f(x): raise KeyError",
    "code in a message": "class E:\n    def __reduce__(self): return exec, ('import os; os._exit(0)',)\n"
    + EVERY_FD.format(data="pickle.dumps(('value', E()))"),
    "a class in a message": "import collections\n"
    + EVERY_FD.format(data="pickle.dumps(('value', collections.Counter()))"),
    "an endless list in a message": "class E:\n    def __reduce__(self): return iter, (int, 1)\n"
    + EVERY_FD.format(data="pickle.dumps(('value', E())) + pickle.dumps(('value', E()))"),
    "frames": "import sys, gc\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n"
    "        for value in [*frame.f_locals.values(), *frame.f_globals.values()]:\n"
    "            if isinstance(value, list): value[:] = ['passed']\n"
    "            if isinstance(value, dict) and 'check' in value: value['check'] = ''\n        frame = frame.f_back",
    "the answer, from the source of the check": "import gc, re, sys\ndef f(x):\n    frame, seen = sys._getframe(), []\n"
    "    while frame:\n        seen += frame.f_locals.values()\n        frame = frame.f_back\n"
    "    for value in [*seen, *gc.get_objects()]:\n"
    "        if isinstance(value, dict) and 'check' in value:\n"
    "            return int(re.search('== ([0-9]+)', str(value['check']))[1])\n",
    "the process of the check": "import os, signal\nfor pid in [os.getppid(), *range(2, 64)]:\n"
    "    for name in ('fd/1', 'fd/3', 'mem'):\n"
    "        try: open(f'/proc/{pid}/{name}', 'wb').write(b'[\"passed\", \"\"]')\n"
    "        except (OSError, ValueError): pass\nf = lambda x: x",
    "a second process": "import os\nif os.fork(): os._exit(0)\nf = lambda x: x",
}  # fmt: skip


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_program_cannot_write_its_verdict(namespaces, cheat):
    outcome = run(CHEATS[cheat], "assert remote('f')(2) == 3", limits=Limits(timeout_s=2, namespaces=namespaces))
    assert not outcome.passed


def test_a_completion_of_humaneval_cannot_write_its_verdict():
    """Such a program once found the channel of the verdict in the frames above it."""
    task = HumanEval()
    cheat = (
        "\n    import os, sys\n    frame = sys._getframe()\n    while frame:\n"
        "        for reports in list(frame.f_locals.values()):\n"
        "            if isinstance(reports, dict) and 'passed' in reports:\n"
        "                os.write(frame.f_locals['channel'], reports['passed'])\n"
        "        frame = frame.f_back\n    os._exit(0)\n"
    )
    assert task.score(task.prompts()[0], cheat, ()) == {"pass@1": 0.0}
    equal = "\n    class E:\n        __eq__ = lambda *a: True\n    return E()\n"
    assert task.score(task.prompts()[0], equal, ()) == {"pass@1": 0.0}


@pytest.mark.parametrize("kind", sandbox_child.NAMED, ids=lambda kind: kind.__name__)
def test_no_class_of_a_message_can_be_given_another_comparison(kind):
    with pytest.raises((TypeError, AttributeError)):
        kind.__eq__ = set


RAISES = "try:\n    f(1)\nexcept {0} as error:\n    assert str(error) == {1!r}\nelse:\n    assert 0"


@pytest.mark.parametrize(
    ("program", "check"),
    [
        ("f = lambda x: x + 1", "assert remote('f')(2) == 3"),
        ("f = lambda *a, **k: (a, k)", "assert f(1, [2.5], b={'c': {3}}) == ((1, [2.5]), {'b': {'c': {3}}})"),
        ("import collections\nf = lambda x: collections.Counter(x)", "assert f('aab') == {'a': 2, 'b': 1}"),
        ("import collections\nP = collections.namedtuple('P', 'x y')\nf = lambda x: P(x, 1)", "assert f(0) == (0, 1)"),
        ("f = lambda x: map(str, x)", "assert list(f([1, 2])) == ['1', '2']"),
        ("f = lambda x: x.keys()", "assert f({'a': 1}) == {'a'}"),
        ("f = lambda x: None if x else float('inf')", "assert f(1) is None and f(0) > 1e300"),
        ("import datetime as d\nf = lambda x: d.date(1, 1, x)", "import datetime as d\nassert f(2) == d.date(1, 1, 2)"),
        ("class P:\n    x = 5\nf = lambda p: p.x if isinstance(p, P) else P()", "assert f(f(1)) == 5"),
        ("count = 0\ndef f(x):\n    global count\n    count += x\n    return count", "assert f(1) == 1 and f(1) == 2"),
        ("def f(x): raise ValueError('bad')", RAISES.format("ValueError", "bad")),
        ("class E(Exception): pass\ndef f(x): raise E('new')", RAISES.format("Exception", "new")),
    ],
)  # fmt: skip
def test_arguments_and_results_are_those_of_a_call(program, check):
    outcome = run(program, check, ["f"])
    assert outcome.passed, outcome


@pytest.mark.skipif(not LINUX, reason="processes are found through /proc")
@pytest.mark.parametrize(
    "program",
    [
        "import os\nwhile True:\n    os.fork()",
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.fork()\n    time.sleep(60)",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\nos._exit(0)",
    ],
    ids=["fork until refused", "fork bomb", "session left, twice", "session left, exit"],
)
def test_nothing_outlives_a_run(program):
    if not sandbox.isolation().processes:
        pytest.skip("bubblewrap is not installed, or does not work here")
    name = f"sb{os.getpid()}"
    run(NAMED.format(name=name) + program, limits=Limits(timeout_s=1))
    assert until(lambda: alive(name) == [])


@pytest.mark.skipif(not LINUX, reason="a death signal is a service of Linux")
def test_a_killed_harness_leaves_no_orphan(namespaces, tmp_path):
    name = f"kb{os.getpid()}"
    program = NAMED.format(name=name) + "while True: pass"
    source = (
        f"from stridebench.tasks.metrics.sandbox import Limits, run\n"
        f"run({program!r}, limits=Limits(timeout_s=60, namespaces={namespaces}))"
    )
    temporary = {**os.environ, "TMPDIR": str(tmp_path)}  # a killed harness cannot remove its folder
    with subprocess.Popen([sys.executable, "-c", source], cwd=ROOT, env=temporary) as harness:
        assert until(lambda: alive(name) != [])
        harness.send_signal(signal.SIGKILL)
    assert until(lambda: alive(name) == [])


def until(condition, seconds: float = 60.0) -> bool:
    """Return whether the condition becomes true in time."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def attacks(victim: Path, server: Path, address: tuple[str, int], pid: int) -> dict[str, str]:
    """Return attacks on a file of the user, its servers and one of its processes; each must raise."""
    name = repr(str(victim))
    return {
        "write": f"open({name}, 'w')",
        "append": f"open({name}, 'a')",
        "truncate": f"os.truncate({name}, 0)",
        "remove": f"os.remove({name})",
        "rename": f"os.rename({name}, 'mine')",
        "replace": f"open('mine', 'w').close(); os.replace('mine', {name})",
        "hard link": f"os.link({name}, 'link'); open('link', 'w')",
        "symbolic link": f"os.symlink({name}, 'symbolic'); open('symbolic', 'w')",
        "new folder": f"os.mkdir({name} + '.new')",
        "new fifo": f"os.mkfifo({name} + '.fifo')",
        "set attribute": f"os.setxattr({name}, 'user.stride', b'x')",
        "change owner": f"os.chown({name}, 1, 1)",
        "change mode": f"os.chmod({name}, 0)",
        "change times": f"os.utime({name}, (1, 1))",
        "a library": f"open({json.__file__!r}, 'a')",
        "a file in the root folder": "open('/stride-sandbox-test', 'w')",
        "shared memory": "open('/dev/shm/stride-sandbox-test', 'w')",
        "device": "os.mknod('device', 0o20666, os.makedev(1, 5))",
        "signal": f"os.kill({pid}, 9)",
        "signal all": "assert os.kill(-1, 0) and 0",
        "limit": f"import resource; resource.prlimit({pid}, resource.RLIMIT_NOFILE, (5, 5))",
        "affinity": f"os.sched_setaffinity({pid}, {{0}})",
        "memory of a process": f"open('/proc/{pid}/mem', 'wb')",
        "environment": f"open('/proc/{pid}/environ', 'rb').read(1) and 1",
        "connect": f"socket.socket(socket.AF_UNIX).connect({str(server)!r})",
        "connect to a port": f"socket.create_connection({address!r}, 2)",
        "mount": "import ctypes; assert ctypes.CDLL(None).umount2(os.getcwd().encode(), 2) == 0",
        "become root": "os.setuid(0); assert os.geteuid() == 0 and os.getuid() == 0 and open('/etc/shadow', 'a')",
    }


@pytest.mark.parametrize("bubblewrap", [False, True], ids=["alone", "inside bubblewrap"])
def test_no_attack_on_the_users_things_succeeds(tmp_path, monkeypatch, bubblewrap):
    if bubblewrap and not sandbox.isolation().bubblewrap:
        pytest.skip("bubblewrap is not installed, or does not work here")
    monkeypatch.setattr(sandbox, "bubblewrap", sandbox.bubblewrap if bubblewrap else lambda: None)
    isolation = run("pass").isolation
    if not (isolation.files and isolation.network):
        pytest.skip("this kernel refuses new namespaces, or the harness does not run as root")
    victim, server = tmp_path / "victim", tmp_path / "stream"
    victim.write_text("whole")
    with socket.socket(socket.AF_UNIX) as stream, socket.create_server(("127.0.0.1", 0)) as port:
        stream.bind(str(server))
        stream.listen()
        acts = attacks(victim, server, port.getsockname(), os.getpid())
        if not bubblewrap:
            del acts["shared memory"]  # any user may write there, and `missing` says so
        program = (
            f"import os, socket\nbad = []\nfor title, act in {acts!r}.items():\n    try:\n        exec(act)\n"
            "    except (OSError, AssertionError):\n        pass\n    else:\n        bad.append(title)\n"
            "assert not bad, bad\n"
        )
        outcome = run(program, limits=Limits(timeout_s=20))
    assert outcome.passed, outcome
    assert {path.name for path in tmp_path.iterdir()} == {"victim", "stream"} and victim.read_text() == "whole"


def test_the_environment_and_descriptors_of_the_harness_do_not_leak(namespaces, monkeypatch):
    monkeypatch.setenv("STRIDE_SECRET", "leak")
    with tempfile.TemporaryFile() as secret:
        os.set_inheritable(secret.fileno(), True)
        program = (
            "import os\nassert not os.environ, dict(os.environ)\n"
            f"try:\n    inode = os.fstat({secret.fileno()}).st_ino\nexcept OSError:\n    inode = None\n"
            f"assert inode != {os.fstat(secret.fileno()).st_ino}\n"
            "try:\n    text = open('/proc/self/environ').read()\nexcept OSError:\n    text = ''\n"
            "assert 'leak' not in text\n"
        )
        outcome = run(program, limits=Limits(namespaces=namespaces))
        assert outcome.passed, outcome


@pytest.mark.parametrize(
    "program",
    [
        "import os\nfor _ in range(1100):\n    os.mkdir('d')\n    os.chdir('d')",
        "import os\nos.makedirs('a/b/c')\nopen('a/b/f', 'w')\n[os.chmod(d, 0) for d in ('a/b', 'a')]",
        "import os\nos.symlink('/', 'root')\nos.mkfifo('fifo')\nos.symlink('missing', 'dangling')",
        "open('file', 'w')\nwhile True: pass",
    ],
    ids=["deep", "locked", "links", "timeout"],
)
def test_everything_left_in_the_folder_is_removed(namespaces, alone, program):
    endless = "while" in program
    outcome = run(program, limits=Limits(timeout_s=0.5 if endless else 30, namespaces=namespaces))
    assert outcome.reason == ("timeout" if endless else "passed"), outcome
    assert list(alone.iterdir()) == []


def test_root_is_left_behind(namespaces):
    if not LINUX or os.geteuid() != 0:
        pytest.skip("the harness does not run as root")
    program = "import os\nassert 0 not in os.getresuid() + os.getresgid()\nassert os.getgroups() == []"
    assert run(program, limits=Limits(namespaces=namespaces)).passed


@pytest.mark.faults
@pytest.mark.parametrize(
    "start",
    [("unshare", "--user", "--map-root-user"), ("setpriv", "--bounding-set", "-sys_admin,-setuid")],
    ids=["no other users", "no change of user"],
)
def test_root_of_a_container_leaves_its_rights_behind(namespaces, start):
    """A root that cannot change its user drops all capabilities and can still write in its folder."""
    if shutil.which(start[0]) is None or subprocess.run([*start, "true"], capture_output=True).returncode:
        pytest.skip(f"{start[0]} is not permitted here")
    program = (
        "import ctypes, struct\nhead = ctypes.create_string_buffer(struct.pack('=Ii', 0x20080522, 0))\n"
        "sets = ctypes.create_string_buffer(24)\nassert ctypes.CDLL(None).capget(head, sets) == 0\n"
        "assert sets.raw == bytes(24), sets.raw\nopen('a', 'w').write('x')\n"
    )
    source = (
        "from stridebench.tasks.metrics.sandbox import Limits, run\n"
        f"outcome = run({program!r}, limits=Limits(namespaces={namespaces}))\nassert outcome.passed, outcome"
    )
    ended = subprocess.run([*start, sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    "program",
    [
        "import asyncio\nasync def f():\n    await asyncio.sleep(0.01)\n    return 3\nassert asyncio.run(f()) == 3",
        "import shutil, tempfile\nopen('a', 'w').write('x')\nshutil.copy2('a', 'b')\nassert open('b').read() == 'x'\n"
        "with tempfile.NamedTemporaryFile() as f: f.write(b'x')\ntempfile.mkdtemp(dir='.')",
        "import hashlib, re, math, random, decimal, datetime, zlib, json, uuid, queue\n"
        "uuid.uuid4()\nqueue.Queue().put(1)",
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as p: assert list(p.map(abs, [-1])) == [1]",
        "import os\npid = os.fork()\nif pid == 0: os._exit(3)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3",
        "import sqlite3\ndb = sqlite3.connect('d.sqlite')\ndb.execute('create table t (x)')\ndb.commit()",
    ],
    ids=["asyncio", "copies", "library", "pool", "fork", "sqlite"],
)
def test_a_program_of_the_standard_library_runs(namespaces, program):
    outcome = run(program, limits=Limits(timeout_s=20, namespaces=namespaces))
    assert outcome.passed, outcome


def test_a_program_ends_the_same_way_each_time():
    program = "import random\nraise ValueError(hash('stride'), random.random(), list({'a', 'b', 'c', 'd'}))"
    assert run(program).detail == run(program).detail


def test_programs_run_at_the_same_time():
    programs = [f"assert {index} % 2" for index in range(8)]
    with ThreadPoolExecutor(4) as pool:
        assert [outcome.passed for outcome in pool.map(run, programs)] == [False, True] * 4


def test_no_descriptor_is_kept(namespaces):
    if not LINUX:
        pytest.skip("descriptors are counted through /proc")
    before = len(os.listdir("/proc/self/fd"))
    for program in ("pass", "while True: pass", "import os; os._exit(1)"):
        run(program, limits=Limits(timeout_s=0.2, namespaces=namespaces))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("raise OSError('broken here')", "broken here"),
        ("import sys; sys.exit(7)", "code 7"),
        ("import time; time.sleep(60)", "nothing was heard"),
    ],
)
def test_a_child_that_does_not_start_is_an_error(monkeypatch, tmp_path, source, says):
    broken = tmp_path / "child.py"
    broken.write_text(source)
    monkeypatch.setattr(sandbox, "CHILD", broken)
    monkeypatch.setattr(sandbox, "START_S", 0.5 if "sleep" in source else 30)
    with pytest.raises(UsageError, match=f"did not start: .*{says}"):
        run("pass")


def test_an_interpreter_that_cannot_be_run_is_an_error(monkeypatch, alone):
    monkeypatch.setattr(sys, "executable", str(alone / "python"))
    with pytest.raises(UsageError, match="cannot be run"):
        run("pass")
    assert list(alone.iterdir()) == []


class TestBubblewrap:
    def test_its_command_line(self, monkeypatch):
        """As documented in bwrap(1) of version 0.8: new namespaces, nothing but the named paths, /tmp of 16 MiB."""
        monkeypatch.setattr(sandbox, "_readable", lambda: ["/usr", "/lib64"])
        monkeypatch.setattr(sandbox, "DEVICES", ["/dev/null"])
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        assert " ".join(sandbox.wrapped("bwrap", ["/usr/bin/python3", "-S", sandbox.INSIDE], 16)) == (
            "bwrap --unshare-ipc --unshare-pid --unshare-net --unshare-uts --unshare-cgroup-try --unshare-user-try "
            "--ro-bind /usr /usr --ro-bind /lib64 /lib64 --ro-bind /usr/bin/python3 /usr/bin/python3 "
            f"--ro-bind {sandbox.CHILD} /stride-child.py --dev-bind /dev/null /dev/null --proc /proc "
            "--size 16777216 --perms 777 --tmpfs /tmp --chdir /tmp --remount-ro / --die-with-parent "
            "-- /usr/bin/python3 -S /stride-child.py"
        )

    def test_no_shown_folder_lies_below_another(self, monkeypatch):
        for prefix in (sys.base_prefix, "/"):
            monkeypatch.setattr(sys, "base_prefix", prefix)
            folders = sandbox._readable()
            assert "/" not in folders and not [(a, b) for a in folders for b in folders if a.startswith(f"{b}/")]
            assert any(os.__file__.startswith(f"{folder}/") for folder in folders)

    @pytest.mark.parametrize("script", ["exit 1", "exec sleep 60"])
    def test_one_that_does_not_work_here_is_not_used(self, tmp_path, monkeypatch, script):
        (tmp_path / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bwrap").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.setattr(sandbox, "TRIAL_S", 0.2)
        assert not run("pass").isolation.bubblewrap

    def test_it_is_used_if_it_works(self, tmp_path, monkeypatch):
        """A stand-in runs the command behind its words."""
        (tmp_path / "bwrap").write_text(
            '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\n'
            f'eval "set -- $(echo "$@" | sed "s|{sandbox.INSIDE}|{sandbox.CHILD}|")"\nexec "$@"\n'
        )
        (tmp_path / "bwrap").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        assert run("pass").isolation.bubblewrap and sandbox.isolation
        assert not run("pass", limits=Limits(namespaces=False)).isolation.bubblewrap


def test_the_warning_says_what_is_missing_and_the_run_stores_it(tmp_path, monkeypatch):
    assert sandbox.Isolation(True, True, True, True).missing() == []
    bare = sandbox.Isolation(False, False, False)
    assert bare.missing() == list(sandbox.MISSING.values())
    monkeypatch.setattr(sandbox, "isolation", lambda: bare)
    monkeypatch.setattr(TASKS.get("tabular"), "runs_code", True)
    words = ("--backbone", "tabular", "--task", "{name: tabular, limit: 1}", "--method", "autoregressive")
    more = ("--max-new-tokens", 2, "--json", "--allow-code-execution", "--out", tmp_path / "run")
    outcome = stride("run", *words, *more)
    assert outcome.code == 0, outcome.err
    assert all(words in outcome.err for words in bare.missing())
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["provenance"]["sandbox"]["network"] is False
    assert "sandbox" not in manifest["key"]
