"""The loop: step, commit, record, stop. The only place that times, counts and truncates."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.clock import Clock, Span, Stamp
from stridebench.harness.core.draft import Acceptance, Draft, Fill, HostAcceptance
from stridebench.harness.core.draws import Draws
from stridebench.harness.core.method import Method
from stridebench.harness.core.run import Run
from stridebench.harness.core.step_rows import Advance, PassTally, TimedStep, row_of_step
from stridebench.harness.errors import ContractError
from stridebench.harness.machine.noise import GpuMeter, NoiseMeter, Waited, stopped_times
from stridebench.harness.record.columns import Step, check


@dataclass(frozen=True)
class KeptDraft:
    """The draft of one step, with everything that is needed to draft it again.

    Args:
        first: the position of the first token that the step emitted.
        draft: on the device.
        path: the accepted nodes.
        draws: as they were before the step.
    """

    first: int
    draft: Draft
    path: tuple[int, ...]
    draws: Draws


@dataclass(frozen=True)
class Decode:
    """One decoded prompt: output ids (end-of-text included), its steps, the time of the prefill and of named stages.

    Attributes:
        prefill_ns: reading the prompt, drafters included, and loading them.
        start_ns: the rest of the method's ``start``; in a batch its share.
        start_nfe: target passes made there.
        start_draft_nfe: drafter passes made there.
        drafts: of the steps 1, 2, 4, 8, ..., counted from 0; only if they are kept.
    """

    tokens: tuple[int, ...]
    steps: tuple[Step, ...]
    prefill_ns: int
    stages: dict[str, int] = field(default_factory=dict)
    start_ns: int = 0
    start_nfe: int = 0
    start_draft_nfe: int = 0
    drafts: tuple[KeptDraft, ...] = ()


def decode(method: Method[Any], run: Run, keeps_drafts: bool = False, watched: bool = True) -> Decode:
    """Decode until the budget, the context or an end-of-text token; a canvas until it is full or has `Run.ended`.

    Args:
        keeps_drafts: return the drafts of some steps, so that they can be drafted again.
        watched: read how long each step waited for a core; False if times are not used.

    Raises:
        ContractError: a step emitted a token outside the vocabulary or none, ran no target pass, expected to keep more
            drafts than there are, or broke an identity; the method ended the process; or a pass returned logits that
            are not finite, also where these made the method raise another error.
    """
    spans = [run.stopwatch.spans]
    try:
        return _decoded(method, run, keeps_drafts, spans, watched)
    except Exception:  # a method may raise anything; its error goes on, unless such logits made it
        _refuse_non_finite(spans)
        raise


def _decoded(method: Method[Any], run: Run, keeps_drafts: bool, spans: list[list[Span]], watched: bool) -> Decode:
    """Decode; ``spans`` takes the spans of each step as it begins, behind those of the start."""
    stopwatch = run.stopwatch
    clock = stopwatch.clock
    stopwatch.keeps_peaks = True
    begin = clock.stamp()
    prefill(method, run)
    clock.finish()  # nothing to wait for on a CPU
    read = clock.stamp()
    state = begin_method(method, run)
    clock.finish()  # the start ends before the first step begins
    started, in_start, readings = clock.stamp(), PassTally.of(run), list(run.models.meter.readings)
    if run.slot is not None:
        run.slot.ready()  # no sequence's first step waits for another's prefill
    tokens: list[int] = []
    timed: list[TimedStep] = []
    draws_before: dict[int, Draws] = {}
    ended = False
    meter = NoiseMeter(gpu=GpuMeter.of(run.models.backbone.device)) if watched else None
    while not ended and run.room > 0:
        if keeps_drafts and len(timed) and len(timed) & (len(timed) - 1) == 0:
            draws_before[len(timed)] = copy.deepcopy(run.draws)  # between two steps, which no clock sees
        stopwatch.spans = []
        spans.append(stopwatch.spans)
        step_begin = clock.stamp()
        room = run.room
        committed = advance(method, run, state)
        step_end = clock.stamp()
        emitted, ended = truncate(committed.emitted, room, run.eos)
        ended |= run.ended
        if run.stop is not None and run.filling is None and (kept := run.stop(tokens, emitted)) is not None:
            emitted, ended = emitted[:kept], True
        tokens.extend(emitted)
        served = run.slot.served if run.slot is not None else 1
        overshoot = len(committed.emitted) - len(emitted)
        waited = Waited(0, 0) if meter is None else meter.read()
        timed.append(TimedStep(step_begin, step_end, stopwatch.spans, committed, overshoot, served, waited))
    clock.finish()
    if meter is not None:
        meter.close()
    _refuse_non_finite(spans)
    walls = [clock.wall_ns(step.begin, step.end) for step in timed]
    stops = stopped_times(walls, [step.waited.idle_ns for step in timed])
    steps = tuple(row_of_step(step, clock, stop) for step, stop in zip(timed, stops, strict=True))
    check(steps, len(tokens))
    start_ns = clock.wall_ns(read, started) - _read_ns(readings, read, clock)
    shared = run.slot.served if run.slot is not None and in_start.passes else 1
    return Decode(
        output(run, tuple(tokens)),
        steps,
        clock.wall_ns(begin, started) - start_ns,
        _stages(timed, clock, stops),
        max(0, start_ns) // shared,
        in_start.passes,
        in_start.drafts,
        tuple(_kept(timed[index].advance, draws) for index, draws in draws_before.items()),
    )


def _kept(step: Advance, draws: Draws) -> KeptDraft:
    return KeptDraft(step.first, step.draft, step.read.path, draws)


def _read_ns(readings: Sequence[tuple[Stamp, Stamp]], since: Stamp, clock: Clock) -> int:
    """Return nanoseconds of reading the prompt and loading drafters after ``since``."""
    return sum(clock.device_ns(begin, end) for begin, end in readings if begin.host_ns >= since.host_ns)


def start(method: Method[Any], run: Run) -> Any:
    """Prefill the prompt, with the layers that the method taps; returns the method's state."""
    prefill(method, run)
    return begin_method(method, run)


