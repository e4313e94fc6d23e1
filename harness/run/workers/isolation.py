"""Isolated cells: a worker process decodes and proves them, so that what ends it fails the cells of one method only.
It scores the outputs of tasks of other packages too.

A worker (`harness.run.workers.process`) serves the isolated cells of a group. The run waits for each answer up to a
limit. A worker that ends or passes the limit is killed; the rest of its cell fails with that reason, and a new worker
goes on with the other cells. A mark in the store, written before each request and removed after the answer, keeps
`--resume` from starting such a cell again. If the run itself was killed, the mark does not say who killed it: the
cell is started once more, and fails if a second run ends in it.
"""

from __future__ import annotations

import codecs
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Pipe
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch

from stridebench.harness.core.method import Method
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import RunIncomplete, StrideError, printable
from stridebench.harness.plan.cells import Cell
from stridebench.harness.record.columns import SCORER_FAILED, Sample
from stridebench.harness.record.entries import StoredSetScore, StoredVerdict
from stridebench.harness.run.loading import LoadedGroup, Progress
from stridebench.harness.run.scoring import SET_SAMPLES, Baselines, no_scores
from stridebench.harness.run.workers.protocol import (
    DecodeRequest,
    ProveRequest,
    ScoreRequest,
    ScoreSetRequest,
    WorkerRequest,
    WorkerSetup,
    write_failed,
)

Key = tuple[Prompt, int]
"""A prompt and a repetition of it."""

POLL_S = 0.2
"""How often a worker that is silent is checked for being alive."""
GRACE_S = 5.0
"""How long a worker that closed its connection may take to end."""
LOG_BYTES = 64 * 1024
"""How much of the end of a worker's log is kept."""
RUNS = 2
"""A cell in which so many runs ended is not started again."""
PROOF_SAMPLES = 10
"""A proof may take as long as so many samples."""
SLACK_S = 5.0
"""How long after a limit a worker is killed that may pass it by itself, as the scorer of a task does."""


class Limit(NamedTuple):
    """How long an answer may take, and the limit in words."""

    seconds: float
    text: str


class WorkerEnded(Exception):
    """The worker ended, or passed a limit and was killed; says how."""


class Worker:
    """A worker process, from its start to its end.

    Raises:
        WorkerEnded: it ended before it was ready.
        WeightsError, UsageError, StoreError: it cannot load the backbone.
    """

    def __init__(self, setup: WorkerSetup, log: Path) -> None:
        self._log = log
        self._output = b""
        self._connection, worker_end = Pipe()
        options = ["-P", *(f"-W{option}" for option in sys.warnoptions)]  # -P: the working folder shadows nothing
        words = [
            sys.executable,
            *options,
            "-m",
            "stridebench.harness.run.workers.process",
            str(worker_end.fileno()),
            str(os.getpid()),
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(worker_end.fileno(),),
            start_new_session=True,  # ^C is for the run, which ends its worker
            env=environment,
        )
        self._relay = threading.Thread(target=self._show_output, daemon=True)
        self._relay.start()
        worker_end.close()
        try:
            self.ask(setup, None)
        except BaseException:
            self.close()
            raise

    def ask(self, request: object, limit: Limit | None) -> Any:
        """The worker's answer."""
        begin = time.monotonic()
        try:
            self._connection.send(request)
            while not self._connection.poll(POLL_S):
                if self.ended and not self._connection.poll():
                    raise EOFError
                if limit is not None and time.monotonic() - begin > limit.seconds:
                    self._show_stacks()
                    self.close()
                    raise WorkerEnded(f"passed the limit of {limit.text}")
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise WorkerEnded(self.ending()) from error
        if isinstance(answer, StrideError):
            raise answer
        return answer

    def close(self) -> None:
        """Kill the worker and its children, and keep the end of its log."""
        if self._connection.closed:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._connection.close()
        self._relay.join(GRACE_S)
        with suppress(OSError):
            if self._output:
                self._log.write_bytes(self._output)
            else:
                self._log.unlink()

    @property
    def ended(self) -> bool:
        """Whether its process has ended."""
        return self._process.poll() is not None

    def ending(self) -> str:
        """How its process ended."""
        try:
            code = self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            code = None
        self.close()
        if code is None:
            return "closed its connection to the run"
        if code >= 0:
            return f"ended with exit code {code}"
        name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
        return f"ended with {name}" + (" (the kernel does so where memory is full)" if name == "SIGKILL" else "")

    def _show_output(self) -> None:
        """Send the output of the worker to standard error, and remember the end of it."""
        assert self._process.stdout is not None, "it is a pipe"
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while data := os.read(self._process.stdout.fileno(), LOG_BYTES):
            self._output = (self._output + data)[-LOG_BYTES:]
            with suppress(ValueError, OSError):  # standard error is closed, or cannot hold a character
                sys.stderr.write(shown(decoder.decode(data)))

    def _show_stacks(self) -> None:
        """Have the worker's faulthandler write its stack."""
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(POLL_S)


