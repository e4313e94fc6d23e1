"""The worker process of isolated cells: ``python -m stridebench.harness.run.workers.process DESCRIPTOR PARENT``."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from stridebench.harness.errors import RunIncomplete, StoreError, UsageError, WeightsError, said_by
from stridebench.harness.machine.surroundings import restored
from stridebench.harness.proof.verdicts import Verdicts
from stridebench.harness.record.store import Store
from stridebench.harness.run.loading import LoadedGroup, load_models
from stridebench.harness.run.schedule import decode_batch, warm_up
from stridebench.harness.run.scoring import Scorer
from stridebench.harness.run.workers.protocol import ProveRequest, ScoreRequest, ScoreSetRequest, WorkerSetup

_PR_SET_PDEATHSIG = 1


def serve(connection: Connection) -> None:
    """Load the group of the first message, then answer requests until the run closes the connection."""
    try:
        group = _load(connection.recv())
    except (WeightsError, UsageError, StoreError) as error:
        connection.send(StoreError(f"says: {error}"))
        return
    connection.send(None)
    service = Service(group)
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        try:
            answer: Any = service.answer(request)
        except (RunIncomplete, StoreError) as error:
            answer = error
        connection.send(answer)


class Service:
    """Answers requests for a loaded group."""

    def __init__(self, group: LoadedGroup) -> None:
        self._group = group
        self._scorer = Scorer(group)
        self._verdicts = Verdicts(group.plan, group.backbone, group.load_drafter, group.options.fetch)
        self._cells = {cell.id: cell for cell in group.cells}

    def answer(self, request: Any) -> Any:
        """None after a decode, the verdict after a proof, the sample or the scores after a score."""
        cell, store = self._cells[request.cell], self._group.store
        if isinstance(request, ScoreSetRequest):
            return self._scorer.score_set(cell)
        if isinstance(request, ProveRequest):
            with restored():
                return self._verdicts.of(cell, store.pending(cell.id))
        prompts = {prompt.id: prompt for prompt in self._group.plan.prompts[cell.task]}
        if isinstance(request, ScoreRequest):
            return self._scorer.score(cell, request.sample, prompts[request.sample.prompt])
        keys = [(prompts[prompt], repetition) for prompt, repetition in request.keys]
        if request.warmup:
            return warm_up(self._group, cell, keys, store.done(cell.id))
        self._scorer.learn(request.baselines)
        for decoded in decode_batch(self._group, cell, keys):
            self._scorer.finish(cell, decoded)
        return None


def _load(setup: WorkerSetup) -> LoadedGroup:
    plan = setup.plan()
    cells = [cell for cell in plan.runnable if cell.group == setup.group]
    return load_models(plan, cells, Store.open(setup.path), setup.options)


def _belong_to(parent: int) -> None:
    """End with the run, however it ends, and let the kernel take this process before others where memory is full."""
    with suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the run has ended")
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    _belong_to(int(sys.argv[2]))
    try:
        with torch.inference_mode():
            serve(Connection(int(sys.argv[1])))
    except KeyboardInterrupt:
        sys.exit("a KeyboardInterrupt was raised outside of a decode and of a score, and ended this process")
    except OSError as error:
        sys.stderr.write(f"the connection to the run was lost, maybe because a plugin closed it ({said_by(error)})\n")
        sys.stderr.flush()
        os._exit(1)  # objects that hold closed files would print errors as they are deleted
