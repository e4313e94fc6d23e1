"""Workers as jobs of Slurm through submitit: arrays, whose jobs go on after a preemption."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, TypedDict, cast

from stridebench.harness.errors import UsageError
from stridebench.harness.machine.extras import optional
from stridebench.harness.plan.cells import Plan
from stridebench.harness.run.workers import pool
from stridebench.harness.run.workers.cluster import CellWorker, Needs, Refusal, Unit, describe, needs_of
from stridebench.harness.run.workers.pool import Ended, Pool
from stridebench.harness.run.workers.protocol import WorkerSetup

# The jobs that a run has submitted, noted in its folder, so that a resumed run waits for those that still live.


UnitCells = tuple[str, ...]
"""The ids of the cells of a unit."""


class NotedJob(TypedDict):
    """A line of the book: a job, where it runs, and the cells of its units."""

    cluster: str
    job: str
    units: list[list[str]]


CONTROLLER = "submitit.local._local"
"""A word of the command line of a job's process on this machine, which holds the folder too."""


@dataclass(frozen=True)
class Survivor:
    """A process of this machine that an earlier run of the same folder started, with the interface of submitit.

    Its command line is compared as well, because the system gives a number to another process later. Without `/proc`
    nothing is known, and it counts as ended.
    """

    pid: int
    folder: Path

    def poll(self) -> int | None:
        """Return None if it lives, else -1, since its exit status went to another process."""
        try:
            words = Path(f"/proc/{self.pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return -1
        return None if CONTROLLER in words and str(self.folder) in words else -1

    def send_signal(self, number: int) -> None:
        """To the process, if it lives."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


@dataclass(frozen=True)
class JobBook:
    """The file ``jobs.jsonl`` next to the files of submitit: a line a job."""

    submitit: Any
    folder: Path

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / "jobs.jsonl"

    def note(self, cluster: str, jobs: Mapping[Any, Sequence[UnitCells]]) -> None:
        """Append jobs with the cells of each of their units, in their order; durable when this returns."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            for job, units in jobs.items():
                file.write(json.dumps({"cluster": cluster, "job": job.job_id, "units": units}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def living(self) -> dict[Any, list[UnitCells]]:
        """The noted jobs that wait or run, with the cells of their units.

        One that Slurm does not know is cancelled, because it may yet begin.
        """
        jobs = {
            self._job(line["cluster"], line["job"]): [tuple(unit) for unit in line["units"]] for line in self._lines()
        }
        watched = [job for job in jobs if not isinstance(job, self.submitit.LocalJob)]
        if watched:
            watched[0].get_info(mode="force")  # one question for all jobs
        return {job: cells for job, cells in jobs.items() if self._lives(job)}

    def _lines(self) -> list[NotedJob]:
        """The lines; one that a kill cut short is left out."""
        lines = []
        with suppress(FileNotFoundError):
            for text in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
                with suppress(ValueError):
                    lines.append(json.loads(text))
        keys = NotedJob.__required_keys__
        return [cast(NotedJob, line) for line in lines if isinstance(line, dict) and keys <= set(line)]

    def _job(self, cluster: str, number: str) -> Any:
        if cluster == "slurm":
            return self.submitit.SlurmJob(folder=self.folder, job_id=number)
        process = Survivor(int(number), self.folder) if cluster == "local" else None
        return self.submitit.LocalJob(folder=self.folder, job_id=number, process=process)

    def _lives(self, job: Any) -> bool:
        if isinstance(job, self.submitit.LocalJob):
            return bool(not job.done())
        if job.paths.result_pickle.exists() or job.watcher.is_done(job.job_id, mode="cache"):
            return False
        known = bool(job.watcher.get_state(job.job_id, mode="cache").upper() != "UNKNOWN")
        if not known:
            with suppress(Exception):  # there is no such job any more, or no scancel here
                job.cancel()
        return known


def engine() -> Any:
    """Return the module `submitit`, or raise UsageError if it is not installed."""
    return optional("submitit", "the slurm executor", "slurm")


def check_cluster(options: pool.Slurm) -> None:
    """Before a run folder is made."""
    engine()
    if options.cluster == "slurm" and shutil.which("srun") is None:
        raise UsageError(
            "there is no srun on the path, so no job of Slurm can be submitted from this machine. Start the run on a "
            "login node, or give --executor-option cluster=local."
        )


@dataclass(frozen=True)
class UnitsJob:
    """The units of one backbone that a job runs. A requeued job goes on, since finished decodes are in the store."""

    setup: WorkerSetup
    units: tuple[Unit, ...]

    def __call__(self) -> list[Refusal | None]:
        """The outcome of each unit, up to the first refusal."""
        worker = CellWorker(self.setup)
        outcomes: list[Refusal | None] = []
        for unit in self.units:
            outcomes.append(worker.run(unit))
            if outcomes[-1] is not None:
                break
        return outcomes

    def checkpoint(self) -> Any:
        """Return what submitit queues again if the job is preempted or its time is over."""
        return engine().helpers.DelayedSubmission(self)


class SlurmPool(Pool):
    """Arrays of jobs, one array for the units of equal needs that are handed in together.

    Units that a job of an earlier run of this folder still holds are not submitted again.

    Attributes:
        found: the jobs of an earlier run that wait or run, with the cells of each of their units.
    """

    def __init__(self, plan: Plan, setup: WorkerSetup, options: pool.Slurm, folder: Path) -> None:
        self._submitit = engine()
        self._plan, self._setup, self._options, self._folder = plan, setup, options, folder.absolute()
        self._book = JobBook(self._submitit, self._folder)
        self.found = self._book.living()
        self._cells: dict[Any, Sequence[UnitCells]] = dict(self.found)
        self._jobs: dict[Any, list[Unit]] = {}

    def submit(self, units: Sequence[Unit]) -> None:
        """Wait for the jobs that hold units already, and submit the others.

        The others become arrays whose jobs hold up to so many units of one backbone.
        """
        units = [unit for unit in units if not self._attached(unit)]
        arrays: dict[Needs, list[tuple[Unit, ...]]] = {}
        for group in dict.fromkeys(unit.group for unit in units):
            same = [unit for unit in units if unit.group == group]
            blocks = arrays.setdefault(needs_of(self._plan, same[0], self._setup.options.device), [])
            blocks += [tuple(same[at : at + self._options.units]) for at in range(0, len(same), self._options.units)]
        for needs, blocks in arrays.items():
            executor = self._executor(needs)
            try:
                with executor.batch():
                    jobs = [executor.submit(UnitsJob(self._setup, block)) for block in blocks]
            except (OSError, RuntimeError, self._submitit.core.utils.FailedJobError) as error:
                raise UsageError(f"the jobs could not be submitted: {describe(error)}") from error
            self._jobs |= {job: list(block) for job, block in zip(jobs, blocks, strict=True)}
            cells = {job: [unit.cells for unit in block] for job, block in zip(jobs, blocks, strict=True)}
            self._cells |= cells
            self._book.note(self._options.cluster, cells)

    def wait(self) -> Iterable[Ended]:
        """Look at the jobs until one has ended."""
        while not (done := [job for job in self._jobs if job.done()]):
            time.sleep(self._options.poll_s)
        return [ended for job in done for ended in self._ended(job, self._jobs.pop(job))]

    def close(self) -> None:
        """Cancel what still waits or runs."""
        for job in {**self._jobs, **self.found}:
            with suppress(Exception):  # it may have ended meanwhile
                job.cancel()

    def _attached(self, unit: Unit) -> bool:
        """Whether a job of an earlier run holds the unit; then it is waited for."""
        for job, cells in self.found.items():
            if unit.cells in cells and not unit.lost:
                self._jobs.setdefault(job, []).append(unit)
                return True
        return False

    def _executor(self, needs: Needs) -> Any:
        executor = self._submitit.AutoExecutor(folder=self._folder, cluster=self._options.cluster)
        values: dict[str, Any] = {"timeout_min": self._options.minutes, "cpus_per_task": needs.cpus}
        values |= {"gpus_per_node": ceil(needs.gpus)} if needs.gpus else {}
        values |= {"mem_gb": ceil(needs.memory / 1e9)} if needs.memory is not None else {}
        array = {"slurm_array_parallelism": self._options.workers, "name": "stride"}
        try:
            executor.update_parameters(**values, **array, **self._options.passed_on)
        except (NameError, AssertionError, TypeError) as error:
            raise UsageError(f"--executor-option: submitit refuses these: {error}") from error
        return executor

    def _ended(self, job: Any, units: Sequence[Unit]) -> list[Ended]:
        try:
            outcomes = job.result()
        except Exception as error:  # the job was killed, or what runs there raised an error
            return [Ended(unit, lost=f"job {job.job_id}: {describe(error)}") for unit in units]
        by_cells = dict(zip(self._cells[job], outcomes, strict=False))
        behind = outcomes[-1]  # a job ends with its first refusal
        ended = [Ended(unit, refusal=by_cells.get(unit.cells, behind)) for unit in units]
        return sorted(ended, key=lambda one: one.refusal is not None, reverse=True)