def prefill(method: Method[Any], run: Run) -> None:
    """Read the prompt into the target, with the layers that the method taps."""
    if Requirement.ANY_ORDER in method.requirements:
        run.canvas.prefill()
    elif Requirement.BIDIRECTIONAL not in method.requirements:  # its prompt is read with the canvas
        run.target.tap(method.taps)
        run.target.prefill()


def begin_method(method: Method[Any], run: Run) -> Any:
    """Return the method's state for a prompt that is read, or raise ContractError if the method ended the process."""
    try:
        return method.start(run)
    except SystemExit as stop:
        raise _ended_process(method, "start", stop) from stop


def _ended_process(method: Method[Any], where: str, stop: SystemExit) -> ContractError:
    return ContractError(f"{type(method).__name__}.{where} called sys.exit({stop.code!r}); raise an error instead")


def _refuse_non_finite(spans_by_step: Sequence[Sequence[Span]]) -> None:
    """Refuse a decode whose logits were NaN or infinite, because tokens drawn from them mean nothing.

    Args:
        spans_by_step: of the start, then of each step. Their peaks are read from the device once.
    """
    steps = [(step, span.kind) for step, spans in enumerate(spans_by_step) for span in spans if span.peak is not None]
    peaks = [span.peak for spans in spans_by_step for span in spans if span.peak is not None]
    finite = torch.isfinite(torch.stack([peak.to(peaks[0].device) for peak in peaks])).tolist() if peaks else []
    if all(finite):
        return
    step, kind = steps[finite.index(False)]
    raise ContractError(
        f"the logits of the {'target' if kind == 'target' else 'drafter'} are NaN or infinite from "
        f"{f'step {step}' if step else 'the start'} on: a weight is not finite, or fp16 overflows; "
        f"check the weights, or decode in fp32 or bf16"
    )


def advance(method: Method[Any], run: Run, state: Any) -> Advance:
    """Run one step and commit it.

    Raises:
        ContractError: no target pass, no token, one outside the vocabulary, or the end of the process.
    """
    before, passes, first = PassTally.of(run), _own_passes(run), len(run.target)
    run.draws.emitted, run.draws.end = first, run.filling.end if run.filling is not None else first + run.room
    try:
        result = method.step(run, state)
    except SystemExit as stop:
        raise _ended_process(method, "step", stop) from stop
    after, draft = PassTally.of(run), run.target.draft
    if not isinstance(result, Acceptance | Fill):
        raise ContractError(
            f"{type(method).__name__}.step returned a {type(result).__name__}; return an Acceptance, or a Fill of the "
            f"canvas"
        )
    if _own_passes(run) == passes:
        raise ContractError(
            f"{type(method).__name__}.step made no target pass; call run.target.forward once, or run.canvas.read"
        )
    if isinstance(result, Fill):
        filled = run.canvas.fill(result)
        places, emitted = tuple(filled), tuple(filled.values())
        read = HostAcceptance((), emitted[-1], 0.0)
    else:
        emitted = run.target.commit(result)
        places, read = tuple(range(first, first + len(emitted))), result.read()
    if not all(0 <= token < run.capabilities.vocabulary for token in emitted):
        raise ContractError(
            f"{type(method).__name__}.step emitted {emitted}, outside the vocabulary of {run.capabilities.vocabulary}"
        )
    resampled = result.resampled if isinstance(result, Fill) else 0
    return Advance(emitted, draft, read, before, after, run.capabilities.grid, first, places, resampled)


def _own_passes(run: Run) -> int:
    """Return the passes that the target itself or its canvas made."""
    return run.target.passes + (run.filling.passes if run.filling is not None else 0)


def output(run: Run, emitted: tuple[int, ...]) -> tuple[int, ...]:
    """Return the tokens so far: as they were emitted, or in raster order if they fill a canvas."""
    return emitted if run.filling is None else run.filling.output


def truncate(emitted: tuple[int, ...], room: int, eos: frozenset[int]) -> tuple[tuple[int, ...], bool]:
    """Cut after the first end-of-text token or at the room left; and whether the text ended."""
    for index, token in enumerate(emitted[:room]):
        if token in eos:
            return emitted[: index + 1], True
    return emitted[:room], False


def _stages(timed: Sequence[TimedStep], clock: Clock, stops: Sequence[int]) -> dict[str, int]:
    """Return nanoseconds of the stages that the method named, without the time in which the process was stopped."""
    stages: Counter[str] = Counter()
    for step, stop in zip(timed, stops, strict=True):
        for span in (span for span in step.spans if span.kind not in ("target", "draft")):
            elapsed = clock.device_ns(span.begin, span.end)
            stages[span.kind] += elapsed - stop * (elapsed >= stop)
    return dict(stages)
