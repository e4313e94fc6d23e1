"""Scores of timed decodes: agreement with the baseline, the task's score of an output, and of all outputs of a cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, SupportsFloat

import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from stridebench.harness.core.capabilities import UNORDERED
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.models import Models
from stridebench.harness.core.session import Session
from stridebench.harness.core.task import Prompt, Scored, SetScore, Task
from stridebench.harness.errors import ContractError, OutputError, RunIncomplete, StoreError
from stridebench.harness.machine.surroundings import limited, restored
from stridebench.harness.plan.cells import Cell
from stridebench.harness.record import outputs
from stridebench.harness.record.columns import SCORER_FAILED, Record, Sample
from stridebench.harness.record.entries import StoredSetScore
from stridebench.harness.record.outputs import pieces
from stridebench.harness.run.attempt import NO_OUTPUT, Attempt, FinishedRun, one_line
from stridebench.harness.run.auditing import checked_sample
from stridebench.harness.run.loading import LoadedGroup
from stridebench.harness.run.read_prompts import ReadPrompts

# Checks that the scorers of a task keep the contract of `stridebench.harness.core.task`.


def checked_scores(task: Task, scores: object) -> dict[str, float]:
    """The scores of one output as plain numbers."""
    owner = f"{type(task).__name__}.score"
    if not isinstance(scores, Mapping):
        raise ContractError(f"{owner} returned {scores!r:.200}; return a number for each of its metrics")
    missing = [name for name in task.metrics if name not in scores and name not in task.optional_metrics]
    unknown = [str(name) for name in scores if name not in task.metrics]
    if missing or unknown:
        lacks = f"lacks {', '.join(missing)}" if missing else f"names {', '.join(unknown)}"
        raise ContractError(f"the answer of {owner} {lacks}; metrics: {', '.join(task.metrics)}")
    return {str(name): _number(owner, name, value) for name, value in scores.items()}


def checked_set_scores(task: Task, scores: object, outputs: int) -> dict[str, SetScore]:
    """The scores of a set of outputs. One that is left out, and is not optional, has that as its reason."""
    owner = f"{type(task).__name__}.score_set"
    if not isinstance(scores, Mapping):
        raise ContractError(f"{owner} returned {scores!r:.200}; return a SetScore for each metric")
    unknown = [str(name) for name in scores if name not in task.set_metrics]
    if unknown:
        raise ContractError(f"{owner} names {', '.join(unknown)}; set_metrics: {', '.join(task.set_metrics)}")
    lacking = f"{SCORER_FAILED}the answer of {owner} lacks it"
    missing = [name for name in task.set_metrics if name not in scores and name not in task.optional_set_metrics]
    checked = {str(name): _checked(owner, name, score) for name, score in scores.items()}
    return checked | {name: SetScore(None, outputs, reason=lacking) for name in missing}


def _checked(owner: str, name: str, score: Any) -> SetScore:
    if not isinstance(score, SetScore):
        raise ContractError(f"{owner} returned {score!r:.200} for {name!r}; return a SetScore")
    numbers = (score.value, score.low, score.high)
    value, low, high = (None if number is None else _number(owner, name, number) for number in numbers)
    n, failures = (int(_number(owner, name, count)) for count in (score.n, score.failures))
    if min(n, failures) < 0:
        raise ContractError(f"{owner} returned {score!r:.200} for {name!r}; n and failures are counts")
    return SetScore(value, n, failures, low, high, str(score.reason))


def _number(owner: str, name: object, value: Any) -> float:
    """Return a finite number as a Python number; texts that read as numbers, and arrays, do not count."""
    try:
        if isinstance(value, str | bytes | complex) or getattr(value, "shape", ()) != ():
            raise TypeError
        if not isinstance(value, SupportsFloat) or not math.isfinite(number := float(value)):
            raise ValueError
    except Exception as error:  # a class of a plugin may raise anything
        raise ContractError(f"{owner} returned {value!r:.200} for {name!r}, not a finite number") from error
    return number


LEADING = 16
"""Number of probabilities of a distribution in `Sample.leading`."""

SET_SAMPLES = 10
"""The score of a set may take as long as the scores of its outputs, and of so many at least."""

Baselines = dict[tuple[str, str, int], tuple[int, ...]]
"""Output ids by the baseline's cell, prompt and repetition."""


