"""The loop: step, commit, record, stop. The only place that times, counts and truncates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from harness.core.capabilities import Grid, Requirement
from harness.core.clock import Clock, Span, Stamp
from harness.core.draft import Draft, Fill, HostAcceptance
from harness.core.method import Method
from harness.core.run import Run
from harness.core.session import depths_of
from harness.errors import ContractError
from harness.record.ledger import Step, check


@dataclass(frozen=True)
class Decode:
    """One decoded prompt: output ids (end-of-text included), its steps, the time of the prefill and of named stages."""

    tokens: tuple[int, ...]
    steps: tuple[Step, ...]
    prefill_ns: int
    stages: dict[str, int] = field(default_factory=dict)


class _Raw(NamedTuple):
    """A step before its stamps are read."""

    begin: Stamp
    end: Stamp
    spans: list[Span]
    took: Advance
    overshoot: int
    served: int


def decode(method: Method[Any], run: Run) -> Decode:
    """Decode until the budget, the context or an end-of-text token; a canvas until all its positions are filled.

    Raises:
        ContractError: a step emitted a token outside the vocabulary or none, ran no target pass, or broke an identity.
    """
    stopwatch = run.stopwatch
    clock = stopwatch.clock
    begin = clock.stamp()
    state = start(method, run)
    clock.finish()  # the prefill ends before the first step begins; nothing to wait for on a CPU
    started = clock.stamp()
    if run.slot is not None:
        run.slot.ready()  # no row's first step waits for another's prefill
    tokens: list[int] = []
    raw: list[_Raw] = []
    ended = False
    while not ended and run.room > 0:
        stopwatch.spans = []
        step_begin = clock.stamp()
        room = run.room
        took = advance(method, run, state)
        step_end = clock.stamp()
        kept, ended = truncate(took.emitted, room, run.eos)
        tokens.extend(kept)
        run.emitted += len(kept)
        served = run.slot.served if run.slot is not None else 1
        raw.append(_Raw(step_begin, step_end, stopwatch.spans, took, len(took.emitted) - len(kept), served))
    clock.finish()
    steps = tuple(_resolve(r, clock) for r in raw)
    check(steps, len(tokens))
    return Decode(output(run, tuple(tokens)), steps, clock.wall_ns(begin, started), _stages(raw, clock))


def start(method: Method[Any], run: Run) -> Any:
    """The prompt read, with the layers that the method taps; and its state."""
    if Requirement.ANY_ORDER in method.requirements:
        run.canvas.prefill()
    elif Requirement.BIDIRECTIONAL not in method.requirements:  # a masked model reads its prompt anew in every pass
        run.target.tap(method.taps)
        run.target.prefill()
    return method.start(run)


class Tally(NamedTuple):
    """Passes and rows so far."""

    passes: int
    rows: int
    drafts: int

    @staticmethod
    def of(run: Run) -> Tally:
        """Of this run."""
        target = run.target if run.filling is None else run.filling
        drafts = sum(s.passes for s in run.opened.values()) + sum(c.passes for c in run.pictures.values())
        return Tally(target.passes, target.rows, drafts)


class Advance(NamedTuple):
    """A step that was committed; what it drafted stays on the device until the decode is over."""

    emitted: tuple[int, ...]
    draft: Draft
    read: HostAcceptance
    before: Tally
    after: Tally
    grid: Grid | None
    first: int
    places: tuple[int, ...]
    resampled: int

    def forced(self, depth: int) -> bool:
        """Whether only one token was allowed at a depth, 0 for what follows the token before the step."""
        return self.grid is not None and self.grid.forced(self.first + depth) is not None


def advance(method: Method[Any], run: Run, state: Any) -> Advance:
    """One step and its commit.

    Raises:
        ContractError: no target pass, no token, or one outside the vocabulary.
    """
    before, first = Tally.of(run), len(run.target)
    made = method.step(run, state)
    after, draft = Tally.of(run), run.target.draft
    if after.passes == before.passes:
        raise ContractError(
            f"{type(method).__name__}.step made no target pass; call run.target.forward once, or run.canvas.read"
        )
    if isinstance(made, Fill):
        filled = run.canvas.fill(made)
        places, emitted = tuple(filled), tuple(filled.values())
        read = HostAcceptance((), emitted[-1], 0.0)
    else:
        emitted = run.target.commit(made)
        places, read = tuple(range(first, first + len(emitted))), made.read()
    if not all(0 <= token < run.capabilities.vocabulary for token in emitted):
        raise ContractError(
            f"{type(method).__name__}.step emitted {emitted}, outside the vocabulary of {run.capabilities.vocabulary}"
        )
    resampled = made.resampled if isinstance(made, Fill) else 0
    return Advance(emitted, draft, read, before, after, run.capabilities.grid, first, places, resampled)


def output(run: Run, emitted: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens so far: as they were emitted, or in raster order where they fill a canvas."""
    return emitted if run.filling is None else run.filling.output


