"""One decode of one prompt, timed, which succeeds or fails."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from stridebench.harness.core.batch import BatchStopped, Slot
from stridebench.harness.core.canvas import Canvas
from stridebench.harness.core.clock import Stopwatch, clock_for
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import KeptDraft, decode
from stridebench.harness.core.models import Models
from stridebench.harness.core.run import Run
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import RunIncomplete, StoreError, printable, said_by
from stridebench.harness.plan.cells import Cell
from stridebench.harness.record.columns import Sample, Step
from stridebench.harness.record.outputs import Output
from stridebench.harness.run.loading import LoadedGroup

NO_OUTPUT = "output: "
"""Prefix of the error of a sample whose decode succeeded, but whose tokens could not be made an output."""


@dataclass(frozen=True)
class FinishedRun:
    """What scorers read of a run that is over. Its sessions are not kept: their caches of a long prompt are large."""

    budget: int
    eos: frozenset[int]
    opened: bool
    filling: Canvas | None

    @classmethod
    def of(cls, run: Run) -> FinishedRun:
        return cls(run.budget, frozenset(run.eos), bool(run.opened), run.filling)


@dataclass(frozen=True)
class Attempt:
    """A decode that succeeded or failed; a failed one is without steps and run. See `Decode.drafts` for ``drafts``."""

    prompt: Prompt
    sample: Sample
    steps: tuple[Step, ...] = ()
    run: FinishedRun | None = None
    drafts: tuple[KeptDraft, ...] = ()


def attempt(
    group: LoadedGroup, cell: Cell, prompt: Prompt, repetition: int, slot: Slot | None, keeps_drafts: bool = False
) -> Attempt:
    """Decode a prompt; whatever a method raises becomes a failed sample."""
    backbone = group.backbone
    sample = Sample(prompt.id, repetition, False, "ok", category=prompt.category, cluster=prompt.cluster)
    sample = replace(sample, prompt_text=prompt.shown())
    try:
        memory = earlier_outputs(group, cell, prompt, repetition) if cell.method.remembers else ()
        stopwatch = Stopwatch(clock_for(backbone.device))
        begin = stopwatch.clock.stamp()
        encoded = backbone.open(prompt)
        stopwatch.clock.finish()
        open_ns = stopwatch.clock.wall_ns(begin, stopwatch.clock.stamp())
        sample = replace(sample, prompt_tokens=len(encoded.tokens), open_ns=open_ns, unread=encoded.unread)
        stream = f"{cell.task.name}/floor" if cell.role == "floor" else cell.task.name
        draws = SeededDraws(cell.seed, stream, prompt.id, repetition, backbone.device)
        grid = backbone.capabilities.grid
        most = prompt.budget(cell.max_new_tokens)
        budget = min(most, grid.length) if grid else most
        models = Models(backbone, group.load_drafter, prompt, stopwatch, encoded, slot, memory=memory)
        run = Run.of(models, cell.sampling, budget, draws, cell.stop_at_eos)
        if stops := cell.task.task.stops:
            run = replace(run, stop=partial(kept_tokens, backbone.decode, stops))
        if slot is not None:
            slot.ready()  # no prefill waits for another prompt's encoder
        decoded = decode(cell.method, run, keeps_drafts)
        sample = replace(
            sample,
            tokens=decoded.tokens,
            completion=completion(decoded.tokens, backbone.capabilities.eos),
            prefill_ns=decoded.prefill_ns,
            stages=decoded.stages,
            start_ns=decoded.start_ns,
            start_nfe=decoded.start_nfe,
            start_draft_nfe=decoded.start_draft_nfe,
        )
        return Attempt(prompt, sample, decoded.steps, FinishedRun.of(run), decoded.drafts)
    except (StoreError, RunIncomplete, BatchStopped):
        raise
    except BaseException as error:  # a method or plugin may raise anything: the sample says what
        if isinstance(error, KeyboardInterrupt) and group.options.interruptible:
            raise
        return Attempt(prompt, replace(sample, status="failed", error=one_line(error)))


def earlier_outputs(group: LoadedGroup, cell: Cell, prompt: Prompt, repetition: int) -> list[tuple[int, ...]]:
    """Return what the cell has stored of the batches before this decode's, so that a resumed run rebuilds the same.

    Other repetitions of the prompt are left out: they would show a greedy decode its own output.
    """
    stored, again = group.store.outputs(cell.id), range(group.plan.repetitions(cell.task))
    keys = list(product([other.id for other in group.plan.prompts[cell.task]], again))
    first = keys.index((prompt.id, min(repetition, again[-1])))  # a warm-up may have more repetitions
    batch = first // cell.batch
    return [stored[key] for key in keys[: batch * cell.batch] if key in stored and key[0] != prompt.id]


TAIL = 32
"""Tokens before a step that may hold the beginning of a stop text."""


def kept_tokens(
    decode: Callable[[Sequence[int]], Output], stops: Sequence[str], before: Sequence[int], emitted: Sequence[int]
) -> int | None:
    """Return how many of a step's tokens are kept, up to the one that completes a stop text, or None if none does."""

    def ends(count: int) -> bool:
        text = str(decode([*before[-TAIL:], *emitted[:count]]))
        return any(stop in text for stop in stops)

    if not ends(len(emitted)):
        return None
    return next(count for count in range(1, len(emitted) + 1) if ends(count))


def completion(tokens: Sequence[int], eos: Container[int]) -> int:
    """Return the number of tokens up to and with the first id that ends a text, or of all if there is none."""
    ends = (place + 1 for place, token in enumerate(tokens) if token in eos)
    return next(ends, len(tokens))


def one_line(error: BaseException, stage: str = "") -> str:
    """An error in one line: ``stage``, the error, and the place that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{stage}{said_by(error)} ({frame.name}, line {frame.lineno})"
    return " ".join(printable(text).split("\n"))
