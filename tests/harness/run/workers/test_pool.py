"""Units of a plan on a pool of workers: what waits for what, and what a lost worker costs."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stridebench.harness.errors import RunIncomplete, StoreError, UsageError
from stridebench.harness.plan.cells import Plan
from stridebench.harness.record.entries import CellMeta
from stridebench.harness.record.run_notes import RunNotes
from stridebench.harness.record.store import Store
from stridebench.harness.run.executors import check_executor, summary
from stridebench.harness.run.loading import Options
from stridebench.harness.run.workers import ray, slurm
from stridebench.harness.run.workers.cluster import (
    CellWorker,
    Needs,
    Refusal,
    Unit,
    exclusive,
    lock_file,
    needs_of,
    units_of,
)
from stridebench.harness.run.workers.pool import Ended, Pool, Slurm, run_on, setup_of
from stridebench.harness.run.workers.slurm import CONTROLLER, JobBook
from tests.support.runs import counted, finished, plan_of, start
from tests.support.shape_checks import without_shape_checks

SUITE: dict[str, Any] = {
    "methods": ["sjd", {"name": "sjdpp", "tau": [0.5, 2.0]}],
    "tasks": [{"name": "tabular", "limit": 2}],
    "temperature": [0.0, 1.0],
    "max_new_tokens": 4,
    "warmup": 0,
}


@dataclass
class InProcess(Pool):
    """A pool of one worker in this process, which is lost or refuses where the test says so.

    Args:
        lost: losses left of units whose first cell begins with a text.
    """

    worker: CellWorker
    lost: dict[str, int] = field(default_factory=dict)
    refusal: Refusal | None = None
    waiting: list[Unit] = field(default_factory=list)
    order: list[Unit] = field(default_factory=list)
    closed: bool = False

    def submit(self, units: Sequence[Unit]) -> None:
        self.waiting += units

    def wait(self) -> Iterable[Ended]:
        unit = self.waiting.pop(0)
        self.order.append(unit)
        if self.refusal is not None:
            return [Ended(unit, refusal=self.refusal)]
        for name, left in self.lost.items():
            if left and unit.cells[0].startswith(name):
                self.lost[name] -= 1
                return [Ended(unit, lost="the machine is gone")]
        with without_shape_checks():
            return [Ended(unit, refusal=self.worker.run(unit))]

    def close(self) -> None:
        self.closed = True


def pool_of(plan: Plan, store: Store, **settings: Any) -> InProcess:
    return InProcess(CellWorker(setup_of(plan, store, Options())), **settings)


def pooled(path: Path, suite: dict[str, Any], retries: int = 0, **settings: Any) -> tuple[Plan, Store, InProcess]:
    """Run a suite on a pool, to its end."""
    plan = plan_of(**suite)
    store = start(path, plan)
    pool = pool_of(plan, store, **settings)
    run_on(pool, plan, store, Options(), retries)
    return plan, store, pool


def test_a_pool_ends_with_the_tokens_of_a_serial_run(tmp_path: Path) -> None:
    serial = finished(tmp_path / "serial", **SUITE)
    for timing in (True, False):
        plan, store, pool = pooled(tmp_path / f"pool-{timing}", {**SUITE, "timing": timing}, 2)
        assert summary(plan, store)["done"] == len(plan.cells) == len(serial) and pool.closed
        by_label = {(c.meta.label, c.meta.sampling.temperature): c for c in map(store.cell, store.cells())}
        for cell in serial.values():
            other = by_label[cell.meta.label, cell.meta.sampling.temperature]
            assert list(map(tuple, counted(other)["tokens"])) == list(map(tuple, counted(cell)["tokens"]))
            assert counted(other)["agreement"].equals(counted(cell)["agreement"])


def test_timed_cells_stay_with_their_baseline_and_others_wait_for_its_outputs() -> None:
    timed = units_of(plan_of(**SUITE))
    assert [len(unit.cells) for unit in timed] == [4, 5] and not any(unit.after for unit in timed)
    alone = units_of(plan_of(**SUITE, timing=False))
    assert [len(unit.cells) for unit in alone] == [1] * 9
    greedy, drawn = alone[:4], alone[4:]
    assert [unit.after for unit in greedy] == [(), *[greedy[0].cells] * 3]
    assert not any(unit.after for unit in drawn)


def test_a_lost_unit_runs_again_and_its_cells_say_so(tmp_path: Path) -> None:
    plan, store, _ = pooled(tmp_path / "run", {**SUITE, "timing": False}, 1, lost={"sjd.": 1})
    assert summary(plan, store)["failed"] == 0
    lost = [store.meta(name).lost_workers for name in store.cells() if name.startswith("sjd.")]
    assert sorted(lost) == [[], ["the machine is gone"]]
    assert not any(store.meta(name).lost_workers for name in store.cells() if not name.startswith("sjd."))


def test_a_unit_lost_too_often_fails_with_the_reason_and_no_other_does(tmp_path: Path) -> None:
    plan, store, _ = pooled(tmp_path / "run", {**SUITE, "timing": False}, 1, lost={"sjd.": 4})
    counts = summary(plan, store)
    assert (counts["done"], counts["failed"]) == (9, 4)
    failed = [cell for cell in map(store.cell, store.cells()) if (cell.samples["status"] == "failed").any()]
    assert {cell.meta.method for cell in failed} == {"sjd"}
    assert all(
        "2 workers were lost with these cells: the machine is gone" in e for c in failed for e in c.samples["error"]
    )
    assert all(cell.meta.verdict.word is None for cell in failed)


@pytest.mark.faults
def test_the_last_retry_decodes_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes, log = [], RunNotes.log_of_worker

    def counted_log(self: RunNotes, backbone: str, dtype: str) -> Path:
        processes.append(backbone)
        return log(self, backbone, dtype)

    monkeypatch.setattr(RunNotes, "log_of_worker", counted_log)
    few = {**SUITE, "methods": ["sjd"], "temperature": [1.0]}
    serial = finished(tmp_path / "serial", **few)
    plan, store, _ = pooled(tmp_path / "run", {**few, "timing": False}, 2, lost={"sjd.": 2})
    assert summary(plan, store)["done"] == len(plan.cells)
    assert processes == ["tabular"], "one worker process, that of the last retry"
    retried = next(cell for cell in map(store.cell, store.cells()) if cell.meta.lost_workers)
    expected = next(cell for cell in serial.values() if cell.meta.label == retried.meta.label)
    assert list(map(tuple, counted(retried)["tokens"])) == list(map(tuple, counted(expected)["tokens"]))


def test_a_worker_leaves_a_cell_that_another_one_finishes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was thought lost seals a cell of a unit while the retry decodes it; the unit's others are done."""
    plan = plan_of(**{**SUITE, "temperature": [0.0]})
    store, other = (start(tmp_path / name, plan) for name in ("run", "other"))
    with without_shape_checks():
        assert pool_of(plan, other).worker.run(units_of(plan)[0]) is None
    sealed, write = plan.cells[1].id, Store.write

    def first(self: Store, cell: str, record: Any) -> None:
        if cell == sealed and not self.sealed(cell):
            (self.path / "cells").mkdir(exist_ok=True)
            shutil.copytree(other.path / "cells" / cell, self.path / "cells" / cell)
        write(self, cell, record)

    monkeypatch.setattr(Store, "write", first)
    with without_shape_checks():
        assert pool_of(plan, store).worker.run(units_of(plan)[0]) is None
    assert summary(plan, store)["done"] == len(plan.cells)


