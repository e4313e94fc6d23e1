"""What passes cost on this machine: measured before the first decode of a backbone, to choose its threads.

The measurement is kept for later runs, unless the machine was busy, and in the run folder, so that all decodes of a run
use one choice. Nothing here changes outputs or counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import torch

from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.clock import Clock, Stopwatch, clock_for
from stridebench.harness.core.costs import (
    Costs,
    Passes,
    Table,
    costs_file,
    passes_file,
    read_passes,
    write_costs,
    write_passes,
)
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import decode
from stridebench.harness.core.method import Method
from stridebench.harness.core.models import Models
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import StoreError, StrideError
from stridebench.harness.machine import noise
from stridebench.harness.run.loading import LoadedGroup

ROWS = (1, 2, 4, 8, 16, 32)
"""Windows that are timed."""
REPEATS = 5
"""Passes of each kind; the fastest one counts, because other work only adds time."""
NEARLY = 1.05
"""Twice the threads are taken only if a pass without them takes so many times as long."""
SAID = 16
"""The window of the line that a run prints."""
PROBE_TOKENS = 8
"""Output tokens of the decode that measures the cost of a drafter's passes."""

TimedPass = Callable[[int], float]
"""Milliseconds of one pass of so many rows."""


class Threads(NamedTuple):
    """How many threads torch may use, and how it is told so."""

    limit: int
    choose: bool


def settle(group: LoadedGroup) -> Passes | None:
    """Set the threads of the group's backbone, and measure the passes by which its methods size their drafts.

    Returns:
        What passes cost; None where nobody times them: toys, and runs without clocks.
    """
    name, dtype = group.cells[0].group
    if not is_timed(group):
        return None
    passes = _of_run(group)
    if passes is None:
        threads = _threads(group)
        prompt = None if threads is None else _readable(group)
        if prompt is None or threads is None:
            return None
        passes = _measured(group, prompt, threads)
        group.store.notes.keep_passes(name, dtype, asdict(passes))
    torch.set_num_threads(passes.threads)
    for drafter, costs in passes.drafters.items():
        write_costs(costs_file(group.backbone, drafter), Costs(passes.rows, costs))
    group.options.progress.say(describe(f"{name} in {dtype}", passes))
    return passes


def is_timed(group: LoadedGroup) -> bool:
    """Whether the times of the group's decodes mean something."""
    return group.plan.suite.suite.timing and not group.backbone.toy_drafters


def describe(name: str, passes: Passes) -> str:
    """Threads and the price of a window, in a line."""
    threads = f"{passes.threads} thread{'s' * (passes.threads > 1)}"
    others = [f"{count}: {ms:.3g} ms" for count, ms in passes.by_threads if count != passes.threads]
    chosen = dict(passes.by_threads)[passes.threads]
    line = f"{name}: {threads}, {chosen:.3g} ms a pass" + (f" ({', '.join(others)})" if others else "")
    if chosen > NEARLY * min(ms for _, ms in passes.by_threads):
        line += "; fewer threads are faster for this model: leave threads out of the suite"
    if len(passes.rows) < 2 or passes.rows[-1][0] < SAID:
        return line
    price = Costs.at(SAID, passes.rows) / Costs.at(1, passes.rows)
    return f"{line}; on this machine a window of {SAID} costs {price:.1f} passes: SCR must exceed {price:.1f}"


def measure(backbone: Backbone, prompt: Prompt, threads: Threads, busy: bool) -> Passes:
    """Time passes with 1, 2, 4, ... threads, choose, and time windows. Torch keeps the threads that are chosen.

    If the suite says how many, these are taken and compared with one.
    """
    one = timed_pass(backbone, prompt, clock_for(backbone.device))
    on_gpu = backbone.device.startswith("cuda")
    counts = (threads.limit,) if on_gpu else candidates(threads.limit) if threads.choose else {1, threads.limit}
    by_threads = times_by_threads(one, sorted(counts))
    chosen = fewest_threads(by_threads) if threads.choose and not on_gpu else threads.limit
    torch.set_num_threads(chosen)
    mask = backbone.capabilities.mask
    left = backbone.capabilities.context - len(backbone.open(prompt).tokens)
    sizes = (1,) if mask is not None else tuple(rows for rows in ROWS if rows <= left)
    return Passes(chosen, by_threads, times_by_rows(one, sizes), {}, busy)


def candidates(limit: int) -> tuple[int, ...]:
    """1, 2, 4, ... threads, and the most that there may be."""
    return tuple(sorted({limit, *(2**power for power in range(limit.bit_length()))}))


def times_by_threads(one: TimedPass, counts: Sequence[int]) -> Table:
    """The fastest pass of one row with each number of threads; they take turns, so that a drift affects all alike."""
    times: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(REPEATS if len(counts) > 1 else 1):
        for count in counts:
            torch.set_num_threads(count)
            one(1)  # hands the work to the threads
            times[count].append(one(1))
    return tuple((count, min(each)) for count, each in times.items())


def fewest_threads(by_threads: Table) -> int:
    """The fewest threads with which a pass takes hardly longer than with the best number."""
    limit = NEARLY * min(ms for _, ms in by_threads)
    return next(count for count, ms in by_threads if ms <= limit)


