"""Runs of the papers' suites on pictures of 16 tokens, for the tests of their reports."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter

from stridebench.harness.record.columns import Record
from stridebench.harness.record.store import Store
from stridebench.reports.papers import report
from stridebench.reports.papers.drawing import FIGURES
from stridebench.reports.papers.measured import MeasuredRun, measured
from stridebench.reports.text_table import TextTable
from tests.support.fake_store import FakeStore, empty, meta, record, step

GOLDEN = Path(__file__).parents[1] / "reports" / "papers" / "golden"
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


def table_of(store: Any, name: str, labels: int = 1) -> pd.DataFrame:
    """The only sheet of a printed table, filled by a run, by its first columns."""
    (sheet,) = report.printed_table(name, run_of(store))
    return frame_of(sheet, labels)


def numbers(values: Any) -> str:
    """Numbers with four digits."""
    return " ".join(f"{float(value):.4g}" for value in np.ravel(np.ma.filled(np.ma.asarray(values, float), np.nan)))


def drawn(figure: Figure) -> Iterator[str]:
    """Everything that a figure shows, line by line."""
    yield figure.get_suptitle()
    for axes in figure.axes:
        yield f"- {axes.get_title()}: {axes.get_xlabel()} {axes.get_xscale()}, {axes.get_ylabel()} {axes.get_yscale()}"
        for axis in (axes.xaxis, axes.yaxis):
            if isinstance(axis.get_major_formatter(), FixedFormatter):
                yield f"  ticks {[tick.get_text() for tick in axis.get_ticklabels()]}"
        for line in axes.lines:
            yield f"  line {line.get_label()}: {numbers(line.get_xdata())} -> {numbers(line.get_ydata())}"
        for bars in axes.containers:
            yield f"  bars {bars.get_label()}"
        for patch in axes.patches:
            yield f"  patch {patch.get_label()}: {numbers(patch.get_path().get_extents(patch.get_patch_transform()))}"
        for collection in axes.collections:
            places = [part.vertices for part in collection.get_paths()] if len(collection.get_offsets()) < 2 else []
            yield f"  points {numbers(collection.get_offsets())} {' | '.join(map(numbers, places))}".rstrip()
        for image in axes.images:
            pixels = np.ma.asarray(image.get_array(), float)
            yield f"  image {pixels.shape}: {numbers(pixels if pixels.size < 50 else pixels.mean((0, 1)))}"
        for text in axes.texts:
            yield f"  text {numbers(text.xy if hasattr(text, 'xy') else text.get_position())}: {text.get_text()!r}"
    for legend in figure.legends:
        yield f"- legend {[text.get_text() for text in legend.get_texts()]}"


def assert_page(store: Any, name: str) -> None:
    """Compare all tables and figures of a run with a stored page; ``RENEW_FORMATS=1 pytest ...`` writes it anew."""
    whole, path = report.PaperReport.of(store), GOLDEN / f"{name}.md"
    page = report.markdown([sheet for _, _, sheet in whole.sheets], []).partition("## Legend")[0]
    figures = [(figure, kind) for kind in whole.contents.figures for figure in FIGURES[kind](whole.run)]
    page += "".join(f"## {kind}: {chr(10).join(drawn(figure))}\n\n" for figure, kind in figures)
    page = page.replace(str(store.path), "RUN").rstrip() + "\n"
    if "RENEW_FORMATS" in os.environ:
        path.write_text(page, encoding="utf-8")
    assert page == path.read_text(encoding="utf-8")