def test_a_lost_baseline_leaves_the_others_without_agreement(tmp_path: Path) -> None:
    suite = {**SUITE, "temperature": [0.0], "timing": False}
    _, store, _ = pooled(tmp_path / "run", suite, lost={"autoregressive.": 1})
    methods = [store.cell(name) for name in store.cells() if not name.startswith("autoregressive.")]
    assert len(methods) == 3
    assert all(counted(cell)["agreement"].isna().all() and (counted(cell)["status"] == "ok").all() for cell in methods)


def test_a_finished_unit_is_not_run_again_and_unlike_weights_are_refused(tmp_path: Path) -> None:
    plan, store, first = pooled(tmp_path / "run", SUITE)
    second = pool_of(plan, store)
    run_on(second, plan, store, Options(), 0)
    assert len(first.order) == 2 and second.order == []
    store.update(store.cells()[0], CellMeta(fingerprint="another"))
    with pytest.raises(StoreError, match="unlike weights of tabular"):
        run_on(pool_of(plan, store), plan, store, Options(), 0)


@pytest.mark.parametrize(("incomplete", "kind"), [(True, RunIncomplete), (False, Exception)])
def test_a_refusal_ends_the_run_with_the_workers_message(
    tmp_path: Path, incomplete: bool, kind: type[Exception]
) -> None:
    plan = plan_of(**SUITE)
    store = start(tmp_path / "run", plan)
    pool = pool_of(plan, store, refusal=Refusal("the disk is full", incomplete))
    with pytest.raises(kind, match="the disk is full"):
        run_on(pool, plan, store, Options(), 2)
    assert pool.closed


def test_what_a_worker_takes_is_declared_for_its_backbone() -> None:
    declared = {"cpus": 4, "gpus": 0.5, "memory_gb": 2}
    plan = plan_of(**{**SUITE, "backbones": [{"name": "tabular", "resources": declared}]}, threads=8)
    assert needs_of(plan, units_of(plan)[0], "cuda") == Needs(8, 0.5, 2_000_000_000)
    plan = plan_of(**SUITE)
    assert needs_of(plan, units_of(plan)[0], "cpu") == Needs(1, 0.0, None)
    assert needs_of(plan, units_of(plan)[0], "cuda:0") == Needs(1, 1.0, None)


