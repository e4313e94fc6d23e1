"""The order in which the cells of a group decode: a warm-up, then prompt by prompt, all cells in turn."""

from __future__ import annotations

import gc
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from functools import partial

from stridebench.harness.core.batch import Batch
from stridebench.harness.core.task import Prompt
from stridebench.harness.machine.consumption import ConsumptionMeter
from stridebench.harness.machine.noise import GpuMeter
from stridebench.harness.machine.surroundings import restored
from stridebench.harness.plan.cells import Cell
from stridebench.harness.plan.estimate import WARMUP_TOKENS
from stridebench.harness.record.columns import Record
from stridebench.harness.run.attempt import Attempt, attempt
from stridebench.harness.run.auditing import is_checked
from stridebench.harness.run.loading import LoadedGroup
from stridebench.harness.run.read_prompts import is_long
from stridebench.harness.run.scoring import Scorer
from stridebench.harness.run.workers.isolation import IsolatedCells, Key

WARMUP_PROMPT = 256
"""Tokens that a warm-up reads of a prompt whose length the task names."""

Todo = Mapping[Cell, set[tuple[str, int]]]
"""Prompt ids and repetitions that each cell still has to decode."""


class Schedule:
    """Decodes the prompts that are not stored yet. An output is scored and written once its baseline's output is known.

    Isolated cells decode a batch of prompts after all other cells, so that the outputs of baselines are known.
    """

    def __init__(self, group: LoadedGroup, scorer: Scorer, isolated: IsolatedCells) -> None:
        self._group = group
        self._scorer = scorer
        self._isolated = isolated
        self._suite = group.plan.suite.suite
        self._done = {cell: group.store.done(cell.id) for cell in group.cells}

    def run(self) -> None:
        """All cells, one task after another."""
        for task in dict.fromkeys(cell.task for cell in self._group.cells):
            plan = self._group.plan
            keys = [(prompt, again) for prompt in plan.prompts[task] for again in range(plan.repetitions(task))]
            self._task([cell for cell in self._group.cells if cell.task == task], keys)

    def _task(self, cells: Sequence[Cell], keys: Sequence[Key]) -> None:
        self._scorer.read_baselines(cells)
        todo = {cell: {(p.id, r) for p, r in keys if (p.id, r, False) not in self._done[cell]} for cell in cells}
        self._group.options.progress.expect(sum(map(len, todo.values())))
        for cell, keys_of_cell in todo.items():
            if keys_of_cell:
                self._group.options.progress.expect_of(cell, len(keys_of_cell))
        if any(todo.values()) and self._suite.timing:
            self._group.options.progress.say("warming up")
            for cell in cells:
                self._warm_up(cell, [prompt for prompt, again in keys if not again])
        for batch in dict.fromkeys(cell.batch for cell in cells):
            self._interleave([cell for cell in cells if cell.batch == batch], keys, todo)

    def _warm_up(self, cell: Cell, prompts: Sequence[Prompt]) -> None:
        """One batch of short decodes a repetition. They are stored with a flag, and never counted."""
        for repetition in range(self._suite.warmup):
            keys = [(prompt, repetition) for prompt in prompts[: cell.batch]]
            if cell in self._isolated:
                self._isolated.warm_up(cell, keys)
            else:
                warm_up(self._group, cell, keys, self._done[cell])

    def _interleave(self, cells: Sequence[Cell], keys: Sequence[Key], todo: Todo) -> None:
        """Let all cells decode one batch of prompts before the next. The cells take turns to begin."""
        batch = cells[0].batch
        for index, first in enumerate(range(0, len(keys), batch)):
            turn = index % len(cells)
            self._prompts([*cells[turn:], *cells[:turn]], keys[first : first + batch], todo)

    def _prompts(self, order: Sequence[Cell], keys: Sequence[Key], todo: Todo) -> None:
        waiting: list[tuple[Cell, Attempt]] = []
        open_keys = {cell: [(prompt, r) for prompt, r in keys if (prompt.id, r) in todo[cell]] for cell in order}
        for cell in order:
            if cell in self._isolated:
                continue
            for decoded in decode_batch(self._group, cell, open_keys[cell]):
                self._scorer.add_baseline(cell, decoded.sample)
                waiting.append((cell, decoded))
            for ready in [item for item in waiting if self._scorer.has_baseline(item[0], item[1].sample)]:
                waiting.remove(ready)
                self._scorer.finish(*ready)
        for cell, decoded in waiting:  # the baseline failed on this prompt, or was lost
            self._scorer.finish(cell, decoded)
        for cell in order:
            if cell in self._isolated and open_keys[cell]:
                baselines = self._scorer.baselines(cell, [(prompt.id, r) for prompt, r in open_keys[cell]])
                self._isolated.decode(cell, open_keys[cell], baselines)


def decode_batch(group: LoadedGroup, cell: Cell, keys: Sequence[Key]) -> list[Attempt]:
    """The decodes of one batch. A store that fails ends the run."""
    prompts = group.plan.prompts[cell.task]
    jobs = [
        partial(attempt, group, cell, prompt, repetition, keeps_drafts=is_checked(prompts, prompt, repetition))
        for prompt, repetition in keys
    ]
    attempts: list[Attempt] = []
    with restored():
        device = group.backbone.device
        meter = ConsumptionMeter(device, GpuMeter.of(device))
        results = Batch[Attempt](cell.batch).run(jobs)
        consumed = vars(meter.read().shared(len(jobs)))
    for result in results:
        if isinstance(result, Exception):
            raise result
        attempts.append(replace(result, sample=replace(result.sample, **consumed)))
    if any(is_long(decoded.sample.prompt_tokens) for decoded in attempts):
        gc.collect()  # a run refers to itself, so the caches of its sessions wait for this
    return attempts


def warm_up(group: LoadedGroup, cell: Cell, keys: Sequence[Key], done: Container[tuple[str, int, bool]]) -> None:
    """Short decodes of one batch, which are written unless they are in ``done``."""
    short = replace(cell, max_new_tokens=min(WARMUP_TOKENS, cell.max_new_tokens))
    prompts = [(replace(prompt, last=min(prompt.last, WARMUP_PROMPT)), repetition) for prompt, repetition in keys]
    for decoded in decode_batch(group, short, prompts):
        sample = replace(decoded.sample, warmup=True)
        if (sample.prompt, sample.repetition, True) not in done:
            group.store.write(cell.id, Record(sample, decoded.steps))