class Elsewhere(Protocol):
    """Scores outputs of tasks of other packages in another process."""

    def score(self, cell: Cell, sample: Sample) -> Sample:
        """As `Scorer.score`."""

    def score_set(self, cell: Cell) -> dict[str, StoredSetScore]:
        """As `Scorer.score_set`."""


class Scorer:
    """Scores the decodes of a group and writes them.

    Args:
        elsewhere: scores the cells that `Plan.scored_apart` names, or None to score them in this process.
    """

    def __init__(self, group: LoadedGroup, elsewhere: Elsewhere | None = None) -> None:
        self._elsewhere = elsewhere
        self._plan, self._store, self._options = group.plan, group.store, group.options
        self._backbone, self._group = group.backbone, group
        self._baseline_tokens: Baselines = {}
        self._read = ReadPrompts()

    def read_baselines(self, cells: Sequence[Cell]) -> None:
        """Read the stored outputs of the baselines of these cells."""
        for baseline in dict.fromkeys(self._plan.baseline(cell).id for cell in cells):
            for (prompt, repetition), tokens in self._store.outputs(baseline).items():
                self._baseline_tokens[baseline, prompt, repetition] = tokens

    def add_baseline(self, cell: Cell, sample: Sample) -> None:
        """Remember an output if the cell is a baseline, since others are compared with it."""
        if cell.role == "baseline" and sample.status == "ok":
            self._baseline_tokens[cell.id, sample.prompt, sample.repetition] = sample.tokens

    def baselines(self, cell: Cell, prompts: Iterable[tuple[str, int]]) -> Baselines:
        """The outputs that those of the cell are compared with, as far as they are known."""
        keys = [(self._plan.baseline(cell).id, prompt, repetition) for prompt, repetition in prompts]
        return {key: self._baseline_tokens[key] for key in keys if key in self._baseline_tokens}

    def learn(self, baselines: Baselines) -> None:
        """Remember outputs of baselines that another process decoded."""
        self._baseline_tokens.update(baselines)

    def has_baseline(self, cell: Cell, sample: Sample) -> bool:
        """Whether the output that this one is compared with is known."""
        return self._baseline(cell, sample) is not None

    def finish(self, cell: Cell, attempt: Attempt) -> None:
        """Score a decode and write it. If the scorer fails, the sample is a failed one."""
        sample, prompt = attempt.sample, attempt.prompt
        if cell.role == "baseline" and prompt.condition is not None:
            self._keep_condition(cell, prompt, prompt.condition)
        run = attempt.run
        if run is not None and sample.tokens:
            if not UNORDERED & self._backbone.capabilities.meets:
                sample = self._guarded(sample, lambda: self._compare(cell, attempt, run, sample))
            if sample.status == "ok":
                sample = self.score(cell, sample, prompt)
        self._store.write(cell.id, Record(sample, attempt.steps))
        if sample.status == "ok" and sample.tokens:
            nanoseconds = sample.start_ns + sum(step.wall_ns for step in attempt.steps)
            milliseconds = nanoseconds / 1e6 / len(sample.tokens)
            self._options.progress.timed(cell, prompt, sample.repetition, milliseconds)
        self._options.progress.done(cell, prompt)

    def score(self, cell: Cell, sample: Sample, prompt: Prompt) -> Sample:
        """Return the sample with its output and score, or a failed one if the scorer fails or takes too long."""
        if self._elsewhere is not None and self._plan.scored_apart(cell):
            return self._elsewhere.score(cell, sample)

        def scored() -> Sample:
            with restored(), limited(*self._limit(1)):
                return self._score_output(cell, sample, prompt)

        return self._guarded(sample, scored)

    def _limit(self, samples: int) -> tuple[float | None, str]:
        """The limit of a score in seconds, and in words."""
        seconds = self._plan.suite.suite.sample_limit_s
        if seconds is None:
            return None, ""
        return seconds * samples, f"{seconds * samples:g} s (sample_limit_s: {seconds:g})"

    def _guarded(self, sample: Sample, scored: Callable[[], Sample]) -> Sample:
        """Return the sample as a scorer scores it, or a failed one if it raises anything."""
        try:
            return scored()
        except (StoreError, RunIncomplete):
            raise
        except OutputError as error:  # the model's failure: the tokens are kept without an output
            return replace(sample, status="failed", error=f"{NO_OUTPUT}{error}")
        except BaseException as error:  # a task's scorer may raise anything
            if isinstance(error, KeyboardInterrupt) and self._options.interruptible:
                raise
            return replace(sample, status="failed", error=one_line(error, SCORER_FAILED))

    def _keep_condition(self, cell: Cell, prompt: Prompt, condition: npt.NDArray[Any]) -> None:
        """Write the condition of the output, such as a point cloud, for views of it."""
        if cell.task.task.modality == "mesh":
            self._store.notes.keep_condition(cell.id, prompt.id, condition)
        elif cell.task.task.modality == "speech":
            words = str(prompt.data.get("reference", ""))
            from stridebench.harness.synthetic.speech import RATE

            self._store.notes.keep_sound(cell.id, prompt.id, condition, RATE, words)

    def score_set(self, cell: Cell) -> dict[str, StoredSetScore]:
        """The task's scores of all outputs of a cell.

        A scorer that fails gives a reason (`SCORER_FAILED`) and does not end the run; the exit code is 1.
        """
        task = cell.task.task
        if not task.set_metrics:
            return {}
        samples = self._store.pending(cell.id)
        unscored = [sample.error for sample in samples if (sample.error or "").startswith(SCORER_FAILED)]
        if unscored:  # never the figure of the rest
            return no_scores(
                cell, len(samples), f"{len(unscored)} of {len(samples)} outputs have no score: {unscored[0]}"
            )
        if self._elsewhere is not None and self._plan.scored_apart(cell):
            return self._elsewhere.score_set(cell)
        scored = self._scored(cell, samples)
        failed = len(samples) - len(scored)
        try:
            with restored(), limited(*self._limit(max(SET_SAMPLES, len(scored)))):
                scores = checked_set_scores(task, task.score_set(scored), len(scored)) if scored else {}
        except BaseException as error:  # a task's scorer may raise anything
            if isinstance(error, KeyboardInterrupt) and self._options.interruptible:
                raise
            return no_scores(cell, len(scored), one_line(error), failed)
        return {
            name: StoredSetScore(**vars(replace(score, failures=score.failures + failed)))
            for name, score in scores.items()
        }

    def _baseline(self, cell: Cell, sample: Sample) -> tuple[int, ...] | None:
        return self._baseline_tokens.get((self._plan.baseline(cell).id, sample.prompt, sample.repetition))

    def _compare(self, cell: Cell, attempt: Attempt, run: FinishedRun, sample: Sample) -> Sample:
        """Log-probabilities of the tokens that were timed, bets on them, their agreement with the baseline's, and the
        state of the drafter.
        """
        prompt, session = attempt.prompt, self._reader(attempt.prompt, run)
        context = [*session.tokens, *sample.tokens]
        logits = _logits(session, sample)
        logprobs = logits.log_softmax(-1)
        chosen = _chosen(logprobs, sample)
        drafter = checked_sample(self._group, cell, attempt, context, logits, self._read)
        sample = replace(sample, logprobs=tuple(chosen.tolist()), drafter=drafter)
        if cell.role == "baseline" and self._backbone.capabilities.grid is not None:
            leading = logprobs.topk(min(LEADING, logprobs.shape[1])).values.exp()
            sample = replace(sample, leading=tuple(leading.flatten().tolist()))
        if cell.sampling.temperature > 0:
            from stridebench.harness.run.auditing import audited_canvas, audited_sample

            if run.filling is not None:
                return replace(sample, audit=audited_canvas(self._group, cell, prompt, run.filling))
            emitted = [step.emitted for step in attempt.steps]
            return replace(sample, audit=audited_sample(self._group, cell, prompt, context, logits, emitted))
        baseline = self._baseline(cell, sample)
        if baseline is None:
            return sample
        from stridebench.harness.record.metrics import diverge

        divergence = diverge(sample.tokens, baseline)
        margin = None
        if divergence.at is not None and divergence.at < min(len(baseline), len(sample.tokens)):
            row = logits[divergence.at]
            margin = float(row[baseline[divergence.at]] - row[sample.tokens[divergence.at]])
        return replace(sample, agreement=divergence.agreement, diverged_at=divergence.at, margin=margin)

    def other_weights(self, cell: Cell, samples: Iterable[Sample]) -> str | None:
        """Return why the first output of a cell that a worker decoded was not read with these weights, or None."""
        from stridebench.harness.audit.laws import MARGINS

        prompts = {prompt.id: prompt for prompt in self._plan.prompts[cell.task]}
        for sample in (one for one in samples if one.status == "ok" and one.logprobs and one.prompt in prompts):
            session = Models(self._backbone, self._group.load_drafter, prompts[sample.prompt]).target()
            logprobs = _chosen(_logits(session, sample).log_softmax(-1), sample)
            gap = (logprobs.cpu() - torch.tensor(sample.logprobs, dtype=torch.float64)).abs().mean().item()
            if gap <= MARGINS[self._backbone.dtype]:
                return None
            return (
                f"the log-probabilities of the prompt {sample.prompt!r:.60} are {gap:.3g} nats a token from those of "
                f"the weights: the method changed the target in its process"
            )
        return None

    def _reader(self, prompt: Prompt, run: FinishedRun) -> Session:
        """Return a new session of the target on the prompt: a method may have left anything in its cache."""
        encoded = self._backbone.open(prompt)
        self._read.begin(prompt, encoded.tokens)
        models = Models(self._backbone, self._group.load_drafter, prompt, encoded=encoded, new_cache=self._read.cache)
        session = models.target()
        if run.filling is None:  # a canvas has read its prompt elsewhere
            session.prefill()
        return session

    def _score_output(self, cell: Cell, sample: Sample, prompt: Prompt) -> Sample:
        """Decode the output, keep it if it is a picture or a mesh, and let the task score it."""
        grid, task = self._backbone.capabilities.grid, cell.task.task
        if grid is not None and len(sample.tokens) < grid.length:
            return sample  # the suite asked for fewer tokens than a picture has
        output = self._backbone.decode(sample.tokens)
        if isinstance(output, str):
            sample = replace(sample, text=output, pieces=pieces(self._backbone.decode, sample.tokens))
        else:
            sample = replace(sample, output=self._store.notes.keep_output(cell.id, sample, output))
        if task.metrics and (self._options.allow_code or not task.runs_code):
            sample = replace(sample, scores=checked_scores(task, task.score(prompt, output, sample.tokens)))
        if grid is not None:
            sample = replace(sample, regions=tuple(task.regions(prompt, output, (grid.rows, grid.columns))))
        return sample

    def _scored(self, cell: Cell, samples: Sequence[Sample]) -> list[Scored]:
        """The outputs that were scored; unfinished pictures are left out."""
        prompts = {prompt.id: prompt for prompt in self._plan.prompts[cell.task]}
        scored = []
        for sample in samples:
            if sample.status == "ok" and (sample.output or not self._backbone.capabilities.grid):
                output = outputs.load(self._store.path / sample.output) if sample.output else sample.text
                scored.append(Scored(prompts[sample.prompt], sample.repetition, output, sample.scores))
        return scored


def no_scores(cell: Cell, outputs: int, reason: str, failed: int = 0) -> dict[str, StoredSetScore]:
    """Return every score of a set with one reason for its absence."""
    score = StoredSetScore(**vars(SetScore(None, outputs, failed, reason=f"{SCORER_FAILED}{reason}")))
    return dict.fromkeys(cell.task.task.set_metrics, score)


def _logits(session: Session, sample: Sample) -> Float[Tensor, "n V"]:
    """Logits of each token of an output, from one pass."""
    return session.forward(Draft(torch.tensor(sample.tokens[:-1], dtype=torch.long, device=session.device))).double()


def _chosen(logprobs: Float[Tensor, "n V"], sample: Sample) -> Float[Tensor, " n"]:
    """Log-probabilities of the tokens of an output."""
    return logprobs.gather(1, torch.tensor(sample.tokens, device=logprobs.device)[:, None])[:, 0]
