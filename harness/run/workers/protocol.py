"""The protocol of workers: whoever decodes cells elsewhere gets these messages, and nothing else.

    load    `WorkerSetup` and the group of cells: a worker plans the dumped suite again, and loads the backbone.
    decode  `DecodeRequest`: decode, score and write prompts of a cell. The store has the result, so nothing comes back.
    prove   `ProveRequest`: return the verdict of a cell whose decodes are stored.
    score   `ScoreRequest` and `ScoreSetRequest`: return a sample with its score, or the scores of all outputs.

A local worker (`isolation`, `process`) is asked message by message, so that the run decides the order and can kill it.
A worker of Ray or Slurm (`cluster`) gets whole units, and makes these steps itself up to the seals of their cells.
Tokens and figures travel through the store alone: a lost worker costs what it had not written, and `--resume` or
another worker decodes that. If nobody may try again, the missing decodes become failed samples (`write_failed`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from stridebench.harness.core.task import Prompt
from stridebench.harness.discover import declare_all
from stridebench.harness.machine.device import keep_pages
from stridebench.harness.machine.surroundings import restored
from stridebench.harness.plan.cells import Cell, Plan
from stridebench.harness.plan.expand import expand
from stridebench.harness.plan.resolve import resolve_again
from stridebench.harness.record.columns import Record, Sample
from stridebench.harness.record.store import Store
from stridebench.harness.run.loading import Options
from stridebench.harness.run.scoring import Baselines


@dataclass(frozen=True)
class WorkerSetup:
    """Facts of a run for its workers.

    Args:
        path: of the run folder, or its URL.
        group: backbone and type of the cells, or None if each request tells them.
        threads: of torch, or None for those of the suite.
    """

    suite: dict[str, Any]
    path: str
    options: Options
    group: tuple[str, str] | None = None
    threads: int | None = None

    def plan(self) -> Plan:
        """Prepare this process for decodes, and return the plan of the suite."""
        keep_pages()
        with restored():  # plugins are imported here
            declare_all()
            plan = expand(resolve_again(self.suite))
        if threads := self.threads or plan.suite.suite.threads:
            torch.set_num_threads(threads)
        return plan


@dataclass(frozen=True)
class DecodeRequest:
    """Decode, score and write prompts (ids and repetitions) of a cell, or decode its warm-up."""

    cell: str
    keys: tuple[tuple[str, int], ...]
    baselines: Baselines
    warmup: bool = False


@dataclass(frozen=True)
class ProveRequest:
    """Answer with the verdict of a cell."""

    cell: str


@dataclass(frozen=True)
class ScoreRequest:
    """Answer with a sample of a cell and its score."""

    cell: str
    sample: Sample


@dataclass(frozen=True)
class ScoreSetRequest:
    """Answer with the scores of all stored outputs of a cell."""

    cell: str


WorkerRequest = DecodeRequest | ProveRequest | ScoreRequest | ScoreSetRequest


def write_failed(
    store: Store, cell: Cell, keys: Iterable[tuple[Prompt, int]], error: str, warmup: bool = False
) -> None:
    """Write a failed sample for each of the decodes (prompt and repetition) that the store does not have."""
    done = store.done(cell.id)
    for prompt, repetition in keys:
        if (prompt.id, repetition, warmup) not in done:
            sample = Sample(prompt.id, repetition, warmup, "failed", error, prompt.category, prompt.cluster)
            store.write(cell.id, Record(sample, ()))
