"""MuLo-SD's figures, sheets of pictures and printed numbers show the values of the cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stridebench.harness.record.metrics import totals
from stridebench.reports.papers import report
from stridebench.reports.papers.drawing import FIGURES, SHEETS
from stridebench.reports.papers.mulo_sd import pareto, stages
from stridebench.reports.papers.mulo_sd import stages as papers_mulo_text
from stridebench.reports.text_table import UNMEASURED
from tests.support.fake_store import FakeStore, record, step
from tests.support.paper_runs import paper_run, picture, run_of, stored, with_pictures

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


@pytest.mark.slow
def test_mulo_sd_is_swept_by_tau_and_by_radius() -> None:
    run = run_of(swept())
    (group,) = run.groups
    by_tau, by_radius = pareto.taus(run, group), pareto.radii(run, group)
    assert {line.label: list(line.rows.index) for line in by_tau} == {
        "samplers mulo-2x": ["r3 1e-05", "r3 0.0001", "r3 0.001"],
        "samplers repeat": ["repeat 1e-05", "repeat 0.0001", "repeat 0.001"],
        "samplers mulo-2x, window 4, draft_window 4": ["beside 1e-05", "beside 0.0001", "beside 0.001"],
    }
    assert {line.label: list(line.rows.index) for line in by_radius} == {
        "radius 3": ["r3 1e-05", "r3 0.0001", "r3 0.001"],
        "radius 1": ["r1 1e-05", "r1 0.0001", "r1 0.001"],
    }
    assert {line.marks for line in (*by_tau, *by_radius)} == {("1e-05", "0.0001", "0.001")}


@pytest.mark.slow
def test_figs_8_and_9_draw_the_speeds_and_qualities_of_the_cells() -> None:
    """The axes have the speed-up, 160 ms of AR over 8 steps, and the quality of each cell."""
    run = run_of(swept())
    (figure,) = FIGURES["mulo_sd_fig8"](run)
    labels = [axes.get_ylabel() for axes in figure.axes]
    assert labels[0] == "GenEval" and {"DPG-Bench", "FID, lower is better"} <= set(labels)
    axes = figure.axes[0]
    curves = {str(container.get_label()): container[0].get_xydata() for container in axes.containers}
    for i, name in ((0, "samplers mulo-2x"), (2, "samplers repeat"), (3, "samplers mulo-2x, window 4, draft_window 4")):
        points = [(160 / (8 * ms / (i + 1)), 0.1 * i - 100 * tau) for tau, ms in sorted(SPEEDS.items())]
        np.testing.assert_allclose(curves[name], points, rtol=1e-5)
    np.testing.assert_allclose(curves["zipar"], [(160 / (8 * 16), 0.7), (160 / (8 * 4), 0.5)], rtol=1e-5)
    points = {str(line.get_label()): tuple(line.get_xydata()[0]) for line in axes.lines if line.get_marker() == "D"}
    assert points["eagle2"] == (pytest.approx(1.0), pytest.approx(0.8))
    assert {text.get_text() for text in axes.texts} == {"1e-05", "0.0001", "0.001", "window=4", "window=16"}
    (figure,) = FIGURES["mulo_sd_fig9"](run)
    curves = {str(container.get_label()): container[0].get_xydata() for container in figure.axes[0].containers}
    assert {"radius 1", "radius 3", "zipar"} == set(curves)
    speeds = [160 / (8 * SPEEDS[tau] / 2) for tau in sorted(SPEEDS)]
    np.testing.assert_allclose(curves["radius 1"][:, 0], speeds, rtol=1e-5)


def test_the_tables_of_figs_8_and_9_have_the_drawn_values() -> None:
    run = run_of(swept())
    (by_tau,), (by_radius,) = SHEETS["mulo_sd_fig8"](run), SHEETS["mulo_sd_fig9"](run)
    heads = [column.title for column in by_tau.columns]
    table = {(row[0], row[1]): dict(zip(heads, row, strict=True)) for row in by_tau.rows}
    row = table["samplers mulo-2x", "0.001"]
    assert row["wall speed-up"].startswith("1.667") and row["GenEval"] == "-0.1000" and row["DPG-Bench"] == "79.9000"
    assert len(table) == 9 + 2 + 1 + 1 and table["eagle2", "-"]["FID, lower is better"] == "30.8000"
    radii = {(row[0], row[1]): row[2] for row in by_radius.rows}
    assert radii["radius 1", "1e-05"].startswith("5.000")


@pytest.mark.slow
def test_pictures_carry_their_own_speed_up(tmp_path: Path) -> None:
    """Prompt p1 of one cell took twice as long as the others, and only its stamp says so."""
    store: Any = swept(3)
    store.add(store.cell("r3 0.0001").facts, [picture(f"p{i}", (1,) * 8, 20.0 if i == 1 else 10.0) for i in range(3)])
    store = with_pictures(store, tmp_path)
    run = run_of(store)
    (group,) = run.groups
    line = pareto.taus(run, group)[0]
    (figure,) = pareto.picture_sheet(store, group, line.cells, "a title", 2)
    assert len(figure.axes) == 2 * 4
    stamps = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert stamps == [[], ["2.50x"], ["2.00x"], ["1.67x"], [], ["2.50x"], ["1.00x"], ["1.67x"]]
    assert [axes.get_title() for axes in figure.axes[:4]] == ["AR", "1e-05", "0.0001", "0.001"]
    assert [len(axes.images) for axes in figure.axes] == [1] * 8


@pytest.mark.slow
def test_every_cell_of_mulo_sd_is_on_a_sheet_of_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store: Any = with_pictures(swept(), tmp_path)
    drawn: dict[str, list[str]] = {}

    def record_columns(store: Any, group: Any, columns: Any, title: str, most: int) -> list[Any]:
        drawn[title] = list(columns.values())
        return []

    monkeypatch.setattr(pareto, "picture_sheet", record_columns)
    assert list(pareto.sweeps(run_of(store))) == []
    mulo = [name for name in store.sealed_cells if store.cell(name).facts["method"] == "mulo_sd"]
    assert sorted(cell for cells in drawn.values() for cell in cells) == sorted(mulo) and len(drawn) == 4
    assert drawn["Fig. 13: tau, samplers mulo-2x"] == ["r3 0.001", "r3 0.0001", "r3 1e-05"]
    drawn.clear()
    assert list(pareto.comparison(run_of(store))) == []
    (columns,) = drawn.values()
    assert columns == ["r3 0.0001", "repeat 0.0001", "beside 0.0001", "zipar window=16", "zipar window=4", "eagle2"]


@pytest.mark.slow
def test_a_sheet_of_pictures_is_written_where_there_are_pictures(tmp_path: Path) -> None:
    store: Any = bands(2)
    store.sealed_cells["mulo"].facts["params"] = {"tau": 1e-3}
    assert list(pareto.sweeps(run_of(store))) == []
    store = with_pictures(store, tmp_path)
    (figure,) = pareto.sweeps(run_of(store))
    assert len(figure.axes) == 2 * 2
    assert list(pareto.comparison(run_of(store))) == []  # no cell at the paper's tau


STAGES = {"up": 2_000_000, "down": 1_000_000, "score": 12_000_000, "judge": 1_000_000, "redraw": 20_000_000}


def bands(prompts: int = 6, draft_nfe: tuple[int, int] = (2, 2), **changes: Any) -> FakeStore:
    """MuLo-SD on 16 cells in two bands: the first redraws 6 cells in 6 passes, the second none in one."""
    store = paper_run("papers/mulo_sd", prompts=prompts)
    first, second = ({"drafted": 0, "draft_nfe": passes, "emitted": 8} for passes in draft_nfe)
    steps = [step(ms=40.0, **first, nfe=6, resampled=6), step(ms=20.0, **second, nfe=1)]
    cell_meta = {**store.cell("sjd").facts, "cell": "mulo", "label": "m", "method": "mulo_sd"}
    cell_meta |= {"params": {"tau": 1e-4, "radius": 3, "samplers": "mulo-2x", "window": 0}}
    return store.add(cell_meta, [record(f"p{i}", steps, agreement=None, **changes) for i in range(prompts)])


EQ10 = """\
| setting | acceptance a | eq. 10 | corrected | counted | wall speed-up |
| --- | ---: | ---: | ---: | ---: | ---: |
| m | 0.625 | 1.60 | 1.33 | 1.45 | 2.67 |
"""
FIG7 = """\
| setting | all steps | 1 drafter | 2 up-sampling | 3 target pass | 4-5 judging | 6 redraws \
| 7 down-sampling | rest |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| m | 0.060 | 0.003 (5%) | 0.002 (3%) | 0.012 (20%) | 0.001 (2%) | 0.020 (33%) | 0.001 (2%) \
| 0.021 (35%) |
"""


@pytest.mark.slow
def test_passes_of_mulo_sd_and_seconds_by_step_are_reported(tmp_path: Path) -> None:
    """A tenth of each step's time is drafting: 6 ms, of which 3 are the samplers'; 16 / (6 + 4), / 12 and / 11."""
    names = report.write(stored(bands(stages=STAGES), tmp_path / "run"), tmp_path / "out")
    page = names[0].read_text()
    assert EQ10 in page and FIG7 in page
    headings = [line for line in page.splitlines() if line.startswith("## MuLo-SD")]
    assert len(headings) == 5
    assert all("embedded-image bf16, T = 1, top-k 250, emoji_scenes, n = 6" in line for line in headings)
    tables = ["papers-mulo_sd_text.csv", "papers-mulo_sd_eq10.csv", "papers-mulo_sd_fig7.csv"]
    assert [path.name for path in names[1:4]] == tables
    assert "papers-fig7.png" in page and (tmp_path / "out" / "papers-fig7.png").exists()
    assert list(pd.read_csv(names[3])["6 redraws"]) == ["0.020 (33%)"]


def test_a_run_without_stages_has_no_breakdown() -> None:
    run = run_of(bands(2))
    assert stages.stages(run) == [] and len(stages.speedups(run)) == 1


@pytest.mark.slow
def test_numbers_of_the_text_are_shown_with_measured_ones(tmp_path: Path) -> None:
    """Of 60 ms, 3 draft and 20 redraw: 61.7 % is neither, 3 ms are the samplers'; 160 ms of AR over 60."""
    report.write(stored(bands(stages=STAGES), tmp_path / "run"), tmp_path / "out")
    table = pd.read_csv(tmp_path / "out" / "papers-mulo_sd_text.csv", dtype=str).set_index("What")
    overhead = table.loc["Overhead of drafting on another scale, 2x"]
    assert (overhead["Printed"], overhead["Measured"]) == ("about 5%", "61.7%, of which the samplers 5.0%")
    assert "section 7" in str(overhead["Where"])
    bound = table.loc["Speed-up where no draft is refused, 2x"]
    assert (bound["Printed"], bound["Measured"]) == ("4", "eq. 10 1.60 at a = 0.625, wall 2.67")
    assert set(table[table.index.str.contains("4x")]["Measured"]) == {UNMEASURED}
    measured_of = {
        word: table["Measured"].filter(like=word).tolist() for word in ("sweep", "before", "at a time", "slower")
    }
    assert measured_of["sweep"] == ["2.67 - 2.67"] and measured_of["before"] == ["0.005"]
    assert measured_of["at a time"] == ["0.165 of 16 tokens"] and measured_of["slower"] == [UNMEASURED]


@pytest.mark.slow
def test_pictures_slower_than_ar_at_the_strictest_tau_are_counted() -> None:
    store: Any = swept(4)
    store.add(store.cell("r3 0.001").facts, [picture(f"p{i}", (1,) * 8, 30.0 if i else 5.0) for i in range(4)])
    (sheet,) = papers_mulo_text.table(run_of(store))
    assert {row[0]: row[2] for row in sheet.rows}["Prompts that tau = 1e-3 makes slower than AR"] == "3 of 4 pictures"


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
