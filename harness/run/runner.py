"""Run a plan's cells: warm up, interleave per prompt, score what was timed, write, seal with a verdict."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch

from harness.core.backbone import Backbone
from harness.core.batch import Batch, Slot
from harness.core.capabilities import Requirement
from harness.core.clock import Stopwatch, clock_for
from harness.core.draft import Draft
from harness.core.draws import SeededDraws
from harness.core.loop import Decode, decode
from harness.core.models import Models
from harness.core.run import Run
from harness.core.task import Prompt, Scored, SetScore
from harness.discover import component
from harness.errors import OutputError, RunIncomplete, StoreError, UsageError, WeightsError
from harness.plan import presets
from harness.plan.cells import Cell, Plan
from harness.proof.divergence import diverge
from harness.proof.verdicts import Verdicts
from harness.record import outputs as outputs_of
from harness.record.ledger import Record, Sample
from harness.record.store import Store

WARMUP_TOKENS = 8
LEADING = 16
"""Probabilities of each law that `Sample.leading` holds."""
Key = tuple[Prompt, int]
"""A prompt and a repetition of it."""
NO_OUTPUT = "output: "
"""How the error of a sample begins whose decode went well, and whose tokens stand for nothing."""


class Progress:
    """What a run tells whoever watches; the default says nothing."""

    def say(self, text: str) -> None:
        """A stage begins."""

    def expect(self, decodes: int) -> None:
        """So many decodes remain."""

    def done(self, cell: Cell, prompt: Prompt) -> None:
        """One decode is written."""


@dataclass(frozen=True)
class Options:
    """How to run, as against what.

    Args:
        allow_code: let tasks execute model output (in a sandboxed child process). device: of the backbones.
        fetch: download pinned weights that are missing. progress: whom to tell.
    """

    allow_code: bool = False
    device: str = "cpu"
    fetch: bool = True
    progress: Progress = field(default_factory=Progress)


def run_group(plan: Plan, group: tuple[str, str], store: Store, options: Options) -> None:
    """All cells of one backbone and type, to their seals.

    Raises:
        RunIncomplete: the disk is full or the run was interrupted; what is finished stays.
    """
    for cell in plan.runnable:
        if cell.group == group:
            store.reopen(cell.id)
    cells = [cell for cell in plan.runnable if cell.group == group and not store.sealed(cell.id)]
    if not cells:
        return
    try:
        with torch.inference_mode():
            _Group(plan, cells, store, options).run()
    except KeyboardInterrupt as stop:
        raise RunIncomplete(
            f"interrupted; everything finished is in {store.path}. Go on with the same command and --resume."
        ) from stop


class _Group:
    """A loaded backbone and the cells that run on it."""

    def __init__(self, plan: Plan, cells: Sequence[Cell], store: Store, options: Options) -> None:
        self.plan = plan
        self.store = store
        self.options = options
        self.cells = list(cells)
        self.done = {cell: store.done(cell.id) for cell in cells}
        self.outputs: dict[tuple[str, str, int], tuple[int, ...]] = {}
        self.drafters: dict[str, Backbone] = {}

    def run(self) -> None:
        name, dtype = self.cells[0].group
        progress = self.options.progress
        progress.say(f"loading {name} in {dtype}")
        try:
            if self.options.fetch:
                presets.fetch(name, progress.say)
            self.backbone = presets.load(name, dtype, self.options.device, self.options.fetch)
        except (WeightsError, UsageError) as error:
            self._skip_all(self.cells, f"{type(error).__name__}: {error}")
            return
        self._refuse_other_weights()
        self._skip_unopenable()
        for use in dict.fromkeys(cell.task for cell in self.cells):
            self._task([cell for cell in self.cells if cell.task == use], self.plan.prompts[use])
        progress.say("proving: exact laws by enumeration, greedy equality in fp32")
        verdicts = Verdicts(self.plan, self.backbone, self._drafter, self.options.fetch)
        for cell in self.cells:
            verdict = verdicts.of(cell)
            meta = {**self.plan.meta(cell), "status": "done", "fingerprint": self.backbone.fingerprint}
            kind = self.backbone.forward_kind or type(self.backbone).__name__
            drafter = next((self.drafters[name] for name in cell.method.drafters()), None)
            weights = drafter.fingerprint if drafter else None
            place: dict[str, Any] = {"device": self.options.device, "drafter_fingerprint": weights, "forward": kind}
            grid = self.backbone.capabilities.grid
            place |= {"vocabulary": self.backbone.capabilities.vocabulary}
            place |= {"grid": {"rows": grid.rows, "columns": grid.columns, "stride": grid.stride} if grid else None}
            sets = self._score_set(cell)
            self.store.seal(cell.id, {**meta, **place, "verdict": verdict, "set_scores": sets})

    def _skip_all(self, cells: Sequence[Cell], reason: str) -> None:
        """Seal as skipped, unless there are samples already: those wait for a run that can go on."""
        self.options.progress.say(f"skipped {len(cells)} cells: {reason}")
        for cell in cells:
            if self.store.done(cell.id):
                continue
            self.store.seal(cell.id, {**self.plan.meta(cell), "status": "skipped", "reason": reason})

    def _refuse_other_weights(self) -> None:
        """Cells of this group that were sealed before must have run on the same weights."""
        for name in self.store.cells():
            meta = self.store.cell(name).meta
            same = (meta["backbone"], meta["dtype"]) == self.cells[0].group
            if same and meta.get("fingerprint") not in (None, self.backbone.fingerprint):
                raise StoreError(
                    f"{name} in {self.store.path} was made with other weights of {meta['backbone']} than those "
                    f"at hand now; start another run folder"
                )

    def _skip_unopenable(self) -> None:
        """Cells whose drafter or part cannot be had are skipped with that reason, before anything is timed."""
        lacking: dict[str, list[Cell]] = {}
        for cell in self.cells:
            if reason := self._lacks(cell):
                lacking.setdefault(reason, []).append(cell)
        for reason, cells in lacking.items():
            self._skip_all(cells, reason)
            for cell in cells:
                self.cells.remove(cell)

    def _lacks(self, cell: Cell) -> str:
        """Why the cell's drafter or one of its parts cannot be opened; empty: all can."""
        try:
            for drafter in cell.method.drafters():
                self._drafter(drafter)
        except (WeightsError, UsageError) as error:
            return f"drafter: {error}"
        try:
            for kind, name in () if self.backbone.toy_drafters else cell.method.components:
                component(kind, name, self.backbone.name, self.backbone.fingerprint)
        except WeightsError as error:
            return str(error)
        return ""

    def _drafter(self, name: str) -> Backbone:
        if name not in self.drafters:
            self.drafters[name] = presets.drafter(self.backbone, name, self.options.fetch)
        return self.drafters[name]

    def _task(self, cells: Sequence[Cell], prompts: Sequence[Prompt]) -> None:
        repetitions = range(self.plan.suite.suite.repetitions)
        keys = [(prompt, repetition) for prompt in prompts for repetition in repetitions]
        for baseline in dict.fromkeys(self.plan.baseline(cell).id for cell in cells):
            found = self.store.outputs(baseline)
            self.outputs |= {(baseline, prompt, repetition): ids for (prompt, repetition), ids in found.items()}
        todo = {cell: {(p.id, r) for p, r in keys if not self._has(cell, p, r)} for cell in cells}
        self.options.progress.expect(sum(map(len, todo.values())))
        if any(todo.values()):
            self.options.progress.say("warming up")
            for cell in cells:
                self._warm_up(cell, prompts)
        for batch in dict.fromkeys(cell.batch for cell in cells):
            mates = [cell for cell in cells if cell.batch == batch]
            for index, first in enumerate(range(0, len(keys), batch)):
                turn = index % len(mates)
                self._prompts([*mates[turn:], *mates[:turn]], keys[first : first + batch], todo)

    def _has(self, cell: Cell, prompt: Prompt, repetition: int, warmup: bool = False) -> bool:
        return (prompt.id, repetition, warmup) in self.done[cell]

    def _warm_up(self, cell: Cell, prompts: Sequence[Prompt]) -> None:
        """A short gang of decodes that are kept and flagged, but never counted."""
        short = replace(cell, max_new_tokens=min(WARMUP_TOKENS, cell.max_new_tokens))
        for repetition in range(self.plan.suite.suite.warmup):
            for attempt in self._attempts(short, [(prompt, repetition) for prompt in prompts[: cell.batch]]):
                if not self._has(cell, attempt.prompt, repetition, warmup=True):
                    sample = replace(attempt.sample, warmup=True)
                    self.store.write(cell.id, Record(sample, attempt.steps))

    def _prompts(self, order: Sequence[Cell], keys: Sequence[Key], todo: Mapping[Cell, set[tuple[str, int]]]) -> None:
        """Decode in turn, what is to be done of these; an output is scored and written once its baseline's is known."""
        waiting: list[tuple[Cell, _Attempt]] = []
        for cell in order:
            asked = [(prompt, repetition) for prompt, repetition in keys if (prompt.id, repetition) in todo[cell]]
            for attempt in self._attempts(cell, asked):
                if cell.role == "baseline" and attempt.sample.status == "ok":
                    self.outputs[(cell.id, attempt.prompt.id, attempt.sample.repetition)] = attempt.sample.tokens
                waiting.append((cell, attempt))
            for ready in [item for item in waiting if self._baseline_output(item[0], item[1].sample) is not None]:
                waiting.remove(ready)
                self._finish(*ready)
        for cell, attempt in waiting:  # the baseline failed on this prompt, or was lost
            self._finish(cell, attempt)

    def _baseline_output(self, cell: Cell, sample: Sample) -> tuple[int, ...] | None:
        return self.outputs.get((self.plan.baseline(cell).id, sample.prompt, sample.repetition))

    def _attempts(self, cell: Cell, keys: Sequence[Key]) -> list[_Attempt]:
        """The decodes of one gang; a store that fails ends the run."""
        jobs = [partial(self._attempt, cell, prompt, repetition) for prompt, repetition in keys]
        found = Batch[_Attempt](cell.batch).run(jobs)
        for error in (each for each in found if isinstance(each, Exception)):
            raise error
        return [each for each in found if isinstance(each, _Attempt)]

    def _attempt(self, cell: Cell, prompt: Prompt, repetition: int, slot: Slot | None) -> _Attempt:
        """One decode; whatever a method raises becomes a failed row, never a gap."""
        sample = Sample(prompt.id, repetition, False, "ok", category=prompt.category)
        try:
            stopwatch = Stopwatch(clock_for(self.backbone.device))
            begin = stopwatch.clock.stamp()
            encoded = self.backbone.open(prompt)
            stopwatch.clock.finish()
            open_ns = stopwatch.clock.wall_ns(begin, stopwatch.clock.stamp())
            sample = replace(sample, prompt_tokens=len(encoded.tokens), open_ns=open_ns)
            stream = f"{cell.task.name}/floor" if cell.role == "floor" else cell.task.name
            draws = SeededDraws(cell.seed, stream, prompt.id, repetition, self.backbone.device)
            grid = self.backbone.capabilities.grid
            budget = min(cell.max_new_tokens, grid.length) if grid else cell.max_new_tokens
            models = Models(self.backbone, self._drafter, prompt, stopwatch, encoded, slot)
            run = Run.of(models, cell.sampling, budget, draws)
            if slot is not None:
                slot.ready()  # no prefill waits for another prompt's encoder
            if not cell.stop_at_eos:
                run.eos = frozenset()
            found = decode(cell.method, run)
            sample = replace(sample, tokens=found.tokens, prefill_ns=found.prefill_ns, stages=found.stages)
            return _Attempt(prompt, sample, found, run)
        except (StoreError, RunIncomplete):
            raise
        except Exception as error:  # a method or plugin may raise anything: the row says what
            return _Attempt(prompt, replace(sample, status="failed", error=_say("", error)))

    def _finish(self, cell: Cell, attempt: _Attempt) -> None:
        sample, prompt = attempt.sample, attempt.prompt
        if cell.role == "baseline" and cell.task.task.modality == "mesh" and prompt.condition is not None:
            self.store.keep_condition(cell.id, prompt.id, prompt.condition)
        if attempt.run is not None and sample.tokens:
            try:
                sample = self._score(cell, attempt.run, sample, prompt)
            except (StoreError, RunIncomplete):
                raise
            except OutputError as error:  # the model's failure, not ours: the tokens stand, their output does not
                sample = replace(sample, status="failed", error=f"{NO_OUTPUT}{error}")
            except Exception as error:  # a task's scorer may raise anything
                sample = replace(sample, status="failed", error=_say("scoring: ", error))
        self.store.write(cell.id, Record(sample, attempt.steps))
        self.options.progress.done(cell, prompt)

    def _score(self, cell: Cell, run: Run, sample: Sample, prompt: Prompt) -> Sample:
        """Log-probabilities of the very tokens that were timed; agreement; the task's own score."""
        if Requirement.BIDIRECTIONAL in self.backbone.capabilities.meets:
            return self._judge(cell, sample, prompt)  # there is no law of a next token to score by
        session = run.target
        session.rollback(sample.prompt_tokens)
        output = torch.tensor(sample.tokens, device=session.device)
        logits = session.forward(Draft(output[:-1])).double()
        laws = logits.log_softmax(-1)
        chosen = laws.gather(1, output[:, None])[:, 0]
        sample = replace(sample, logprobs=tuple(chosen.tolist()))
        if cell.role == "baseline" and self.backbone.capabilities.grid is not None:
            leading = laws.topk(min(LEADING, laws.shape[1])).values.exp()
            sample = replace(sample, leading=tuple(leading.flatten().tolist()))
        theirs = self._baseline_output(cell, sample)
        if cell.sampling.temperature == 0 and theirs is not None:
            apart = diverge(sample.tokens, theirs)
            margin = None
            if apart.at is not None and apart.at < min(len(theirs), len(sample.tokens)):
                row = logits[apart.at]
                margin = float(row[theirs[apart.at]] - row[sample.tokens[apart.at]])
            sample = replace(sample, agreement=apart.agreement, diverged_at=apart.at, margin=margin)
        return self._judge(cell, sample, prompt)

    def _judge(self, cell: Cell, sample: Sample, prompt: Prompt) -> Sample:
        """Decode the output, keep it where it is a picture or a mesh, and let the task score it.

        Raises:
            OutputError: the tokens stand for nothing.
        """
        grid, task = self.backbone.capabilities.grid, cell.task.task
        if grid is not None and len(sample.tokens) < grid.length:
            return sample  # the suite asked for fewer tokens than a picture has
        output = self.backbone.decode(sample.tokens)
        if isinstance(output, str):
            sample = replace(sample, text=output)
        else:
            sample = replace(sample, output=self.store.keep_output(cell.id, sample, output))
        if task.metrics and (self.options.allow_code or not task.runs_code):
            sample = replace(sample, scores=task.score(prompt, output, sample.tokens))
        if grid is not None:
            sample = replace(sample, regions=tuple(task.regions(prompt, output, (grid.rows, grid.columns))))
        return sample

    def _score_set(self, cell: Cell) -> dict[str, Any]:
        """What the task says of all outputs of a cell; a scorer that fails is a reason, not the end of the run."""
        task = cell.task.task
        if not task.set_metrics:
            return {}
        prompts = {prompt.id: prompt for prompt in self.plan.prompts[cell.task]}
        samples = self.store.pending(cell.id)
        good = [s for s in samples if s.status == "ok" and (s.output or not self.backbone.capabilities.grid)]
        outputs = [outputs_of.load(self.store.path / s.output) if s.output else s.text for s in good]
        scored = [Scored(prompts[s.prompt], s.repetition, o, s.scores) for s, o in zip(good, outputs, strict=True)]
        failed = len(samples) - len(good)
        try:
            found = task.score_set(scored) if scored else {}
        except Exception as error:  # a task's scorer may raise anything
            found = {name: SetScore(None, len(scored), reason=_say("scoring: ", error)) for name in task.set_metrics}
        return {name: asdict(replace(score, failures=score.failures + failed)) for name, score in found.items()}


