"""How time and memory grow with prompts, cells, steps, tokens of context and the vocabulary: slopes with intervals.

A slope is that of log seconds over log size, by least squares over all measurements of the three largest sizes: 1 is
growth with the work, 0 a fixed cost. Preparation lies outside of what is timed.
"""

from __future__ import annotations

import gc
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy import stats as scipy_stats

from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import decode
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import warp
from stridebench.harness.machine.consumption import ConsumptionMeter
from stridebench.harness.plan import presets
from stridebench.harness.plan.cells import Plan
from stridebench.harness.plan.expand import expand
from stridebench.harness.plan.resolve import resolve_again
from stridebench.harness.record.columns import Record, Sample, Step
from stridebench.harness.record.entries import CellMeta
from stridebench.harness.record.metrics import totals
from stridebench.harness.record.store import Store
from stridebench.harness.run.executors import serial
from stridebench.harness.run.loading import Options
from tests.bench.timing import GREEDY, NUCLEUS, Bench, Row, Settings, build

REPEATS = 3
LONG_S = 10.0
"""A size that takes longer is measured once."""
MOST = 1.1
"""The largest slope of what grows with its work."""
FITTED = 3
"""Largest sizes that the slope is of: fixed costs flatten the smaller ones."""

Prepared = Callable[[], object]


def plan_of(**data: Any) -> Plan:
    """Return a plan on the tabular backbone, which decodes in no time."""
    basis = {"name": "scale", "backbones": ["tabular"], "tasks": [{"name": "tabular", "limit": 1}]}
    return expand(resolve_again({**basis, "max_new_tokens": 4, "prove": False, "warmup": 0, **data}))