def test_declared_resources_leave_the_key_of_a_run_as_it_is() -> None:
    declared = {**SUITE, "backbones": [{"name": "tabular", "resources": {"cpus": 4}}]}
    key, other = (json.dumps(plan_of(**data).manifest()["key"]) for data in (SUITE, declared))
    assert key == other and "timing" not in key
    assert plan_of(**SUITE, timing=False).manifest()["key"]["timing"] is False


def test_a_device_is_timed_by_one_worker_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with exclusive("cpu"), lock_file("cpu").open("w") as second, pytest.raises(BlockingIOError):
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with lock_file("cpu").open("w") as second:
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_jobs_of_slurm_end_with_every_cell(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    plan = plan_of(**{**SUITE, "backbones": ["tabular", "random-llama-1m"]}, timing=False)
    store = start(tmp_path / "run", plan)
    options = Slurm.model_construct(cluster="debug", units=5, workers=2, minutes=1, retries=0, poll_s=0.01)
    pool = slurm.SlurmPool(plan, setup_of(plan, store, Options()), options, tmp_path / "jobs")
    with without_shape_checks():
        run_on(pool, plan, store, Options(), 0)
    assert summary(plan, store)["done"] == 18


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are known by /proc")
def test_jobs_of_this_machine_are_found_while_their_process_lives(tmp_path: Path) -> None:
    submitit = pytest.importorskip("submitit")
    book = JobBook(submitit, tmp_path)
    assert book.living() == {}
    words = [sys.executable, "-c", "import time; time.sleep(60)", CONTROLLER, str(tmp_path)]
    with subprocess.Popen(words) as process, subprocess.Popen(words[:3]) as another:
        jobs = [submitit.LocalJob(tmp_path, str(one.pid)) for one in (process, another)]
        book.note("local", {jobs[0]: [("a", "b"), ("c",)], jobs[1]: [("d",)]})
        with book.path.open("a") as file:
            file.write('{"cluster": "local", "jo')  # a kill cut this line short
        ((found, units),) = book.living().items()
        assert (found.job_id, units) == (str(process.pid), [("a", "b"), ("c",)])
        found.cancel()
        process.wait()
        assert book.living() == {} and found.done()
        another.kill()


def test_a_job_of_slurm_is_found_while_slurm_knows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of Slurm are scripts here; one job runs, one is over, one is unknown and cancelled."""
    submitit = pytest.importorskip("submitit")
    scripts = {
        "sacct": "printf 'JobID|State|NodeList\\n7_0|RUNNING|a\\n7_1|FAILED|a\\n'",
        "scancel": f"echo $1 >> {tmp_path}/no",
    }
    for name, line in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    book = JobBook(submitit, tmp_path / "jobs")
    jobs = {submitit.SlurmJob(tmp_path / "jobs", number): [(number,)] for number in ("7_0", "7_1", "8_0")}
    book.note("slurm", jobs)
    assert list(book.living().values()) == [[("7_0",)]]
    assert (tmp_path / "no").read_text() == "8_0\n"


needs_submitit = pytest.mark.skipif(find_spec("submitit") is None, reason="needs the extra slurm (submitit)")


@pytest.mark.parametrize(
    ("executor", "options", "message"),
    [
        (
            "serial",
            {"workers": 2},
            "workers: Extra inputs are not permitted\nThe serial executor has the options: none",
        ),
        ("ray", {"workers": 0}, "workers: Input should be greater than or equal to 1"),
        ("slurm", {"cluster": "local", "partition": "gpu"}, "partition: the slurm executor has the options"),
        ("slurm", {"cluster": "elsewhere"}, "cluster: String should match"),
        pytest.param("slurm", {}, "no srun on the path", marks=needs_submitit),
    ],
)
def test_wrong_options_of_an_executor_are_one_clear_error(
    executor: str, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError) as error:
        check_executor(executor, options)
    assert message in str(error.value)


def test_a_cluster_that_does_not_start_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise Exception("The current node timed out during startup.\nThis could happen.")  # as Ray does

    monkeypatch.setattr(ray, "engine", lambda: SimpleNamespace(init=refuse))
    with pytest.raises(
        UsageError, match=r"no Ray cluster could be started here: Exception: The current node timed out"
    ):
        ray.connect(None)
    with pytest.raises(UsageError, match=r"the Ray cluster at 10\.0\.0\.1:6379 cannot be reached"):
        ray.connect("10.0.0.1:6379")


def test_workers_of_a_cluster_that_a_benchmark_starts_have_its_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray reads the environment when its processes start; its own default is the niceness 15."""
    seen: list[str | None] = []
    name = "RAY_worker_niceness"
    monkeypatch.setenv(name, "15")
    monkeypatch.delenv(name)
    started = SimpleNamespace(init=lambda **_: seen.append(os.environ.get(name)))
    monkeypatch.setattr(ray, "engine", lambda: started)
    ray.connect(None, cpus=3)
    assert seen == ["0"]
