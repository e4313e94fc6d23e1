"""Executors on real engines: a worker in another process writes its cells into the same folder, and may be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stridebench.harness.plan.cells import Plan
from stridebench.harness.plan.expand import expand
from stridebench.harness.plan.resolve import resolve_again
from stridebench.harness.record.store import Store
from stridebench.harness.run import executors
from stridebench.harness.run.executors import summary
from stridebench.harness.run.loading import Options, Progress
from stridebench.harness.run.workers.pool import check
from tests.support.runs import plan_of, start
from tests.support.shape_checks import without_shape_checks

SUITE: dict[str, Any] = {
    "methods": ["sjd", {"name": "sjdpp", "tau": [0.5, float("inf")]}],
    "tasks": [{"name": "tabular", "limit": 2}],
    "max_new_tokens": 4,
}
WORKER = """
import sys
from stridebench.harness.run.loading import Options, Progress
from stridebench.harness.run.workers.cluster import Unit
from stridebench.harness.run.workers.cluster import CellWorker
from stridebench.harness.run.workers.protocol import WorkerSetup
unit = Unit({cells!r}, ("tabular", "fp64"))
assert CellWorker(WorkerSetup({suite!r}, sys.argv[1], Options())).run(unit) is None
"""
MANY: dict[str, Any] = {
    "methods": ["sjd", "speculative", {"name": "sjdpp", "tau": [0.5, 2.0]}],
    "backbones": ["tabular", "random-llama-1m"],
    "tasks": [{"name": "tabular", "limit": 4}],
    "temperature": [0.0],
    "max_new_tokens": 12,
    "timing": False,
}


@pytest.mark.slow
def test_a_fresh_process_runs_a_unit_of_a_dumped_suite(tmp_path: Path, stride_env: dict[str, str]) -> None:
    plan = plan_of(**SUITE)
    store = start(tmp_path / "run", plan)
    cells = tuple(cell.id for cell in plan.cells)
    code = WORKER.format(suite=plan.suite.suite.model_dump(), cells=cells).replace("inf]", "float('inf')]")
    subprocess.run([sys.executable, "-c", code, store.address], check=True, env=stride_env)
    assert sorted(store.cells()) == sorted(cells)
    assert all(len(store.cell(name).samples) == 3 for name in store.cells())


def workers(words: str) -> list[int]:
    """Processes of this user whose command line begins with, or for jobs holds, some words."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            environment = (folder / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if words in line and f"STRIDE_TEST_RUN={os.getpid()}" in environment:
            pids.append(int(folder.name))
    return pids


class Killer(threading.Thread):
    """Kills the workers while they surely have a cell that is begun and not sealed, once some cells are sealed.

    They stand still while the cells are looked at, so that none is sealed between the look and the kill.
    """

    def __init__(self, path: Path, words: str, after: int) -> None:
        super().__init__(daemon=True)
        self._path, self._words, self._after = path, words, after
        self.killed = False
        self.survivors: list[int] = []
        self.niceness = -1

    def run(self) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not self.killed:
            if len(self._cells("cells")) >= self._after and self._begun() and (pids := workers(self._words)):
                signalled(pids, signal.SIGSTOP)
                if self._begun() and workers(self._words) == pids:
                    self.niceness = os.getpriority(os.PRIO_PROCESS, pids[0])
                    signalled(pids, signal.SIGKILL)
                    self.killed = True
                signalled(pids, signal.SIGCONT)
            time.sleep(0.01)

    def _begun(self) -> set[str]:
        return self._cells("records") - self._cells("cells")

    def _cells(self, folder: str) -> set[str]:
        return {path.name for path in self._path.glob(f"{folder}/*")}


class KillerOfOne(Killer):
    """Kills one of two workers that surely has a cell which is begun and not sealed, while the other goes on.

    One worker stands still. A cell that was begun before, and is not sealed when the other worker has sealed one that
    it began later, is the still one's, because a worker has one cell at a time.
    """

    def run(self) -> None:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline and not self.killed:
            pids = workers(self._words)
            if len(pids) == 2 and self._begun():
                signalled(pids[:1], signal.SIGSTOP)
                self.killed = self._has_a_cell(deadline)
                self.survivors = [pid for pid in workers(self._words) if pid != pids[0]]
                signalled(pids[:1], signal.SIGKILL if self.killed else signal.SIGCONT)
            time.sleep(0.01)

    def _has_a_cell(self, deadline: float) -> bool:
        begun, sealed = self._begun(), self._cells("cells")
        while time.monotonic() < deadline and begun - self._cells("cells"):
            if self._cells("cells") - sealed - begun:
                return bool(begun - self._cells("cells"))
            time.sleep(0.01)
        return False