def matrix(cells: int) -> Plan:
    """Return a plan of about so many cells."""
    windows = list(range(2, 2 + max(1, cells // 10)))
    return plan_of(methods=[{"name": "sjd", "window": windows}], temperature=[i / 10 for i in range(10)])


def paged_record(number: int, count: int = 100) -> Record:
    """Return a sample of so many steps."""
    draws = random.Random(number)
    steps = []
    for _ in range(count):
        accepted, wall = draws.randrange(4), draws.randrange(20_000_000, 30_000_000)
        times = (wall, wall, wall // 10, wall * 8 // 10, wall // 20, wall // 20)
        steps.append(Step(1, 3, 4, 3, min(3, accepted + 1), accepted, 1.5, accepted + 1, 0, 0, 0, *times))
    tokens = tuple(draws.randrange(50_000) for _ in range(sum(step.emitted for step in steps)))
    pieces = tuple(f" word{token}" for token in tokens)
    sample = Sample(
        f"prompt/{number}", 0, False, "ok", tokens=tokens, text="".join(pieces), pieces=pieces, prompt_tokens=64,
        logprobs=tuple(-draws.random() for _ in tokens), prompt_text="def f(x):\n    return x < 1\n" * 20,
        scores={"tokens": float(len(tokens))},
    )  # fmt: skip
    return Record(sample, tuple(steps))


def growth(axis: str, sizes: Sequence[int], prepare: Callable[[int], Iterator[Prepared]], work: str) -> Bench:
    """Measure the seconds and the memory of each size.

    Args:
        prepare: makes the work; it is made anew for each measurement.
        work: a description of it for the note.
    """
    within = contextmanager(prepare)

    def act(name: str, settings: Settings) -> Iterator[Row]:
        points: list[tuple[float, float, float]] = []
        for size in sizes:
            for _ in range(REPEATS):
                with within(size) as timed:
                    gc.collect()
                    meter, begin = ConsumptionMeter("cpu"), time.perf_counter()
                    timed()
                    seconds, used = time.perf_counter() - begin, meter.read()
                held, peak = used.held_bytes, used.peak_bytes
                memory = float("nan") if held is None or peak is None else max(0, peak - held) / 2**20
                points.append((float(size), seconds, memory))
                if seconds > LONG_S:
                    break
        slope, low, high = slope_of(points)
        verdict = "pass" if high <= MOST else "fail" if low > MOST else "inconclusive"
        last = [point for point in points if point[0] == sizes[-1]]
        seconds, memory = (float(np.median([point[at] for point in last])) for at in (1, 2))
        note = f"{work}; {sizes[0]:,} to {sizes[-1]:,} {axis}; at the last {memory:.0f} MB more than before"
        goal = f"slope <= {MOST:g}"
        yield Row(name, seconds, None, slope, low, high, "s", goal, verdict, len(points), note, tuple(points))

    return act


def slope_of(points: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    """Return the slope of log seconds over log size of the largest sizes, and its 95 % interval (Student's t)."""
    sizes = sorted({size for size, _, _ in points})[-FITTED:]
    x, y = np.log([[size, seconds] for size, seconds, _ in points if size in sizes]).T
    fit = scipy_stats.linregress(x, y)
    half = float(scipy_stats.t.ppf(0.975, max(1, len(x) - 2)) * fit.stderr)
    return float(fit.slope), float(fit.slope) - half, float(fit.slope) + half


def prompts(size: int) -> Iterator[Prepared]:
    """A run of two cells of so many prompts, decodes included."""
    plan = plan_of(methods=[{"name": "sjd", "window": 3}], tasks=[{"name": "tabular", "prompts_count": size}])
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder) / "run", {**plan.manifest(), "provenance": {}})
        yield lambda: serial(plan, store, Options())


def cells(size: int) -> Iterator[Prepared]:
    """The plan of so many cells, and its manifest."""
    yield lambda: matrix(size).manifest()


def steps(size: int) -> Iterator[Prepared]:
    """A cell of so many steps: written, sealed, read and added up."""
    plan = plan_of(methods=[{"name": "sjd", "window": 3}])
    name, record = plan.cells[0].id, paged_record

    def work() -> None:
        for number in range(size // 100):
            store.write(name, record(number))
        store.seal(name, plan.meta(plan.cells[0]).merged(CellMeta(status="done")))
        cell = store.cell(name)
        totals(cell.samples, cell.steps)

    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder) / "run", {**plan.manifest(), "provenance": {}})
        yield work


def context(size: int) -> Iterator[Prepared]:
    """Sixteen steps of autoregressive decoding behind so many tokens; attention reads all of them."""
    backbone, method = presets.load("random-llama-5m", "fp32"), build("autoregressive")
    run = open_run(backbone, lambda name: backbone, [7] * size, GREEDY, 16, SeededDraws(0, "growth", "", 0))
    run.target.prefill()
    yield lambda: decode(method, run)


def vocabulary(size: int) -> Iterator[Prepared]:
    """Eight rows of logits to probabilities with top-p, and a draw of each."""
    logits = torch.randn(8, size, generator=torch.Generator().manual_seed(0)) * 4
    draws = SeededDraws(0, "growth", "", 0)
    yield lambda: [draws.categorical(warp(logits, NUCLEUS), "draft") for _ in range(8)]


def draw(rows: Sequence[Row], path: Path) -> None:
    """Write a picture with a panel a benchmark: seconds and MB over the size, both axes logarithmic."""
    figure = Figure(figsize=(3.9 * len(rows), 3.6), dpi=130, layout="constrained")
    for axes, row in zip(figure.subplots(1, len(rows), squeeze=False)[0], rows, strict=True):
        sizes, seconds, memory = np.array(row.points).T
        axes.loglog(sizes, seconds, "o-", ms=3, label="seconds")
        axes.loglog(sizes, seconds[-1] * sizes / sizes[-1], color="0.7", ls="--", lw=0.9, label="slope 1")
        axes.set(xlabel=row.name.rpartition(" ")[2], ylabel="seconds")
        axes.set_title(f"{row.name}: slope {row.ratio:.2f} [{row.low:.2f}, {row.high:.2f}]", fontsize=8)
        if np.isfinite(memory).all():
            right = axes.twinx()
            right.plot(sizes, memory, "s", color="C1", ms=3)
            right.set_ylabel("MB more than before")
        axes.legend(fontsize=7, frameon=False, loc="upper left")
    figure.savefig(path)


BENCHMARKS: dict[str, Bench] = {
    "scale by prompts": growth("prompts", (10, 100, 1_000, 10_000), prompts, "a run of two cells"),
    "scale by cells": growth("cells", (10, 100, 1_000, 10_000), cells, "a plan and its manifest"),
    "scale by steps": growth("steps", (1_000, 10_000, 100_000), steps, "a cell written, sealed, read and added up"),
    "scale by context": growth("tokens of context", (64, 256, 1_024, 2_000), context, "16 steps of random-llama-5m"),
    "scale by vocabulary": growth("ids", (1_024, 8_192, 65_536, 262_144), vocabulary, "top-p and a draw of eight rows"),
}
