"""How the harness does with many cells, and how much faster two workers of a pool are than one."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from harness.bench.paired import Result, Settings, at_least
from harness.plan.cells import Plan, expand
from harness.plan.suite import resolve_again
from harness.record import stats
from harness.record.columns import Record, Sample
from harness.record.store import Store
from harness.run.executors import serial
from harness.run.options import Options
from harness.run.pools.pool import run_on, setup_of
from harness.run.pools.ray import RayPool
from harness.run.pools.settings import check

MATRIX = 10_000
SAMPLES, CELLS = 100_000, 100
WORKED = 200
POOLED = ("embedded-image-8x8", 72)


def plan_of(**data: Any) -> Plan:
    """A plan on the tabular backbone, which decodes in no time."""
    plain = {"name": "scale", "backbones": ["tabular"], "tasks": [{"name": "tabular", "limit": 1}]}
    return expand(resolve_again({**plain, "max_new_tokens": 4, "prove": False, "warmup": 0, **data}))


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


def executors(name: str, settings: Settings) -> Result:
    """Cells a minute of two Ray workers over those of one, Ray's start and that of the workers apart."""
    backbone, tokens = POOLED
    methods = [{"name": "sjd", "window": list(range(2, 18))}]
    plan = plan_of(
        methods=methods, backbones=[backbone], tasks=[{"name": "emoji_scenes", "limit": 8}], temperature=[1.0],
        max_new_tokens=tokens, threads=1, timing=False,
    )  # fmt: skip
    rounds = [(_rate(plan, 2), _rate(plan, 1)) for _ in range(settings.pairs)]
    index = pd.MultiIndex.from_product([range(len(rounds)), [0]], names=["prompt", "repetition"])
    two, one = (pd.Series(side, index) for side in zip(*rounds, strict=True))
    interval = stats.median_ratio(two, one)
    assert interval is not None
    verdict = at_least(interval.low, interval.high, 1.7, settings.pairs)
    note = f"cells a minute of two workers and of one; {len(plan.cells)} cells on {backbone}"
    figures = two.median(), one.median(), interval.estimate, interval.low, interval.high
    return Result(name, *figures, "cells/min", ">= 1.7", verdict, settings.pairs, note)


def _rate(plan: Plan, workers: int) -> float:
    """Cells a minute, from the first cell that is sealed to the last."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder) / "run", {**plan.manifest(), "provenance": {}})
        chosen = check("ray", {"workers": workers})
        options = replace(Options(), executor=chosen)
        run_on(RayPool(plan, setup_of(plan, store, options), chosen), plan, store, options, 0)
        times = sorted((store.path / "cells" / cell / "cell.json").stat().st_mtime for cell in store.cells())
    return 60 * (len(times) - workers) / (times[-1] - times[workers - 1])


def _limit(name: str, value: float, goal: float, unit: str, note: str) -> Result:
    verdict = "pass" if value <= goal else "fail"
    return Result(name, value, None, value / goal, None, None, unit, f"<= {goal:g} {unit}", verdict, 1, note)


BENCHMARKS: dict[str, Callable[[str, Settings], Result]] = {
    "scale matrix": expansion,
    "scale folder": opening,
    "scale cell": a_cell,
    "executors ray": executors,
}