def signalled(pids: list[int], number: int) -> None:
    """Send a signal to processes; some may have ended."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def assert_as_serial(plan: Plan, store: Store, path: Path) -> None:
    """No cell is missing or failed, and every output is that of a serial run."""
    counts = summary(plan, store)
    assert (counts["done"], counts["failed"]) == (len(plan.cells), 0)
    serial = start(path, plan)
    with without_shape_checks():
        executors.serial(plan, serial, Options())
    assert {name: store.outputs(name) for name in store.cells()} == {
        name: serial.outputs(name) for name in serial.cells()
    }


@pytest.mark.faults
@pytest.mark.parametrize(
    ("executor", "options", "words", "after"),
    [
        ("ray", {"workers": 2}, "ray::CellWorker", 3),
        ("slurm", {"cluster": "local", "poll_s": 0.2, "units": 4}, "submitit.core._submit", 1),
    ],
)
def test_killed_workers_cost_no_cell(
    executor: str, options: dict[str, Any], words: str, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip({"ray": "ray", "slurm": "submitit"}[executor])
    monkeypatch.setenv("STRIDE_TEST_RUN", str(os.getpid()))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[3]))
    plan = plan_of(**MANY)
    store = start(tmp_path / "run", plan)
    killer = Killer(store.path, words, after)
    killer.start()
    executors.EXECUTORS[executor](plan, store, Options(executor=check(executor, options)))
    killer.join(1)
    assert killer.killed
    assert killer.niceness == os.getpriority(os.PRIO_PROCESS, 0), "Ray gives its workers less of the processor"
    assert_as_serial(plan, store, tmp_path / "serial")
    assert any(store.meta(name).lost_workers for name in store.cells())


@pytest.mark.faults
def test_a_killed_worker_beside_one_that_lives_costs_no_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other worker goes on, and the one cell that was lost names the loss."""
    pytest.importorskip("ray")
    monkeypatch.setenv("STRIDE_TEST_RUN", str(os.getpid()))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[3]))
    plan = plan_of(**{**MANY, "temperature": [1.0]})  # no cell waits for its baseline
    store, said = start(tmp_path / "run", plan), Continues([])
    killer = KillerOfOne(store.path, "ray::CellWorker", 0)
    killer.start()
    executors.EXECUTORS["ray"](plan, store, Options(executor=check("ray", {"workers": 2}), progress=said))
    killer.join(1)
    assert killer.killed and len(killer.survivors) == 1
    lost = [name for name in store.cells() if store.meta(name).lost_workers]
    again = [text for text in said.said if text.startswith("runs again: ")]
    assert len(lost) == len(again) == 1 and lost[0] in again[0]
    assert len(store.meta(lost[0]).lost_workers) == 1
    assert_as_serial(plan, store, tmp_path / "serial")


class Continues(Progress):
    """Lets stopped processes go on once the run has said something."""

    def __init__(self, stopped: list[int]) -> None:
        self.stopped, self.said = stopped, list[str]()

    def say(self, text: str) -> None:
        self.said.append(text)
        for pid in self.stopped:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.faults
def test_a_resumed_run_waits_for_jobs_that_still_live(tmp_path: Path, stride_env: dict[str, str]) -> None:
    """The jobs stand still from the kill of the run until the resumed one has found them."""
    pytest.importorskip("submitit")
    run = tmp_path / "run"
    words = ["--method", "sjd", "--method", "{name: sjdpp, tau: [0.5, 2.0]}", "--backbone", "random-llama-1m"]
    words += ["--task", "{name: tabular, limit: 8}", "-t", "1", "--max-new-tokens", "32", "--set", "prove=false"]
    words += ["--set", "timing=off", "--executor", "slurm", "--executor-option", "cluster=local", "--out", str(run)]
    command = [sys.executable, "-c", "from stridebench.harness.cli.main import main; main()", "run", *words]
    mark = {**stride_env, "STRIDE_TEST_RUN": str(os.getpid())}
    driver = subprocess.Popen(command, env=mark, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(run.glob("records/*/*")) and driver.poll() is None:
        time.sleep(0.02)
    jobs = workers("submitit.core._submit")
    for pid in jobs:
        os.kill(pid, signal.SIGSTOP)
    driver.kill()
    driver.wait()
    submitted = sorted(run.glob("workers/slurm/*_submitted.pkl"))
    assert jobs and submitted
    manifest = json.loads((run / "manifest.json").read_text())
    plan = expand(resolve_again(manifest["suite"]))
    store, progress = Store.resume(run, manifest), Continues(jobs)
    options = check("slurm", {"cluster": "local", "poll_s": 0.2})
    executors.EXECUTORS["slurm"](plan, store, Options(executor=options, progress=progress))
    store.release()
    assert "still live, and are waited for" in progress.said[0]
    assert sorted(run.glob("workers/slurm/*_submitted.pkl")) == submitted
    counts = summary(plan, store)
    assert (counts["done"], counts["failed"]) == (len(plan.cells), 0)
    assert not any(store.meta(name).lost_workers for name in store.cells())
    assert not workers("submitit.core._submit")


@pytest.mark.faults
def test_a_run_goes_on_after_its_driver_was_killed(tmp_path: Path, stride_env: dict[str, str]) -> None:
    pytest.importorskip("ray")
    words = ["--method", "sjd", "--method", "{name: sjdpp, tau: [0.5, 2.0]}", "--backbone", "tabular"]
    words += ["--task", "{name: tabular, limit: 4}", "-t", "0", "-t", "1", "--max-new-tokens", "8"]
    words += ["--set", "prove=false", "--set", "timing=off", "--executor", "ray", "--json"]
    words += ["--out", str(tmp_path / "run")]
    command = [sys.executable, "-c", "from stridebench.harness.cli.main import main; main()", "run", *words]
    driver = subprocess.Popen(command, env=stride_env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list((tmp_path / "run").glob("cells/*")) and driver.poll() is None:
        time.sleep(0.02)
    driver.kill()
    driver.wait()
    done = subprocess.run([*command, "--resume"], env=stride_env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    store = Store.open(tmp_path / "run")
    assert len(store.cells()) == 9 and all(len(store.cell(name).samples) == 4 for name in store.cells())
