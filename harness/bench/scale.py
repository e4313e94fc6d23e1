"""How the harness does with many cells and samples, and how much faster two workers of a pool are than one."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from math import ceil
from pathlib import Path

import pandas as pd

from stridebench.harness.bench import growth, openings
from stridebench.harness.bench.paired import Result, Settings, at_least
from stridebench.harness.bench.records import paged_record, plan_of
from stridebench.harness.errors import UsageError
from stridebench.harness.plan.cells import Cell, Plan
from stridebench.harness.record import stats
from stridebench.harness.record.columns import Record, Sample
from stridebench.harness.record.store import Store
from stridebench.harness.run.executors import serial
from stridebench.harness.run.options import Options
from stridebench.harness.run.pools.pool import Ended, Pool, run_on, setup_of
from stridebench.harness.run.pools.ray import RayPool, connect
from stridebench.harness.run.pools.settings import check
from stridebench.harness.run.pools.slurm import SlurmPool
from stridebench.harness.run.pools.units import Unit

MATRIX = 10_000
SAMPLES, CELLS = 100_000, 100
WORKED = 200
OPENING = 2.0
"""Seconds in which a page is to open."""
PAGED_CELLS, PAGED_SAMPLES, PAGED_STEPS = 10, 1_000, 100
POOLED = ("embedded-image-8x8", 72)
BLOCKS = 6
"""Blocks of cells that a job of Slurm does at a time."""


def _matrix(cells: int) -> Plan:
    windows = list(range(2, 2 + cells // 10))
    return plan_of(methods=[{"name": "sjd", "window": windows}], temperature=[i / 10 for i in range(10)])


def expansion(name: str, settings: Settings) -> Result:
    """Seconds of CPU time to plan a matrix."""
    begin = time.process_time()
    count = len(_matrix(MATRIX).cells)
    return _limit(name, time.process_time() - begin, 5.0, "s", f"{count} cells")


def opening(name: str, settings: Settings) -> Result:
    """Seconds of CPU time to open a run folder and list its sealed cells."""
    plan = _matrix(CELLS)
    samples = [Sample(f"p{i}", 0, False, "failed", "none") for i in range(SAMPLES // CELLS)]
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder) / "run", {**plan.manifest(), "provenance": {}})
        sealed = [cell.id for cell in plan.cells][:CELLS]
        for sample in samples:
            store.write(sealed[0], Record(sample, ()))
        store.seal(sealed[0], {**plan.meta(plan.by_id[sealed[0]]), "status": "done"})
        for cell in sealed[1:]:
            shutil.copytree(store.path / "cells" / sealed[0], store.path / "cells" / cell)
        begin = time.process_time()
        count = len([store.meta(cell) for cell in Store.open(store.path).cells()])
        seconds = time.process_time() - begin
    return _limit(name, seconds, 1.0, "s", f"{count} cells of {len(samples)} samples each")


def a_cell(name: str, settings: Settings) -> Result:
    """Milliseconds of wall time that a cell costs beside its decode."""
    plan = _matrix(WORKED)
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder) / "run", {**plan.manifest(), "provenance": {}})
        begin, begin_cpu = time.perf_counter(), time.process_time()
        serial(plan, store, Options())
        spent, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
        cells = [store.cell(cell) for cell in store.cells()]
    note = f"{len(cells)} cells of one prompt; {cpu * 1e3 / len(cells):.1f} ms of CPU time each, decodes included"
    decoding = sum(int(c.steps["wall_ns"].sum()) + int(c.samples["prefill_ns"].sum()) for c in cells) / 1e9
    return _limit(name, (spent - decoding) * 1e3 / len(cells), 50.0, "ms", note)


def pages(name: str, settings: Settings) -> Result:
    """Seconds of CPU time to write the pages of a run of 10,000 samples and 1,000,000 steps, and to open them."""
    with tempfile.TemporaryDirectory() as folder:
        run = million_steps(Path(folder) / "run")
        command = [
            sys.executable,
            "-m",
            "stridebench.harness.cli.main",
            "report",
            str(run),
            "--html",
            str(Path(folder) / "pages"),
        ]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise UsageError(f"{' '.join(command)} ended with exit code {process.returncode}")
        files = [path for path in (Path(folder) / "pages").rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        lacking = openings.missing()
        opened = {} if lacking else openings.seconds(Path(folder) / "pages")
    peak = usage.ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)
    note = f"{len(files)} files of {size / 1e6:.0f} MB together; peak memory {peak:.2f} GiB, the goal is 1.5; "
    note += f"not opened: {lacking}" if lacking else _openings(opened)
    result = _limit(name, usage.ru_utime + usage.ru_stime, 20.0, "s", note)
    return result if peak <= 1.5 and max(opened.values(), default=0) <= OPENING else replace(result, verdict="fail")


def _openings(opened: dict[str, float]) -> str:
    parts = ", ".join(f"{what} {seconds:.2f} s" for what, seconds in opened.items())
    return f"opened in Chromium: {parts}; the goal is {OPENING:g} s"


def million_steps(path: Path) -> Path:
    """A run of ten cells with a thousand samples of a hundred steps each; returns its folder."""
    plan, draws = _matrix(PAGED_CELLS), random.Random(0)
    cells = plan.cells[:PAGED_CELLS]
    names = [cell.id for cell in cells]
    metas = {cell.id: {**plan.meta(cell), "status": "done", "baseline": names[0], "floor": None} for cell in cells}
    store = Store.create(path, {**plan.manifest(), "cells": metas, "provenance": {}})
    for number in range(PAGED_SAMPLES):
        store.write(names[0], paged_record(number, PAGED_STEPS, draws))
    store.seal(names[0], {**metas[names[0]], "role": "baseline"})
    for name in names[1:]:
        shutil.copytree(store.path / "cells" / names[0], store.path / "cells" / name)
        store.update(name, **metas[name])
    return store.path


def executors_ray(name: str, settings: Settings) -> Result:
    """Cells a minute of two Ray workers over those of one, Ray's start and that of the workers apart.

    Both pools stay: they take turns, each at the same cells of its own run. What they do first starts them and is left
    out.
    """
    plan = pooled_plan(settings.pairs + 1)
    ray = connect(None, cpus=3)
    try:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as pools:
            sides = [_Side(plan, Path(folder) / str(workers), workers, pools) for workers in (2, 1)]
            rounds = []
            for index, block in enumerate(blocks(plan)):
                order = sides if index % 2 else sides[::-1]
                seconds = {side.workers: side.seconds(block) for side in order}
                rounds.append([60 * len(block) / seconds[workers] for workers in (2, 1)])
    finally:
        ray.shutdown()
    return speedup(name, plan, rounds[1:], settings.pairs)


class _Side:
    """A pool that stays, and the run whose cells it does."""

    def __init__(self, plan: Plan, path: Path, workers: int, pools: ExitStack) -> None:
        self.workers, self._plan = workers, plan
        self._store = Store.create(path, {**plan.manifest(), "provenance": {}})
        self._options = replace(Options(), executor=check("ray", {"workers": workers}))
        self._pool = RayPool(plan, setup_of(plan, self._store, self._options), self._options.executor)
        pools.callback(self._pool.close)

    def seconds(self, block: Sequence[Cell]) -> float:
        """From the submission of some cells to the seal of the last one."""
        begin = time.time()
        run_on(_Open(self._pool), replace(self._plan, cells=tuple(block)), self._store, self._options, 0)
        return max(_seals(self._store, block)) - begin


@dataclass
class _Open(Pool):
    """A pool that a run leaves open."""

    pool: Pool

    def submit(self, units: Sequence[Unit]) -> None:
        self.pool.submit(units)

    def wait(self) -> Iterable[Ended]:
        return self.pool.wait()

    def close(self) -> None:
        """Nothing: the next cells follow."""


def executors_slurm(name: str, settings: Settings) -> Result:
    """Cells a minute of two jobs of submitit's local executor over those of one job, their start apart.

    One job and two jobs take turns. Each time they do several blocks of cells, so that few starts are waited for; a
    pair is the same stretch of seals of both.
    """
    each = min(settings.pairs, BLOCKS)
    plan = pooled_plan(each)
    rounds: list[list[float]] = []
    while len(rounds) < settings.pairs:
        order = (1, 2) if len(rounds) // each % 2 else (2, 1)
        rates = {workers: _rates(plan, workers) for workers in order}
        rounds += [list(pair) for pair in zip(rates[2], rates[1], strict=True)]
    return speedup(name, plan, rounds[: settings.pairs], settings.pairs)


def _rates(plan: Plan, workers: int) -> list[float]:
    """Cells a minute of each block, from the moment when each job has sealed a cell to the last seal."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder) / "run", {**plan.manifest(), "provenance": {}})
        units = ceil(len(plan.runnable) / workers)
        chosen = check("slurm", {"cluster": "local", "units": units, "poll_s": 0.1})
        options = replace(Options(), executor=chosen)
        pool = SlurmPool(plan, setup_of(plan, store, options), chosen, Path(folder) / "jobs")
        run_on(pool, plan, store, options, 0)
        return stretches(sorted(_seals(store, plan.runnable))[workers - 1 :], len(blocks(plan)))


