"""What a program of a model can and cannot do, with namespaces and as on a kernel without them."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stridebench.harness.errors import UsageError
from stridebench.tasks.metrics import sandbox
from stridebench.tasks.metrics.sandbox import Limits, run

LINUX = sys.platform.startswith("linux")
ROOT = Path(__file__).resolve().parents[3]
NAMED = "import ctypes\nctypes.CDLL(None).prctl(15, {name!r}.encode(), 0, 0, 0)\n"


@pytest.fixture(params=[True, pytest.param(False, marks=pytest.mark.faults)], ids=["namespaces", "none"])
def namespaces(request) -> bool:
    if request.param and not sandbox.isolation().processes:
        pytest.skip("this kernel refuses new namespaces")
    return request.param


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """Make the temporary folders of this test in one place, and return it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
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


def wait_for_removals() -> None:
    """Wait for the removals of folders that outlast their programs."""
    for thread in threading.enumerate():
        if thread.name.startswith("stride-sandbox-"):
            thread.join(60)


def landlock() -> bool:
    """Return whether the kernel enforces Landlock rules."""
    return LINUX and ctypes.CDLL(None).syscall(444, None, ctypes.c_long(0), ctypes.c_long(1)) > 0


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
        ("import errno\nraise OSError(errno.ENOSPC, 'full')", "disk", "full"),
        ("x = bytearray(3 << 30)", "memory", "MemoryError"),
        ("import sys; sys.exit(0)", "exit", "SystemExit: 0"),
        ("import os; os._exit(0)", "exit", "code 0"),
        ("import os; os._exit(3)", "exit", "code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed", "SIGSEGV"),
        ("class E(Exception):\n    def __str__(self): raise E\nraise E", "error", "E: "),
        ("raise ValueError('x' * 10**6)", "error", "ValueError: xxx"),
    ],
)
def test_how_a_program_ends(namespaces, program, reason, detail):
    if "3 << 30" in program and not LINUX:
        pytest.skip("address space is limited on Linux only")
    outcome = run(program, limits=Limits(timeout_s=20, namespaces=namespaces))
    assert (outcome.reason, outcome.passed) == (reason, reason == "passed")
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


def test_a_slow_list_meets_the_memory_limit(namespaces):
    program = "kept = []\nwhile True: kept.append(bytes(1 << 20))"
    outcome = run(program, limits=Limits(timeout_s=30, memory_mb=128, namespaces=namespaces))
    assert outcome.reason == ("memory" if LINUX else outcome.reason) and not outcome.passed


def test_the_least_memory_is_enough_to_start():
    assert run("import re, math", limits=Limits(memory_mb=sandbox.LEAST_MEMORY_MB)).passed


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
def test_nothing_outlives_a_run(namespaces, program):
    name = f"sb{os.getpid()}"
    run(NAMED.format(name=name) + program, limits=Limits(timeout_s=1, namespaces=namespaces))
    assert alive(name) == []


@pytest.mark.skipif(not LINUX, reason="processes are found through /proc")
def test_more_signals_to_the_guard_do_not_keep_it_from_ending_what_is_left(monkeypatch):
    def several(process):
        for _ in range(20):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.001)

    monkeypatch.setattr(subprocess.Popen, "terminate", several)
    name = f"st{os.getpid()}"
    program = (
        "import os, time\nfor _ in range(20):\n    if os.fork() == 0:\n        os.setsid()\n        time.sleep(20)"
    )
    assert run(NAMED.format(name=name) + program, limits=Limits(namespaces=False)).passed
    assert alive(name) == []


@pytest.mark.skipif(not LINUX, reason="processes are found through /proc")
def test_that_check_notices_a_remaining_process():
    name = f"ob{os.getpid()}"
    source = NAMED.format(name=name) + "import time\nprint(flush=True)\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert alive(name) == [process.pid]
        process.kill()


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


