"""How time and memory grow with prompts, cells, steps, tokens of context and the vocabulary: slopes with intervals.

A slope is that of log seconds over log size, by least squares over all measurements of the three largest sizes: 1 is
growth with the work, 0 a fixed cost. Preparation lies outside of what is timed.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from scipy import stats as scipy_stats

from stridebench.harness.bench.paired import Result, Settings, build
from stridebench.harness.bench.records import paged_record, plan_of
from stridebench.harness.core.consumption import ConsumptionMeter
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import decode
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling, warp
from stridebench.harness.plan import presets
from stridebench.harness.record.metrics import totals
from stridebench.harness.record.store import Store
from stridebench.harness.run.executors import serial
from stridebench.harness.run.options import Options

REPEATS = 3
LONG_S = 10.0
"""A size that takes longer is measured once."""
MOST = 1.1
"""The largest slope of what grows with its work."""
FITTED = 3
"""Largest sizes that the slope is of: fixed costs flatten the smaller ones."""

Prepared = Callable[[], object]
Growth = Callable[[str, Settings], Result]


def growth(axis: str, sizes: Sequence[int], prepare: Callable[[int], Iterator[Prepared]], work: str) -> Growth:
    """Measure what a size takes, for each size.

    Args:
        prepare: makes what is timed; it is made anew for each measurement.
        work: what is timed, for the note.
    """
    within = contextmanager(prepare)

    def act(name: str, settings: Settings) -> Result:
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
        most = [point for point in points if point[0] == sizes[-1]]
        seconds, memory = (float(np.median([point[at] for point in most])) for at in (1, 2))
        note = f"{work}; {sizes[0]:,} to {sizes[-1]:,} {axis}; at the last {memory:.0f} MB more than before"
        figures = seconds, None, slope, low, high
        return Result(name, *figures, "s", f"slope <= {MOST:g}", verdict, len(points), note, tuple(points))

    return act


def slope_of(points: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    """The slope of log seconds over log size of the largest sizes, and its 95 % interval (Student's t)."""
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
    windows = list(range(2, 2 + max(1, size // 10)))
    methods, temperatures = [{"name": "sjd", "window": windows}], [i / 10 for i in range(10)]
    yield lambda: plan_of(methods=methods, temperature=temperatures).manifest()


def steps(size: int) -> Iterator[Prepared]:
    """A cell of so many steps: written, sealed, read and added up."""
    plan = plan_of(methods=[{"name": "sjd", "window": 3}])
    name, record = plan.cells[0].id, paged_record

    def work() -> None:
        for number in range(size // 100):
            store.write(name, record(number))
        store.seal(name, {**plan.meta(plan.cells[0]), "status": "done"})
        cell = store.cell(name)
        totals(cell.samples, cell.steps)

    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder) / "run", {**plan.manifest(), "provenance": {}})
        yield work


def context(size: int) -> Iterator[Prepared]:
    """Sixteen steps of autoregressive decoding behind so many tokens; attention reads all of them."""
    backbone, method = presets.load("random-llama-5m", "fp32"), build("autoregressive", {})
    run = open_run(backbone, lambda name: backbone, [7] * size, Sampling(0.0), 16, SeededDraws(0, "growth", "", 0))
    run.target.prefill()
    yield lambda: decode(method, run)


def vocabulary(size: int) -> Iterator[Prepared]:
    """Eight rows of logits to probabilities with top-p, and a draw of each."""
    logits = torch.randn(8, size, generator=torch.Generator().manual_seed(0)) * 4
    draws = SeededDraws(0, "growth", "", 0)
    yield lambda: [draws.categorical(warp(logits, Sampling(1.0, top_p=0.95)), "draft") for _ in range(8)]


BENCHMARKS: dict[str, Growth] = {
    "scale by prompts": growth("prompts", (10, 100, 1_000, 10_000), prompts, "a run of two cells"),
    "scale by cells": growth("cells", (10, 100, 1_000, 10_000), cells, "a plan and its manifest"),
    "scale by steps": growth("steps", (1_000, 10_000, 100_000), steps, "a cell written, sealed, read and added up"),
    "scale by context": growth("tokens of context", (64, 256, 1_024, 2_000), context, "16 steps of random-llama-5m"),
    "scale by vocabulary": growth("ids", (1_024, 8_192, 65_536, 262_144), vocabulary, "top-p and a draw of eight rows"),
}
