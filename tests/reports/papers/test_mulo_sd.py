"""MuLo-SD's figures, sheets of pictures and printed numbers show the values of the cells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from stridebench.harness.record.metrics import totals
from stridebench.reports.papers import mulo_sd_stages as stages
from tests.support.fake_store import FakeStore, empty, meta, record, step
from tests.support.paper_runs import assert_page, paper_run, picture, run_of, with_pictures

SPEEDS = {1e-3: 12.0, 1e-4: 10.0, 1e-5: 8.0}
"""Milliseconds of a step, of which a picture takes 8; AR takes 16 of 10."""


def swept(prompts: int = 2) -> FakeStore:
    """MuLo-SD over tau at two radii, untrained and in parallel; ZipAR at two windows, and EAGLE-2; three qualities."""
    store = paper_run("papers/mulo_sd", prompts=prompts)
    for name in ("sjd", "sjdpp", "M"):
        del store.sealed_cells[name], store.body["cells"][name]
    base = store.cell("ar").facts

    def add(name: str, method: str, params: dict[str, Any], ms: float, quality: float) -> None:
        scores = {"geneval_overall": quality, "fid": 30 + quality, "dpg_bench": 80 + quality}
        set_scores = {key: {"value": v, "low": v, "high": v, "n": prompts, "reason": ""} for key, v in scores.items()}
        cell_meta = {**base, "cell": name, "label": name, "role": "method", "method": method, "params": params}
        store.add({**cell_meta, "set_scores": set_scores}, [picture(f"p{i}", (1,) * 8, ms) for i in range(prompts)])

    old = {"samplers": "mulo-2x", "window": 0}  # as runs of before draft_window stored them
    kinds: dict[str, dict[str, Any]] = {
        "r3": {**old, "radius": 3},
        "r1": {**old, "radius": 1, "draft_window": 0},
        "repeat": {**old, "radius": 3, "samplers": "repeat", "draft_window": 0},
        "beside": {**old, "radius": 3, "window": 4, "draft_window": 4},
    }
    for i, (kind, params) in enumerate(kinds.items()):
        for tau, ms in SPEEDS.items():
            add(f"{kind} {tau:g}", "mulo_sd", {**params, "tau": tau}, ms / (i + 1), 0.1 * i - 100 * tau)
    add("zipar window=16", "zipar", {"window": 16}, 16.0, 0.7)
    add("zipar window=4", "zipar", {"window": 4}, 4.0, 0.5)
    add("eagle2", "eagle2", {}, 20.0, 0.8)
    return store


STAGES = {"up": 2_000_000, "down": 1_000_000, "score": 12_000_000, "judge": 1_000_000, "redraw": 20_000_000}


def bands(prompts: int = 6, draft_nfe: tuple[int, int] = (2, 2), **changes: Any) -> FakeStore:
    """MuLo-SD on 16 cells in two bands: the first redraws 6 cells in 6 passes, the second none in one."""
    store = paper_run("papers/mulo_sd", prompts=prompts)
    first, second = ({"drafted": 0, "draft_nfe": passes, "emitted": 8} for passes in draft_nfe)
    steps = [step(ms=40.0, **first, nfe=6, resampled=6), step(ms=20.0, **second, nfe=1)]
    cell_meta = {**store.cell("sjd").facts, "cell": "mulo", "label": "m", "method": "mulo_sd"}
    cell_meta |= {"params": {"tau": 1e-4, "radius": 3, "samplers": "mulo-2x", "window": 0}}
    return store.add(cell_meta, [record(f"p{i}", steps, agreement=None, **changes) for i in range(prompts)])


def test_a_run_without_stages_has_no_breakdown() -> None:
    run = run_of(bands(2))
    assert stages.stages(run) == [] and len(stages.speedups(run)) == 1


def test_eq_10_counts_small_cells_and_not_passes() -> None:
    """In parallel the drafter makes 3 passes for the 4 small cells of 16; only the count of passes changes."""
    alone, beside = (stages.predicted(totals_of(bands(2, passes)), 2) for passes in ((2, 2), (2, 1)))
    assert alone is not None and beside is not None
    assert alone.eq10 == beside.eq10 == 16 / (6 + 4) and alone.corrected == beside.corrected == 16 / (6 + 4 + 2)
    assert (alone.counted, beside.counted) == (16 / (7 + 4), 16 / (7 + 3))
    wide = stages.predicted(totals_of(bands(2)), 4)
    assert wide is not None and wide.eq10 == 16 / (6 + 1)


def totals_of(store: FakeStore) -> pd.DataFrame:
    return totals(store.cell("mulo").samples, store.cell("mulo").steps)


def with_slow_pictures(store: FakeStore, folder: Path) -> FakeStore:
    """One prompt of two cells took longer than the others; one of them is slower than AR there."""
    for name, ms in (("r3 0.0001", 10.0), ("r3 0.001", 5.0)):
        pictures = [picture(f"p{i}", (1,) * 8, 30.0 if i else ms) for i in range(2)]
        store.add(store.cell(name).facts, pictures)
    return with_pictures(store, folder)


def lengths() -> FakeStore:
    """Two backbones of 64 and of 256 tokens a picture."""
    store = empty()
    store.body["suite"] = {"name": "papers/mulo_sd_lengths", "report": "mulo_sd_lengths"}
    for backbone, tokens in (("embedded-image-8x8", 64), ("embedded-image", 256)):
        cell_meta = meta(backbone, role="baseline", backbone=backbone, task="emoji_scenes", baseline=backbone)
        store.add(cell_meta, [record(f"p{i}", [step(ms=10.0)] * tokens) for i in range(4)])
    return store


PAGES: dict[str, Callable[[Path], FakeStore]] = {
    "mulo_sd": lambda folder: with_slow_pictures(swept(), folder),
    "mulo_sd_bands": lambda folder: with_pictures(bands(2, stages=STAGES), folder),
    "mulo_sd_lengths": lambda folder: lengths(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_it_was(name: str, tmp_path: Path) -> None:
    assert_page(PAGES[name](tmp_path), name)