def truncate(emitted: tuple[int, ...], room: int, eos: frozenset[int]) -> tuple[tuple[int, ...], bool]:
    """Cut after the first end-of-text token or at the room left; and whether the text ended."""
    for index, token in enumerate(emitted[:room]):
        if token in eos:
            return emitted[: index + 1], True
    return emitted[:room], False


def tested(draft: Draft, read: HostAcceptance) -> int:
    """Drafts along the path that were judged: those kept, and the one refused where the path could have gone on."""
    last = read.path[-1] if read.path else -1
    parents = draft.parents
    more = len(read.path) < draft.proposed if parents is None else bool((parents[: draft.proposed] == last).any())
    return len(read.path) + (more or _closed(draft, read))


def _closed(draft: Draft, read: HostAcceptance) -> bool:
    """A draft behind the path was tested that no pass has read."""
    return read.passed is not None and len(read.path) == draft.proposed


def _depths(draft: Draft, read: HostAcceptance) -> list[int]:
    """Of the drafts that count, from 0."""
    closing = [len(read.path)] if _closed(draft, read) else []
    if draft.parents is None:
        return [*range(draft.proposed), *closing]
    depths = depths_of(draft.parents[: draft.proposed])
    return [*(depths if draft.repeats is None else depths[~draft.repeats[: draft.proposed]]).tolist(), *closing]


def _ranks(draft: Draft, read: HostAcceptance) -> tuple[int, ...]:
    """Elder siblings of each node kept, but for repeats; none in a chain."""
    if draft.parents is None:
        return ()
    above = draft.parents.tolist()
    again = [False] * len(above) if draft.repeats is None else draft.repeats.tolist()
    return tuple(sum(above[k] == above[node] and not again[k] for k in range(node)) for node in read.path)


def _forced_counts(took: Advance) -> dict[str, int]:
    """How many emitted, drafted, tested and accepted tokens had only one value allowed."""
    if took.grid is None:
        return {"forced": 0}
    depths = _depths(took.draft, took.read)
    kept, reached = took.read.kept, tested(took.draft, took.read)
    forced = [took.forced(depth) for depth in range(len(took.emitted))]
    refused = reached > kept and took.forced(kept)
    return {
        "forced": sum(took.grid.forced(place) is not None for place in took.places),
        "forced_drafted": sum(map(took.forced, depths)),
        "forced_tested": sum(forced[:kept]) + refused,
        "forced_accepted": sum(forced[:kept]),
    }


def _stages(raw: Sequence[_Raw], clock: Clock) -> dict[str, int]:
    found: Counter[str] = Counter()
    for span in (span for step in raw for span in step.spans if span.kind not in ("target", "draft")):
        found[span.kind] += clock.device_ns(span.begin, span.end)
    return dict(found)


def _resolve(raw: _Raw, clock: Clock) -> Step:
    wall = clock.wall_ns(raw.begin, raw.end)
    target = [span for span in raw.spans if span.kind == "target"]
    target_ns = sum(clock.device_ns(span.begin, span.end) for span in target)
    draft_ns = sum(clock.device_ns(span.begin, span.end) for span in raw.spans if span.kind == "draft")
    verify_ns = clock.device_ns(target[-1].end, raw.end)
    after = (s for s in raw.spans if s.kind == "draft" and s.begin.host_ns > target[-1].end.host_ns)
    verify_ns -= sum(clock.device_ns(s.begin, s.end) for s in after)  # that is drafting, not verifying
    took, depths = raw.took, _depths(raw.took.draft, raw.took.read)
    return Step(
        nfe=took.after.passes - took.before.passes,
        draft_nfe=took.after.drafts - took.before.drafts,
        rows=took.after.rows - took.before.rows,
        drafted=len(depths),
        levels=max(depths, default=-1) + 1,
        tested=tested(took.draft, took.read),
        accepted=took.read.kept,
        expected=took.read.expected,
        emitted=len(took.emitted),
        overshoot=raw.overshoot,
        reused=int(took.draft.reused.sum()) if took.draft.reused is not None else 0,
        wall_ns=wall,
        device_ns=clock.device_ns(raw.begin, raw.end),
        draft_ns=draft_ns,
        target_ns=target_ns,
        verify_ns=verify_ns,
        host_ns=max(0, wall - target_ns - draft_ns - verify_ns),
        resampled=took.resampled,
        served=raw.served,
        ranks=_ranks(took.draft, took.read),
        energies=took.read.energies,
        **_forced_counts(took),
    )
