"""Faults injected into real runs: each ends with one message or goes on, and no finished sample is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from stridebench.harness.errors import StoreError
from stridebench.harness.record.store import Store
from tests.support.launcher import SMALL, Launcher, assert_same_counts, finished, progress

pytestmark = [pytest.mark.faults, pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc")]

AFTER = """
import os
class After:
    def __init__(self, owner, name, calls, act):
        self.real, self.left, self.act = getattr(owner, name), calls, act
        setattr(owner, name, self)
    def __call__(self, *arguments, **options):
        self.left -= 1
        if self.left < 0:
            self.act(*arguments)
        return self.real(*arguments, **options)
"""
"""Calls ``act`` from some call of a function of the system on."""
NO_FSYNC = f"""{AFTER}
def fail(*_): raise OSError(5, "Input/output error")
After(os, "fsync", 12, fail)
"""
READ_ONLY = """
import os, sys
def refuse(event, arguments):
    if event == "open" and "cells" in str(arguments[0]) and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
        raise OSError(30, "Read-only file system", arguments[0])
    if event == "os.mkdir" and "cells" in str(arguments[0]):
        raise OSError(30, "Read-only file system", arguments[0])
sys.addaudithook(refuse)
"""
NO_HANDLES = f"""{AFTER}
import resource
def exhaust(*_):
    used = len(os.listdir("/proc/self/fd")) - 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (used, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
After(os, "replace", 6, exhaust)
"""
NO_PROC = """
import sys
def hide(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith("/proc"):
        raise FileNotFoundError(2, "No such file or directory", arguments[0])
sys.addaudithook(hide)
"""
JUMPING_CLOCK = """
import itertools, time
real, jumps = time.time, itertools.cycle((0, -86400, 86400 * 400))
time.time = lambda: real() + next(jumps)
"""
KILLED_AT_SEAL = """
import os, signal
class Seal:
    def __init__(self, real, before): self.real, self.before = real, before
    def __call__(self, source, target):
        sealing = os.path.basename(os.path.dirname(target)) == "cells"
        if sealing and self.before: os.kill(os.getpid(), signal.SIGKILL)
        self.real(source, target)
        if sealing: os.kill(os.getpid(), signal.SIGKILL)
os.replace = Seal(os.replace, {before})
"""


def assert_resumes(launcher: Launcher, path: Path, reference: Path, before: dict[tuple[str, str], bytes]) -> None:
    """Nothing that was finished is lost or decoded again, and the run ends as one without a fault."""
    assert before.items() <= finished(path).items() or Store.open(path).cells()
    assert launcher.run("run", *SMALL, "--out", path, "--resume") == 0, launcher.err
    assert_same_counts(path, reference)


@pytest.mark.parametrize("fault", [NO_FSYNC, READ_ONLY, NO_HANDLES], ids=["EIO", "read-only", "out of handles"])
def test_a_refused_write_is_one_message_and_the_run_resumes(
    small: Path, launcher: Launcher, tmp_path: Path, fault: str
) -> None:
    path = tmp_path / "run"
    assert launcher.run("run", *SMALL, "--out", path, fault=fault) == 3, launcher.err
    assert launcher.err.count("stride: ") == 1 and "Traceback" not in launcher.err and "--resume" in launcher.err
    before = finished(path)
    assert before
    assert_resumes(launcher, path, small, before)


@pytest.mark.parametrize("fault", [NO_PROC, JUMPING_CLOCK], ids=["no /proc", "clock jumps"])
def test_a_strange_machine_changes_no_count(small: Path, launcher: Launcher, tmp_path: Path, fault: str) -> None:
    assert launcher.run("run", *SMALL, "--out", tmp_path / "run", fault=fault) == 0, launcher.err
    assert_same_counts(tmp_path / "run", small)


@pytest.mark.parametrize("before", [True, False], ids=["before the seal", "after the seal"])
def test_a_kill_during_sealing_loses_nothing(small: Path, launcher: Launcher, tmp_path: Path, before: bool) -> None:
    path = tmp_path / "run"
    fault = KILLED_AT_SEAL.format(before=before)
    assert launcher.run("run", *SMALL, "--out", path, fault=fault) == -signal.SIGKILL
    assert len(Store.open(path).cells()) == (0 if before else 1)
    assert finished(path)
    assert_resumes(launcher, path, small, finished(path))


def test_a_terminated_run_resumes(small: Path, launcher: Launcher, tmp_path: Path) -> None:
    path = tmp_path / "run"
    launcher.start("run", *SMALL, "--out", path)
    assert launcher.signal_after(path, 5, 0.0, signal.SIGTERM) in (-signal.SIGTERM, 3)
    assert len(finished(path)) >= 5
    assert_resumes(launcher, path, small, finished(path))


def children(process: int) -> list[int]:
    """Processes whose parent is that one."""
    stats = {
        path.parent.name: path.read_text().rpartition(")")[2].split() for path in Path("/proc").glob("[0-9]*/stat")
    }
    return [int(name) for name, fields in stats.items() if int(fields[1]) == process]


def test_a_killed_worker_fails_its_cell_alone(launcher: Launcher, tmp_path: Path) -> None:
    path = tmp_path / "run"
    launcher.start("run", *SMALL, "--set", "isolation=process", "--method", "jacobi", "--out", path)
    deadline = time.monotonic() + 120
    while progress(path) < 8 and launcher.alive() and time.monotonic() < deadline:
        time.sleep(0.003)
    (worker,) = children(launcher.child)
    os.kill(worker, signal.SIGKILL)
    assert launcher.end() == 1, launcher.err
    summary = json.loads(launcher.out)
    assert summary["done"] == summary["cells"] and 1 <= summary["failed"] <= 4
    store = Store.open(path)
    statuses = {name: list(store.cell(name).samples["status"]) for name in store.cells()}
    failed = [name for name, words in statuses.items() if "failed" in words]
    errors = store.cell(failed[0]).samples["error"].dropna()
    assert len(failed) == 1 and errors.str.contains("SIGKILL").all()


def test_a_flipped_bit_is_named_wherever_it_is(small: Path, tmp_path: Path) -> None:
    """Every file that holds a count, every 97th byte of it."""
    files = [small / "manifest.json", *sorted((small / "cells").rglob("*.*"))]
    assert len([file for file in files if file.is_file()]) == 1 + 3 * 3
    for file in filter(Path.is_file, files):
        data = file.read_bytes()
        for at in range(0, len(data), 97):
            file.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
            with pytest.raises(StoreError) as damage:
                store = Store.open(small)
                for name in store.cells():
                    store.cell(name)
            assert str(small) in str(damage.value)
        file.write_bytes(data)
    assert Store.open(small).cells()


def test_a_full_file_system_is_one_message_and_the_run_resumes(small: Path, launcher: Launcher, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    size = sum(file.stat().st_blocks * 512 for file in small.rglob("*") if file.is_file()) // 3
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system of a size can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        assert launcher.run("run", *SMALL, "--out", disk / "run") == 3, launcher.err
        assert launcher.err.count("stride: ") == 1 and "--resume" in launcher.err
        subprocess.run(["mount", "-o", "remount,size=64M", disk], check=True)
        assert_resumes(launcher, disk / "run", small, finished(disk / "run"))
    finally:
        subprocess.run(["umount", disk], check=True)
