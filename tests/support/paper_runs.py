"""Runs of the papers' suites on pictures of 16 tokens, for the tests of their reports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pandas as pd

from stridebench.harness.record.columns import Record
from stridebench.harness.record.store import Store
from stridebench.reports.papers import report
from stridebench.reports.papers.measured import MeasuredRun, measured
from stridebench.reports.text_table import TextTable
from tests.support.fake_store import FakeStore, empty, meta, record, step

GRID = {"rows": 4, "columns": 4, "stride": 4}
SAMPLED = {"temperature": 1.0, "top_k": 250, "top_p": 1.0}
PUBLISHED = {"window": 16, "reuse": "paper", "tau": 0.5}
SCORES = {"families": (0.5, 0.4, 0.6), "counting": (0.25, 0.1, 0.4)}


def set_scores() -> dict[str, Any]:
    scores = {name: {"value": v, "low": a, "high": b, "n": 5, "reason": ""} for name, (v, a, b) in SCORES.items()}
    return scores | {"fid": {"value": None, "low": None, "high": None, "n": 0, "reason": "weights are missing"}}


def picture(prompt: str, accepted: tuple[int, ...], ms: float, repetition: int = 0, **changes: Any) -> Record:
    """16 tokens in steps that accept so many; later runs are likelier."""
    steps = [step(one, max(one, 3), ms=ms) for one in accepted]
    emitted = sum(one.emitted for one in steps)
    steps[-1] = step(accepted[-1], max(accepted[-1], 3), ms=ms, overshoot=max(0, emitted - 16))
    return record(prompt, steps, repetition, logprobs=tuple(-2 + 0.1 * i for i in range(16)), agreement=None, **changes)


def paper_run(
    name: str = "papers/sjdpp", backbone: str = "embedded-image", task: str = "emoji_scenes", prompts: int = 6
) -> FakeStore:
    """A baseline and the cells of one suite, each of so many pictures of 16 tokens."""
    store = empty()
    store.body["suite"] = {"name": name}
    if name.startswith("papers/"):
        store.body["suite"]["report"] = name.removeprefix("papers/")
    same = {"backbone": backbone, "task": task, "sampling": SAMPLED, "grid": GRID, "set_scores": set_scores()}
    names = [f"p{i}" for i in range(prompts)]

    def add(cell: str, method: str, accepted: tuple[int, ...], ms: float = 12.0, **changes: Any) -> None:
        store.add(meta(cell, method=method, **{**same, **changes}), [picture(p, accepted, ms) for p in names])

    add("ar", "autoregressive", (0,) * 16, 10.0, role="baseline")
    add("sjd", "sjd", (1,) * 8, params={"window": 16, "init": "uniform", "refine": True})
    add("sjdpp", "sjdpp", (3,) * 4, params=PUBLISHED)
    add("M", "sjdpp", (1, 1, 3, 3, 3), params={**PUBLISHED, "reuse": "M"})
    return store


def windows(prompts: int = 6) -> FakeStore:
    store = paper_run("papers/sjdpp_windows", prompts=prompts)
    same = store.cell("sjdpp").facts
    for window, accepted in ((4, (1,) * 8), (32, (7, 7))):
        cell_meta = {**same, "cell": f"w{window}", "label": f"w{window}", "params": {**PUBLISHED, "window": window}}
        store.add(cell_meta, [picture(f"p{i}", accepted, 15.0) for i in range(prompts)])
    return store


def top_ks(prompts: int = 6) -> FakeStore:
    store = paper_run("papers/sjdpp_topk", prompts=prompts)
    for name in list(store.sealed_cells):
        for k in (1, 10, 100):
            cell_meta = {**store.cell(name).facts, "cell": f"{name}-{k}", "sampling": {**SAMPLED, "top_k": k}}
            store.add({**cell_meta, "baseline": f"ar-{k}"}, store.records[name])
    return store


def with_pictures(store: FakeStore, folder: Path) -> FakeStore:
    """Give every sample a file, as the runner does."""
    store.path = folder
    matplotlib.image.imsave(folder / "out.png", np.full((8, 8, 3), 0.5))
    for name in list(store.sealed_cells):
        store.sealed_cells[name].samples["output"] = "out.png"
    return store


def stored(fake: FakeStore, folder: Path) -> Store:
    """The same run on the disk."""
    real = Store.create(folder, fake.body)
    for name, records in fake.records.items():
        for one in records:
            real.write(name, one)
        real.seal(name, fake.cell(name).meta)
    return Store.open(folder)


def run_of(store: Any, roles: Mapping[str, Mapping[str, Any]] | None = None) -> MeasuredRun:
    """What sheets and figures are given of a store; roles of its report unless named."""
    return MeasuredRun(store, measured(store), report.contents_of(store).roles if roles is None else roles)


def frame_of(sheet: TextTable, labels: int = 1) -> pd.DataFrame:
    """A sheet by its first columns."""
    titles = [column.title for column in sheet.columns]
    return pd.DataFrame(sheet.rows, columns=titles).set_index(titles[:labels])