@dataclass(frozen=True)
class _Attempt:
    """A decode that went well or not."""

    prompt: Prompt
    sample: Sample
    found: Decode | None = None
    run: Run | None = None

    @property
    def steps(self) -> Any:
        """Of the decode; none if it failed."""
        return self.found.steps if self.found else ()


def _say(where: str, error: Exception) -> str:
    """An error in one line, with the place it came from."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{where}{type(error).__name__}: {error} ({frame.name}, line {frame.lineno})"


def summary(plan: Plan, store: Store) -> Mapping[str, Any]:
    """The counts of a run: {run, cells, done, failed, malformed, skipped}; failed and malformed count samples.

    Malformed: output that stands for nothing, such as a mesh cut inside a patch; failed: whatever else went wrong.
    """
    done = failed = skipped = malformed = 0
    for cell in plan.cells:
        if cell.skip:
            skipped += 1
        elif store.sealed(cell.id):
            found = store.cell(cell.id)
            skipped += found.meta["status"] == "skipped"
            done += found.meta["status"] == "done"
            bad = found.samples[(found.samples["status"] == "failed") & ~found.samples["warmup"]]
            ours = bad["error"].fillna("").str.startswith(NO_OUTPUT)
            malformed += int(ours.sum())
            failed += int((~ours).sum())
    return {
        "run": str(store.path),
        "cells": len(plan.cells),
        "done": done,
        "failed": failed,
        "malformed": malformed,
        "skipped": skipped,
    }


Executor = Callable[[Plan, Store, Options], None]