def stretches(seals: Sequence[float], count: int) -> list[float]:
    """Seals a minute of equal stretches of a sorted list of seconds, which its first entry begins."""
    edges = [seals[(len(seals) - 1) * at // count] for at in range(count + 1)]
    numbers = [(len(seals) - 1) * at // count for at in range(count + 1)]
    return [
        60 * (b - a) / (last - first) for (a, b), (first, last) in zip(pairwise(numbers), pairwise(edges), strict=True)
    ]


def pooled_plan(blocks: int) -> Plan:
    """Blocks of sixteen cells, equal in work: a block has four temperatures near 1, which no other block has."""
    backbone, tokens = POOLED
    temperatures = [1 + number / 10_000 for number in range(4 * blocks)]
    return plan_of(
        methods=[{"name": "sjd", "window": [4, 8]}], backbones=[backbone], tasks=[{"name": "emoji_scenes", "limit": 1}],
        temperature=temperatures, max_new_tokens=tokens, threads=1, timing=False,
    )  # fmt: skip


def blocks(plan: Plan) -> list[list[Cell]]:
    """The blocks of a ``pooled_plan``."""
    by_temperature: dict[float, list[Cell]] = {}
    for cell in plan.runnable:
        by_temperature.setdefault(cell.sampling.temperature, []).append(cell)
    parts = list(by_temperature.values())
    return [list(chain.from_iterable(parts[at : at + 4])) for at in range(0, len(parts), 4)]


def _seals(store: Store, cells: Iterable[Cell]) -> list[float]:
    return [(store.path / "cells" / cell.id / "cell.json").stat().st_mtime for cell in cells]


def speedup(name: str, plan: Plan, rounds: Sequence[Sequence[float]], pairs: int) -> Result:
    """The median ratio of the rates of two workers and of one, and whether it reaches 1.7."""
    index = pd.MultiIndex.from_product([range(len(rounds)), [0]], names=["prompt", "repetition"])
    two, one = (pd.Series(side, index) for side in zip(*rounds, strict=True))
    interval = stats.median_ratio(two, one)
    assert interval is not None
    note = f"cells a minute of two workers and of one; {len(plan.cells)} cells on {POOLED[0]}"
    verdict = at_least(interval.low, interval.high, 1.7, pairs)
    figures = two.median(), one.median(), interval.estimate, interval.low, interval.high
    return Result(name, *figures, "cells/min", ">= 1.7", verdict, pairs, note)


def _limit(name: str, value: float, goal: float, unit: str, note: str) -> Result:
    verdict = "pass" if value <= goal else "fail"
    return Result(name, value, None, value / goal, None, None, unit, f"<= {goal:g} {unit}", verdict, 1, note)


BENCHMARKS: dict[str, Callable[[str, Settings], Result]] = {
    **growth.BENCHMARKS,
    "scale matrix": expansion,
    "scale folder": opening,
    "scale cell": a_cell,
    "scale pages": pages,
    "executors ray": executors_ray,
    "executors slurm": executors_slurm,
}
