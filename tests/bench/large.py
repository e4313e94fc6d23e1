"""How the harness does with many cells and samples, and how much faster two workers of a pool are than one."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import chain
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

from stridebench.harness.plan.cells import Cell, Plan
from stridebench.harness.record.columns import Record, Sample
from stridebench.harness.record.entries import CellMeta
from stridebench.harness.record.store import Store
from stridebench.harness.run.executors import serial
from stridebench.harness.run.loading import Options
from stridebench.harness.run.workers.cluster import Unit
from stridebench.harness.run.workers.pool import Ended, Pool, check, run_on, setup_of
from stridebench.harness.run.workers.ray import RayPool, connect
from stridebench.harness.run.workers.slurm import SlurmPool
from tests.bench.growth import matrix, paged_record, plan_of
from tests.bench.startup import used
from tests.bench.timing import Bench, Row, Settings, compare, in_turn, limited

MATRIX = 10_000
SAMPLES, CELLS = 100_000, 100
WORKED = 200
OPENING = 2.0
"""Seconds in which a page is to open."""
PAGED_CELLS, PAGED_SAMPLES = 10, 1_000
POOLED = ("embedded-image-8x8", 72)
GOAL = 1.7
BLOCKS = 2
"""Blocks of cells of a start of Slurm."""


def new_store(plan: Plan, folder: str | Path, **more: Any) -> Store:
    """Return the empty store of a plan."""
    return Store.create(Path(folder) / "run", {**plan.manifest(), "provenance": {}, **more})


def expansion(name: str, settings: Settings) -> Iterator[Row]:
    """Time the plan of a matrix, in CPU seconds."""
    begin = time.process_time()
    count = len(matrix(MATRIX).cells)
    yield limited(name, time.process_time() - begin, 5.0, "s", f"{count} cells")


def opening(name: str, settings: Settings) -> Iterator[Row]:
    """Time opening a run folder and listing its sealed cells, in CPU seconds."""
    plan = matrix(CELLS)
    samples = [Sample(f"p{i}", 0, False, "failed", "none") for i in range(SAMPLES // CELLS)]
    with tempfile.TemporaryDirectory() as folder:
        store = new_store(plan, folder)
        first, *rest = [cell.id for cell in plan.cells][:CELLS]
        for sample in samples:
            store.write(first, Record(sample, ()))
        store.seal(first, plan.meta(plan.by_id[first]).merged(CellMeta(status="done")))
        for cell in rest:
            shutil.copytree(store.path / "cells" / first, store.path / "cells" / cell)
        begin = time.process_time()
        count = len([store.meta(cell) for cell in Store.open(store.path).cells()])
        seconds = time.process_time() - begin
    yield limited(name, seconds, 1.0, "s", f"{count} cells of {len(samples)} samples each")


def a_cell(name: str, settings: Settings) -> Iterator[Row]:
    """Time a cell beyond its decode, in milliseconds of wall time."""
    plan = matrix(WORKED)
    with tempfile.TemporaryDirectory() as folder:
        store = new_store(plan, folder)
        begin = time.perf_counter()
        serial(plan, store, Options())
        spent = time.perf_counter() - begin
        cells = [store.cell(cell) for cell in store.cells()]
    decoding = sum(int(c.steps["wall_ns"].sum()) + int(c.samples["prefill_ns"].sum()) for c in cells) / 1e9
    yield limited(name, (spent - decoding) * 1e3 / len(cells), 50.0, "ms", f"{len(cells)} cells of one prompt")


def pages(name: str, settings: Settings) -> Iterator[Row]:
    """Time writing the pages of a run of 10,000 samples and 1,000,000 steps in CPU seconds, and opening them."""
    with tempfile.TemporaryDirectory() as folder:
        run, site = million_steps(Path(folder)), Path(folder) / "pages"
        usage = used([sys.executable, "-m", "stridebench.harness.cli.main", "report", str(run), "--html", str(site)])
        files = [path for path in site.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        note = f"{len(files)} files of {size / 1e6:.0f} MB together; peak memory {usage.peak_mb:.0f} MB"
        yield limited(name, usage.cpu_s, 20.0, "s", note)
        yield limited(f"{name}: memory", usage.peak_mb, 1600.0, "MB", note)
        if lacking := missing():
            yield Row(f"{name}: opening", verdict="skipped", note=lacking)
            return
        for what, seconds in opened(site).items():
            yield limited(f"{name}: opening the {what}", seconds, OPENING, "s", "in Chromium, from the disk")


def million_steps(folder: Path) -> Path:
    """Return a run of ten cells with a thousand samples of a hundred steps each."""
    plan = matrix(PAGED_CELLS)
    cells = plan.cells[:PAGED_CELLS]
    first, *rest = [cell.id for cell in cells]
    metas = {cell.id: plan.meta(cell).merged(CellMeta(status="done", baseline=first, floor=None)) for cell in cells}
    store = new_store(plan, folder, cells={name: meta.stored() for name, meta in metas.items()})
    for number in range(PAGED_SAMPLES):
        store.write(first, paged_record(number))
    store.seal(first, metas[first].merged(CellMeta(role="baseline")))
    for name in rest:
        shutil.copytree(store.path / "cells" / first, store.path / "cells" / name)
        store.update(name, metas[name])
    return store.path


def missing() -> str | None:
    """Return the reason why pages cannot be opened here, or None if a browser and its driver are installed."""
    if find_spec("playwright") is None:
        return "playwright is not installed: pip install '.[browser]'"
    return None if chromium() else "Chromium is not installed: apt-get install chromium, or set $STRIDE_CHROMIUM"


def chromium() -> str | None:
    """Return the path of the browser, or None if there is none."""
    return os.environ.get("STRIDE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


def opened(site: Path) -> dict[str, float]:
    """Return the median seconds until the index, a cell and its first output are drawn, each in a new browser.

    A page counts from its navigation to its table, which the last script makes; an output from the click to its tokens.
    """
    from playwright.sync_api import sync_playwright

    rounds = []
    with sync_playwright() as driver:
        for _ in range(3):
            browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
            tab, spent = browser.new_page(), {}
            for what, file in (("index", site / "index.html"), ("cell", min((site / "cells").glob("*.html")))):
                tab.goto("about:blank")
                begin = time.perf_counter()
                tab.goto(file.as_uri())
                tab.wait_for_selector(".dt-container")
                spent[what] = time.perf_counter() - begin
            begin = time.perf_counter()
            tab.click("#sample-table tbody a >> nth=0")
            tab.wait_for_selector("#ribbon .token")
            rounds.append({**spent, "output": time.perf_counter() - begin})
            browser.close()
    return {name: median(one[name] for one in rounds) for name in rounds[0]}


def executors_ray(name: str, settings: Settings) -> Iterator[Row]:
    """Time cells a minute of two Ray workers beside those of one.

    Both pools stay, and take turns at the same cells of a run each. Their first cells start them and are left out.
    """
    plan = pooled_plan(settings.pairs + 1)
    ray = connect(None, cpus=3)
    try:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as pools:
            sides = [_Side(plan, Path(folder) / str(workers), workers, pools) for workers in (2, 1)]
            pairs = in_turn([side.rate for side in sides], blocks(plan), settings)
    finally:
        ray.shutdown()
    yield compare(name, pairs, "cells/min", GOAL, f"{len(plan.cells)} cells on {POOLED[0]}")


class _Side:
    """A pool that stays, and the run whose cells it does."""

    def __init__(self, plan: Plan, path: Path, workers: int, pools: ExitStack) -> None:
        self._plan, self._store = plan, new_store(plan, path)
        self._options = replace(Options(), executor=check("ray", {"workers": workers}))
        self._pool = RayPool(plan, setup_of(plan, self._store, self._options), self._options.executor)
        pools.callback(self._pool.close)

    def rate(self, block: Sequence[Cell]) -> float:
        """Return cells a minute, from the submission of some cells to the seal of the last one."""
        begin = time.time()
        run_on(_Open(self._pool), replace(self._plan, cells=tuple(block)), self._store, self._options, 0)
        return 60 * len(block) / (max(_seals(self._store, block)) - begin)


@dataclass
class _Open(Pool):
    """A pool that a run leaves open."""

    pool: Pool

    def submit(self, units: Sequence[Unit]) -> None:
        self.pool.submit(units)

    def wait(self) -> Iterable[Ended]:
        return self.pool.wait()

    def close(self) -> None:
        """Do nothing: the next cells follow."""


def executors_slurm(name: str, settings: Settings) -> Iterator[Row]:
    """Time cells a minute of two jobs of submitit's local executor beside those of one job, without their start."""
    plan = pooled_plan(BLOCKS)
    sides = (lambda _: _slurm_rate(plan, 2), lambda _: _slurm_rate(plan, 1))
    pairs = in_turn(sides, range(settings.pairs + 1), settings)
    yield compare(name, pairs, "cells/min", GOAL, f"{len(plan.cells)} cells on {POOLED[0]}")