def until(condition, seconds: float = 20.0) -> bool:
    """Return whether the condition becomes true in time."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


class TestCheating:
    def test_a_report_without_the_nonce_counts_for_nothing(self, namespaces):
        program = (
            "import os\n"
            "for descriptor in range(3, 1024):\n"
            "    try:\n"
            '        os.write(descriptor, b\'{"nonce": "0", "reason": "passed", "detail": ""}\\n\')\n'
            "    except OSError:\n"
            "        pass\n"
        )
        outcome = run(program, limits=Limits(namespaces=namespaces))
        assert not outcome.passed and "channel" in outcome.detail

    @pytest.mark.parametrize("junk", ["b'x' * 70_000", "b'null\\n'", "b'[1]\\n'", "b'\\xff\\n'"])
    def test_junk_in_the_channel_counts_for_nothing(self, namespaces, junk):
        program = (
            "import os\nfor descriptor in range(3, 1024):\n"
            f"    try:\n        os.write(descriptor, {junk})\n    except OSError:\n        pass\n"
        )
        assert not run(program, limits=Limits(timeout_s=1, namespaces=namespaces)).passed

    def test_an_exit_before_the_check_does_not_pass(self, namespaces):
        program = "import os\ndef f():\n    os._exit(0)\nf()\nassert False"
        assert run(program, limits=Limits(namespaces=namespaces)).reason == "exit"

    def test_a_thread_or_exit_handler_cannot_keep_a_finished_program(self, namespaces):
        program = (
            "import atexit, threading, time\natexit.register(time.sleep, 60)\n"
            "threading.Thread(target=time.sleep, args=(60,)).start()"
        )
        assert run(program, limits=Limits(timeout_s=5, namespaces=namespaces)).passed


class TestConfinement:
    def test_the_environment_and_descriptors_of_the_harness_do_not_leak(self, namespaces, monkeypatch):
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
            assert run(program, limits=Limits(namespaces=namespaces)).passed

    def test_it_runs_in_an_empty_folder_that_is_removed(self, namespaces, alone):
        program = "import os\nassert os.listdir('.') == []\nopen('kept', 'w').write('x')\nopen('kept').read()"
        outcome = run(program, limits=Limits(namespaces=namespaces))
        assert outcome.passed, outcome
        assert list(alone.iterdir()) == []

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
    def test_everything_left_in_the_folder_is_removed(self, namespaces, alone, program):
        endless = "while" in program
        outcome = run(program, limits=Limits(timeout_s=0.5 if endless else 30, namespaces=namespaces))
        assert outcome.reason == ("timeout" if endless else "passed"), outcome
        wait_for_removals()  # it goes on after REMOVE_S seconds, which a busy machine may need
        assert list(alone.iterdir()) == []

    def test_files_of_the_user_cannot_be_written_or_removed(self, namespaces, tmp_path):
        if not sandbox.isolation().files:
            pytest.skip("neither Landlock nor a change of user on this machine")
        victim = tmp_path / "victim"
        victim.write_text("whole")
        program = (
            "import os\n"
            f"for act in (lambda: open({str(victim)!r}, 'w'), lambda: os.remove({str(victim)!r}),\n"
            f"            lambda: os.mkdir({str(tmp_path / 'new')!r}),\n"
            f"            lambda: os.truncate({str(victim)!r}, 0),\n"
            f"            lambda: os.rename({str(victim)!r}, 'mine')):\n"
            "    try:\n        act()\n    except OSError:\n        continue\n    raise SystemExit('done')\n"
        )
        outcome = run(program, limits=Limits(namespaces=namespaces))
        assert outcome.passed, outcome
        assert [entry.read_text() for entry in tmp_path.iterdir()] == ["whole"]

    @pytest.mark.parametrize(
        "program",
        [
            "import os\nassert os.system('true') == 0",
            "import os\nos.execv('/bin/sh', ['sh', '-c', 'true'])",
            "import os\nos.listdir('/proc')",
            "open('/etc/passwd')",
            "open('/dev/shm/stride-sandbox-test', 'w')",
            "open('/stride-sandbox-test', 'w')",
        ],
        ids=["shell", "exec", "processes", "users", "shared memory", "root folder"],
    )
    def test_rules_on_files_hold_whatever_the_user(self, namespaces, program):
        if not landlock():
            pytest.skip("this kernel has no Landlock")
        outcome = run(program, limits=Limits(namespaces=namespaces))
        assert outcome.reason in ("assertion", "error"), outcome
        refused = ("PermissionError", "FileNotFoundError", "OSError: [Errno 30] Read-only")
        assert outcome.reason == "assertion" or outcome.detail.startswith(refused), outcome

    def test_nothing_of_the_user_is_visible(self, tmp_path):
        if not sandbox.isolation().view:
            pytest.skip("this kernel refuses a mount namespace")
        (tmp_path / "secret").write_text("whole")
        program = (
            "import os\nassert os.getcwd() == '/tmp'\n"
            f"paths = {[str(tmp_path), str(ROOT), '/proc', '/etc/passwd', str(Path.home() / '.bashrc')]!r}\n"
            "for path in paths + ['../../..' + path for path in paths]:\n"
            "    assert not os.path.lexists(path), path\n"
        )
        outcome = run(program)
        assert outcome.passed, outcome

    def test_its_own_files_have_modes_and_times(self, alone):
        if not sandbox.isolation().view:
            pytest.skip("this kernel refuses a mount namespace")
        program = (
            "import os\nopen('/tmp/a', 'w').close()\nos.chmod('a', 0o600)\nos.utime('a', (1, 1))\n"
            "status = os.stat('a')\nassert (status.st_mode & 0o777, status.st_mtime) == (0o600, 1)\n"
        )
        assert run(program).passed
        assert list(alone.iterdir()) == []

    def test_root_is_left_behind(self, namespaces):
        if not LINUX or os.geteuid() != 0:
            pytest.skip("the harness does not run as root")
        program = "import os\nassert 0 not in os.getresuid() + os.getresgid()\nassert os.getgroups() == []"
        assert run(program, limits=Limits(namespaces=namespaces)).passed

    @pytest.mark.faults
    @pytest.mark.parametrize(
        "start",
        [
            ("unshare", "--user", "--map-root-user"),
            ("setpriv", "--bounding-set", "-sys_admin,-setuid"),
            ("setpriv", "--bounding-set", "-sys_admin,-setgid"),
        ],
        ids=["no other users", "no change of user", "no change of group"],
    )
    def test_root_of_a_container_leaves_its_rights_behind(self, namespaces, start):
        """Where it cannot change its user, it drops all capabilities and can still write in its folder."""
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

    def test_the_harness_cannot_be_signalled(self):
        if not sandbox.isolation().processes:
            pytest.skip("this kernel refuses new namespaces")
        outcome = run(f"import os\nos.kill({os.getpid()}, 0)")
        assert outcome.detail.startswith(("ProcessLookupError", "PermissionError"))

    def test_no_datagram_leaves(self):
        if not sandbox.network_isolated():
            pytest.skip("this kernel refuses new network namespaces")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
            listener.bind(("127.0.0.1", 0))
            listener.settimeout(0.3)
            address = listener.getsockname()
            program = (
                "import socket\nsender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
                f"sender.sendto(b'out', {address!r})"
            )
            outcome = run(program)
            assert outcome.reason == "error" and "OSError" in outcome.detail
            with pytest.raises(TimeoutError):
                listener.recv(8)
            subprocess.run([sys.executable, "-c", program], check=True)  # the same, unconfined
            assert listener.recv(8) == b"out"

    def test_no_connection_is_made(self):
        if not sandbox.network_isolated():
            pytest.skip("this kernel refuses new network namespaces")
        with socket.create_server(("127.0.0.1", 0)) as server:
            program = f"import socket\nsocket.create_connection({server.getsockname()!r}, 2)"
            assert run(program).reason == "error"


class TestHarnessSide:
    def test_a_slow_removal_of_files_does_not_hold_up_the_run(self, alone, monkeypatch):
        disk, rmdir = threading.Event(), Path.rmdir

        def slow(folder):
            disk.wait(20)
            rmdir(folder)

        monkeypatch.setattr(Path, "rmdir", slow)
        monkeypatch.setattr(sandbox, "REMOVE_S", 0.01)
        assert run("pass").passed
        assert len(list(alone.iterdir())) == 1
        disk.set()
        assert until(lambda: list(alone.iterdir()) == [])

    def test_a_program_ends_the_same_way_each_time(self):
        program = "import random\nraise ValueError(hash('stride'), random.random(), list({'a', 'b', 'c', 'd'}))"
        assert run(program).detail == run(program).detail

    def test_programs_run_at_the_same_time(self):
        programs = [f"assert {index} % 2" for index in range(8)]
        with ThreadPoolExecutor(4) as pool:
            assert [outcome.passed for outcome in pool.map(run, programs)] == [False, True] * 4

    def test_no_descriptor_or_process_is_kept(self, namespaces):
        if not LINUX:
            pytest.skip("descriptors are counted through /proc")
        before = len(os.listdir("/proc/self/fd"))
        for program in ("pass", "while True: pass", "import os; os._exit(1)"):
            run(program, limits=Limits(timeout_s=0.2, namespaces=namespaces))
        assert len(os.listdir("/proc/self/fd")) == before

    def test_isolation_is_reported_as_it_was(self, namespaces):
        isolation_seen = run("pass", limits=Limits(namespaces=namespaces)).isolation
        assert (isolation_seen.network, isolation_seen.processes) == (namespaces, namespaces)
        assert sandbox.network_isolated() is sandbox.isolation().network

    @pytest.mark.parametrize("source", ["raise OSError('broken here')", "import sys; sys.exit(7)"])
    def test_a_child_that_does_not_start_is_an_error_and_no_score(self, monkeypatch, tmp_path, source):
        broken = tmp_path / "child.py"
        broken.write_text(source)
        monkeypatch.setattr(sandbox, "CHILD", broken)
        with pytest.raises(UsageError, match=r"did not start: .*(broken here|code 7)"):
            run("pass")

    def test_a_silent_child_is_an_error(self, monkeypatch, tmp_path):
        broken = tmp_path / "child.py"
        broken.write_text("import time; time.sleep(60)")
        monkeypatch.setattr(sandbox, "CHILD", broken)
        monkeypatch.setattr(sandbox, "START_S", 0.5)
        with pytest.raises(UsageError, match="nothing was heard"):
            run("pass")

    def test_an_interpreter_that_cannot_be_run_is_an_error(self, monkeypatch, alone):
        monkeypatch.setattr(sys, "executable", str(alone / "python"))
        with pytest.raises(UsageError, match="cannot be run"):
            run("pass")
        assert list(alone.iterdir()) == []
