"""The jobs that a run has submitted, noted in its folder, so that a resumed run waits for those that still live."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

UnitCells = tuple[str, ...]
"""The ids of the cells of a unit."""
CONTROLLER = "submitit.local._local"
"""In the command line of a job's process on this machine, beside the folder."""


@dataclass(frozen=True)
class Survivor:
    """A process of this machine that an earlier run of the same folder started, as submitit asks for its own.

    Its command line is compared as well, because the system gives a number to another process later. Without `/proc`
    nothing is known, and it counts as ended.
    """

    pid: int
    folder: Path

    def poll(self) -> int | None:
        """None: it lives. Otherwise -1, since its exit status went to another process."""
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
    """The file ``jobs.jsonl`` beside the files of submitit: a line a job.

    Args:
        submitit: the module.
        folder: of submitit's files.
    """

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

    def _lines(self) -> list[dict[str, Any]]:
        """The lines; one that a kill cut short is left out."""
        lines = []
        with suppress(FileNotFoundError):
            for text in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
                with suppress(ValueError):
                    lines.append(json.loads(text))
        return [line for line in lines if isinstance(line, dict) and {"cluster", "job", "units"} <= set(line)]

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