def _slurm_rate(plan: Plan, workers: int) -> float:
    """Return cells a minute, from the moment when each job has sealed a cell to the last seal."""
    with tempfile.TemporaryDirectory() as folder:
        store = new_store(plan, folder)
        units = ceil(len(plan.runnable) / workers)
        chosen = check("slurm", {"cluster": "local", "units": units, "poll_s": 0.1})
        options = replace(Options(), executor=chosen)
        run_on(SlurmPool(plan, setup_of(plan, store, options), chosen, Path(folder) / "jobs"), plan, store, options, 0)
        seals = sorted(_seals(store, plan.runnable))[workers - 1 :]
    return 60 * (len(seals) - 1) / (seals[-1] - seals[0])


def pooled_plan(blocks: int) -> Plan:
    """Return blocks of sixteen cells, equal in work: a block has four temperatures near 1 that no other block has."""
    backbone, tokens = POOLED
    return plan_of(
        methods=[{"name": "sjd", "window": [4, 8]}], backbones=[backbone], tasks=[{"name": "emoji_scenes", "limit": 1}],
        temperature=[1 + number / 10_000 for number in range(4 * blocks)], max_new_tokens=tokens, threads=1,
        timing=False,
    )  # fmt: skip


def blocks(plan: Plan) -> list[list[Cell]]:
    """Return the blocks of a ``pooled_plan``."""
    by_temperature: dict[float, list[Cell]] = {}
    for cell in plan.runnable:
        by_temperature.setdefault(cell.sampling.temperature, []).append(cell)
    parts = list(by_temperature.values())
    return [list(chain.from_iterable(parts[at : at + 4])) for at in range(0, len(parts), 4)]


def _seals(store: Store, cells: Iterable[Cell]) -> list[float]:
    return [(store.path / "cells" / cell.id / "cell.json").stat().st_mtime for cell in cells]


BENCHMARKS: dict[str, Bench] = {
    "scale matrix": expansion,
    "scale folder": opening,
    "scale cell": a_cell,
    "scale pages": pages,
    "executors ray": executors_ray,
    "executors slurm": executors_slurm,
}
