"""What a step returns, checked, and the row that is stored of it."""

from __future__ import annotations

from typing import NamedTuple

from stridebench.harness.core.capabilities import Grid
from stridebench.harness.core.clock import Clock, Span, Stamp
from stridebench.harness.core.draft import Draft, HostAcceptance
from stridebench.harness.core.run import Run
from stridebench.harness.core.session import depths_of
from stridebench.harness.errors import ContractError
from stridebench.harness.machine.noise import Waited
from stridebench.harness.record.columns import Step


class TimedStep(NamedTuple):
    """A step before its stamps are read."""

    begin: Stamp
    end: Stamp
    spans: list[Span]
    advance: Advance
    overshoot: int
    served: int
    waited: Waited


class PassTally(NamedTuple):
    """Passes of the target's weights and entries fed to them so far, and passes of all other drafters."""

    passes: int
    rows: int
    drafts: int

    @staticmethod
    def of(run: Run) -> PassTally:
        """Return the tally of a run."""
        meter = run.models.meter
        return PassTally(meter.passes, meter.rows, meter.drafts)


class Advance(NamedTuple):
    """A step that was committed. Its draft stays on the device until the decode is over.

    Attributes:
        before: passes and rows before the step.
        after: passes and rows after it.
        first: the position of the first emitted token.
        places: the position of each emitted token.
    """

    emitted: tuple[int, ...]
    draft: Draft
    read: HostAcceptance
    before: PassTally
    after: PassTally
    grid: Grid | None
    first: int
    places: tuple[int, ...]
    resampled: int

    def forced(self, depth: int) -> bool:
        """Whether only one token was allowed at a depth; depth 0 follows the token before the step."""
        return self.grid is not None and self.grid.forced(self.first + depth) is not None


def tested(draft: Draft, read: HostAcceptance) -> int:
    """Return the drafts tested along the path: those accepted, and the rejected one if the path could have gone on."""
    last = read.path[-1] if read.path else -1
    if draft.parents is None:
        rejected = len(read.path) < draft.proposed
    else:
        rejected = bool((draft.parents[: draft.proposed] == last).any())
    return len(read.path) + (rejected or _unread_tested(draft, read))


def _unread_tested(draft: Draft, read: HostAcceptance) -> bool:
    """Whether a draft that no pass has computed was tested behind the path."""
    return read.passed is not None and len(read.path) == draft.proposed


def _depths(draft: Draft, read: HostAcceptance) -> list[int]:
    """Return the depths of the drafts that count, from 0."""
    unread = [len(read.path)] if _unread_tested(draft, read) else []
    if draft.parents is None:
        return [*range(draft.proposed), *unread]
    depths = depths_of(draft.parents[: draft.proposed])
    return [*(depths if draft.repeats is None else depths[~draft.repeats[: draft.proposed]]).tolist(), *unread]


def accepted_ranks(draft: Draft, read: HostAcceptance) -> tuple[int, ...]:
    """Count the earlier siblings of each accepted node, without repeats; none in a chain."""
    if draft.parents is None:
        return ()
    parents = draft.parents.tolist()
    repeats = [False] * len(parents) if draft.repeats is None else draft.repeats.tolist()
    return tuple(
        sum(parents[other] == parents[node] and not repeats[other] for other in range(node)) for node in read.path
    )


def forced_counts(step: Advance) -> dict[str, int]:
    """Count the emitted, drafted, tested and accepted tokens that had only one value allowed."""
    if step.grid is None:
        return {"forced": 0}
    depths = _depths(step.draft, step.read)
    accepted, reached = step.read.accepted, tested(step.draft, step.read)
    forced = [step.forced(depth) for depth in range(len(step.emitted))]
    forced_rejected = reached > accepted and step.forced(accepted)
    return {
        "forced": sum(step.grid.forced(place) is not None for place in step.places),
        "forced_drafted": sum(map(step.forced, depths)),
        "forced_tested": sum(forced[:accepted]) + forced_rejected,
        "forced_accepted": sum(forced[:accepted]),
    }


def check_expected(step: Advance) -> None:
    """Refuse an expected number of accepted drafts that no draft of this size can have."""
    most = step.draft.proposed + (step.read.passed is not None)
    if not -1e-6 <= step.read.expected <= most * (1 + 1e-6):
        raise ContractError(
            f"a step expects {step.read.expected:g} accepted drafts of {most}: the path's `expected` is the mean "
            f"number of nodes kept, given the draft; take the path that `run.draws.path` returns"
        )


def row_of_step(timed: TimedStep, clock: Clock, stop: int) -> Step:
    """Return the record of a step, its stamps read.

    Args:
        stop: nanoseconds in which the process was stopped. They are most of the step, so they lie in its longest phase.
    """
    wall = clock.wall_ns(timed.begin, timed.end)
    target = [span for span in timed.spans if span.kind == "target"]
    draft = [span for span in timed.spans if span.kind == "draft"]
    target_ns = sum(clock.device_ns(span.begin, span.end) for span in target)
    draft_ns = sum(clock.device_ns(span.begin, span.end) for span in draft)
    verify_ns = clock.device_ns(target[-1].end, timed.end)
    drafted_after = (span for span in draft if span.begin.host_ns > target[-1].end.host_ns)
    verify_ns -= sum(clock.device_ns(span.begin, span.end) for span in drafted_after)  # drafting, not verifying
    phases = {"draft_ns": draft_ns, "target_ns": target_ns, "verify_ns": verify_ns}
    phases["host_ns"] = max(0, wall - sum(phases.values()))
    longest = max(phases, key=lambda name: phases[name])
    stop = min(stop, phases[longest])  # another clock measured the stop
    phases[longest] -= stop
    step = timed.advance
    depths = _depths(step.draft, step.read)
    check_expected(step)
    levels = max(depths, default=-1) + 1
    return Step(
        nfe=step.after.passes - step.before.passes,
        draft_nfe=step.after.drafts - step.before.drafts,
        rows=step.after.rows - step.before.rows,
        drafted=len(depths),
        levels=levels,
        levels_built=levels if step.draft.levels_built is None else step.draft.levels_built,
        tested=tested(step.draft, step.read),
        accepted=step.read.accepted,
        expected=step.read.expected,
        emitted=len(step.emitted),
        overshoot=timed.overshoot,
        reused=int(step.draft.reused.sum()) if step.draft.reused is not None else 0,
        wall_ns=wall - stop,
        device_ns=clock.device_ns(timed.begin, timed.end) - stop,
        **phases,
        stopped_ns=stop,
        resampled=step.resampled,
        served=timed.served,
        wait_ns=timed.waited.wait_ns,
        switches=timed.waited.switches,
        gpu_mhz=timed.waited.gpu_mhz,
        foreign=timed.waited.foreign,
        ranks=accepted_ranks(step.draft, step.read),
        energies=step.read.energies,
        loss=step.read.loss,
        **forced_counts(step),
    )