def times_by_rows(one: TimedPass, sizes: Sequence[int]) -> Table:
    """The fastest pass of each number of rows."""
    times: dict[int, list[float]] = {rows: [] for rows in sizes}
    for turn in range(REPEATS + 1):
        for rows in sizes:
            ms = one(rows)
            if turn:  # the first round allocates
                times[rows].append(ms)
    return rising((rows, min(each)) for rows, each in times.items())


def rising(times: Iterable[tuple[int, float]]) -> Table:
    """Return a table in which fewer rows never take longer than more; if they did, other work disturbed them."""
    table: list[tuple[int, float]] = []
    for rows, ms in sorted(times, reverse=True):
        table.append((rows, min(ms, table[-1][1]) if table else ms))
    return tuple(reversed(table))


def timed_pass(backbone: Backbone, prompt: Prompt, clock: Clock) -> TimedPass:
    """Passes behind a prompt. Each reads the same rows anew; a masked model reads its whole canvas."""
    stopwatch = Stopwatch(clock)
    models = Models(backbone, _no_drafter, prompt, stopwatch)
    mask = models.capabilities.mask
    if mask is None:
        session = models.target()
        session.prefill()
        last = session.tokens[-1]

        def read(rows: int) -> None:
            session.forward(Draft(torch.full((rows - 1,), last, device=session.device)))

    else:
        canvas = models.canvas(models.room(MASKED_LENGTH))
        ids = torch.full((canvas.end,), mask, device=canvas.device)

        def read(rows: int) -> None:
            canvas.read(ids, range(canvas.end), "all")

    def one(rows: int) -> float:
        models.meter.threads = torch.get_num_threads()  # the meter tries them here; a decode must keep its choice
        read(rows)
        clock.finish()
        span = stopwatch.spans.pop()
        return clock.device_ns(span.begin, span.end) / 1e6

    return one


MASKED_LENGTH = 64
"""The most positions of a masked model's canvas that are timed."""


def drafter_costs(
    backbone: Backbone, load_drafter: Callable[[str], Backbone], method: Method[Any], prompt: Prompt
) -> dict[str, Table]:
    """What passes of the drafters cost by which a method sizes its drafts, from short decodes; empty: it sizes none."""
    tables: dict[str, Table] = {}
    for drafter, probes in method.probes().items():
        times: dict[int, list[float]] = {}
        for rows, probe in probes:
            models = Models(backbone, load_drafter, prompt, Stopwatch(clock_for(backbone.device)))
            draws = SeededDraws(0, "passes", prompt.id, 0, backbone.device)
            run = Run.of(models, Sampling(0.0), PROBE_TOKENS, draws, stop_at_eos=False)
            steps = decode(probe, run).steps[1:]
            times.setdefault(rows, []).extend(s.draft_ns / s.draft_nfe / 1e6 for s in steps if s.draft_nfe)
        tables[drafter] = rising((rows, min(each)) for rows, each in times.items() if each)
    return {drafter: table for drafter, table in tables.items() if len(table) > 1}


def _measured(group: LoadedGroup, prompt: Prompt, threads: Threads) -> Passes:
    """Return the table kept of an earlier run, or measure and keep one now."""
    backbone, file = group.backbone, passes_file(group.backbone, choice=threads.choose)
    passes = read_passes(file)
    if passes is None or passes.busy:
        group.options.progress.say(f"measuring passes of {backbone.name}")
        busy = noise.busy(*noise.load_and_cores()) is not None
        passes = measure(backbone, prompt, threads, busy)
    torch.set_num_threads(passes.threads)
    drafters = dict(passes.drafters)
    for method in dict.fromkeys(cell.method for cell in group.cells):
        if not drafters.keys() >= method.probes().keys():
            with suppress(StrideError):  # the decodes of the method report it
                drafters |= drafter_costs(backbone, group.load_drafter, method, prompt)
    passes = replace(passes, drafters=drafters)
    write_passes(file, passes)
    return passes


def _of_run(group: LoadedGroup) -> Passes | None:
    """Return the choice that the run measured before, or None; raise StoreError if its file is damaged."""
    body = group.store.notes.passes(*group.cells[0].group)
    try:
        return None if body is None else Passes.of(body)
    except ValueError as error:
        raise StoreError(
            f"{group.store.path}/passes holds no times of passes ({error!r}): remove that folder"
        ) from error


def _threads(group: LoadedGroup) -> Threads | None:
    """Return the choice of the cells that the run decoded before, or None if their version chose none."""
    store, threads = group.store, group.plan.suite.suite.threads
    cells = [cell.id for cell in group.plan.runnable if cell.group == group.cells[0].group]
    if any(store.done(cell) for cell in cells if not store.sealed(cell)):
        return None
    done = [meta for meta in map(store.meta, filter(store.sealed, cells)) if meta.status == "done"]
    if not done:
        return Threads(torch.get_num_threads(), choose=threads is None)
    return Threads(done[0].threads, choose=False) if done[0].threads else None


def _readable(group: LoadedGroup) -> Prompt | None:
    """Return the first prompt that the backbone can read, or None; the decodes report the fault of each."""
    for prompt in group.plan.prompts[group.cells[0].task]:
        with suppress(Exception):
            Models(group.backbone, _no_drafter, prompt).target().prefill()
            return prompt
    return None


def _no_drafter(name: str) -> Backbone:
    raise AssertionError(f"{name}: a pass of the target opens no drafter")