class IsolatedCells:
    """The isolated cells of a group and the worker that serves them; a context that ends the worker."""

    def __init__(self, group: LoadedGroup) -> None:
        self._group = group
        self._suite = group.plan.suite.suite
        self._cells = frozenset(cell for cell in group.cells if group.plan.isolated(cell))
        served = [cell for cell in group.cells if cell in self._cells or group.plan.scored_apart(cell)]
        marks = {cell: group.store.notes.started(cell.id) for cell in served}
        self._failed: dict[Cell, str] = {}
        self._runs = dict.fromkeys(served, 0)
        """How many earlier runs ended while a worker was busy with a cell."""
        for cell, mark in marks.items():
            if mark is not None and (mark.runs is None or mark.runs >= RUNS):
                self._failed[cell] = mark.reason
            elif mark is not None:
                self._runs[cell] = mark.runs or 0
                group.options.progress.say(f"{cell.label}: {mark.reason}; it is started once more")
        self._unprovable: dict[Method[Any], str] = {}
        self._seconds = dict.fromkeys(self._cells, 0.0)
        self._worker: Worker | None = None
        self._latest: Cell | None = None
        self._log = Path()

    def __enter__(self) -> IsolatedCells:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._worker is not None:
            self._worker.close()

    def __contains__(self, cell: Cell) -> bool:
        return cell in self._cells

    def warm_up(self, cell: Cell, keys: Sequence[Key]) -> None:
        """One batch of short decodes, written with a flag."""
        self._decode(cell, keys, DecodeRequest(cell.id, _plain(keys), {}, warmup=True))

    def decode(self, cell: Cell, keys: Sequence[Key], baselines: Baselines) -> None:
        """Decode, score and write one batch; ``baselines`` are the outputs to compare with."""
        self._decode(cell, keys, DecodeRequest(cell.id, _plain(keys), baselines))
        for prompt, _ in keys:
            self._group.options.progress.done(cell, prompt)

    def verdict(self, cell: Cell, samples: Sequence[Sample]) -> StoredVerdict:
        """Prove as `Verdicts.of` does; if the worker ends, the verdict has that as its ``error``."""
        reason = self._failed.get(cell) or self._unprovable.get(cell.method)
        if reason is None and any(sample.status == "ok" for sample in samples):
            answer = self._ask(cell, ProveRequest(cell.id), "proved its claim", self._sample_limit(PROOF_SAMPLES))
            if isinstance(answer, StoredVerdict):
                return answer
            reason = self._unprovable[cell.method] = self._failed[cell]
        from stridebench.harness.proof.verdicts import unproved

        return unproved(cell, samples, reason or "")

    def score(self, cell: Cell, sample: Sample) -> Sample:
        """Score as `Scorer.score` does, in the worker; if that ends, this sample and those after it are not scored."""
        doing = f"scored {sample.prompt} (repetition {sample.repetition})"
        answer = None if cell in self._failed else self._ask(cell, ScoreRequest(cell.id, sample), doing, self._slack(1))
        if answer is None:
            return replace(sample, status="failed", error=f"{SCORER_FAILED}{self._failed[cell]}")
        scored: Sample = answer
        return scored

    def score_set(self, cell: Cell) -> dict[str, StoredSetScore]:
        """As `Scorer.score_set`, in the worker."""
        count = len(self._group.store.pending(cell.id))
        limit = self._slack(max(SET_SAMPLES, count))
        answer = (
            None if cell in self._failed else self._ask(cell, ScoreSetRequest(cell.id), "scored all outputs", limit)
        )
        return no_scores(cell, count, self._failed[cell]) if answer is None else dict(answer)

    def _decode(self, cell: Cell, keys: Sequence[Key], request: DecodeRequest) -> None:
        if cell not in self._failed:
            stage = "warmed up on" if request.warmup else "decoded"
            prompts = ", ".join(f"{prompt.id} (repetition {repetition})" for prompt, repetition in keys)
            limits = (self._sample_limit(len(keys)), self._cell_limit(cell))
            begin = time.monotonic()
            self._ask(cell, request, f"{stage} {prompts}", min(filter(None, limits), default=None))
            self._seconds[cell] += time.monotonic() - begin
        if cell in self._failed:
            write_failed(self._group.store, cell, keys, self._failed[cell], request.warmup)

    def _ask(
        self,
        cell: Cell,
        request: WorkerRequest,
        doing: str,
        limit: Limit | None,
    ) -> Any:
        """Return the worker's answer, or None if it ended, and the cell has failed."""
        store = self._group.store
        if limit is not None and limit.seconds <= 0:
            self._give_up(cell, f"its cell passed the limit of {limit.text} before it {doing}")
            return None
        worker = self._started()
        if cell in self._failed:
            return None
        self._latest = cell
        self._mark(cell, self._runs[cell] + 1, doing)
        try:
            with _termination_as_interrupt():
                return worker.ask(request, limit)
        except WorkerEnded as end:
            self._worker = None
            self._give_up(cell, f"its process {end} while it {doing}, so it is not started again{self._where()}")
            return None
        finally:
            if cell not in self._failed and self._runs[cell]:
                self._mark(cell, self._runs[cell], doing)
            elif cell not in self._failed:
                store.notes.unmark_started(cell.id)

    def _mark(self, cell: Cell, runs: int, doing: str) -> None:
        who = "its task" if doing.startswith("scored") else "this method"
        again = f"{runs} runs ended while {who} {doing}, so it is not started again"
        reason = again if runs >= RUNS else f"a run ended while {who} {doing}"
        self._group.store.notes.mark_started(cell.id, reason, runs)

    def _sample_limit(self, samples: int) -> Limit | None:
        seconds = self._suite.sample_limit_s
        if seconds is None:
            return None
        return Limit(seconds * samples, f"{seconds * samples:g} s (sample_limit_s: {seconds:g})")

    def _slack(self, samples: int) -> Limit | None:
        """The limit of scores, which the worker passes itself unless it hangs in C."""
        limit = self._sample_limit(samples)
        return None if limit is None else Limit(limit.seconds + SLACK_S, limit.text)

    def _cell_limit(self, cell: Cell) -> Limit | None:
        """Return the time that is left to the decodes of the cell in this session."""
        seconds = self._suite.cell_limit_s
        if seconds is None:
            return None
        return Limit(seconds - self._seconds[cell], f"{seconds:g} s a cell (cell_limit_s)")

    def _where(self) -> str:
        log = self._log.relative_to(self._group.store.path)
        return f"; see {log} in the run folder" if self._log.exists() else ""

    def _give_up(self, cell: Cell, reason: str) -> None:
        self._failed[cell] = reason
        self._group.options.progress.say(f"{cell.label}: {reason}")
        self._group.store.notes.mark_started(cell.id, reason)

    def _started(self) -> Worker:
        """Return the worker, and start one if there is none, or raise RunIncomplete if it cannot start."""
        group, store = self._group.cells[0].group, self._group.store
        if self._worker is not None:
            if not self._worker.ended:
                return self._worker
            reason = f"its process {self._worker.ending()} after it had answered, so it is not started again"
            if self._latest is not None and not store.sealed(self._latest.id):
                self._give_up(self._latest, reason + self._where())
        options = replace(self._group.options, progress=Progress(), interruptible=False)
        path, threads = str(store.path.resolve()), torch.get_num_threads()
        setup = WorkerSetup(self._suite.model_dump(), path, options, group, threads)
        self._log = store.notes.log_of_worker(*group)
        try:
            self._worker = Worker(setup, self._log)
        except (WorkerEnded, StrideError) as error:
            raise RunIncomplete(
                f"the process that decodes isolated cells of {group[0]} could not start: it {error}. Read {self._log}. "
                f"Go on with --resume, or decode in the main process with --resume --set isolation=none."
            ) from error
        return self._worker


def shown(text: str) -> str:
    """Return the output of a worker for a terminal: control characters as escapes, except returns of progress bars."""
    return "\r".join(map(printable, text.split("\r")))


def _plain(keys: Sequence[Key]) -> tuple[tuple[str, int], ...]:
    return tuple((prompt.id, repetition) for prompt, repetition in keys)


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """SIGTERM, with which schedulers end a job, unwinds as ^C does, so that no cell is left marked as started."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
