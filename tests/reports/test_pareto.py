"""Sweeps, and panels of their speed against their quality."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pandas as pd

from stridebench.reports import pareto
from stridebench.reports.contact_sheets import row_name, spread
from stridebench.reports.summary import summarise
from tests.support.fake_store import empty


def test_a_sweep_is_one_number_of_one_method(frame: pd.DataFrame) -> None:
    cells = frame[(frame["temperature"] == 0) & (frame["status"] == "done")].reset_index(drop=True)
    (sweep,) = pareto.sweeps(cells)
    assert (sweep.parameter, sweep.values) == ("tau", [0.25, 0.5, 0.75, 1.0])


def test_figures_repeat_byte_for_byte_and_leave_matplotlib_alone(frame: pd.DataFrame, tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    greedy = frame[frame["temperature"] == 0]
    one, two = (pareto.write(greedy, tmp_path / name) for name in "ab")
    assert [p.name for p in one] == ["pareto.png", "pareto.svg"]
    assert [p.read_bytes() for p in one] == [p.read_bytes() for p in two]
    assert dict(matplotlib.rcParams) == before
    assert one[0].read_bytes()[:4] == b"\x89PNG" and "<svg" in one[1].read_text()


def test_a_group_with_a_swept_approximate_method_has_one_panel_of_its_main_score(frame: pd.DataFrame) -> None:
    (panel,) = pareto.panels(frame[frame["temperature"] == 0])
    assert (panel.title.split(", ")[1], panel.quality) == ("T = 0", "score.pass@1")
    without = frame[frame["temperature"] == 0].drop(columns=[name for name in frame if name.startswith("score.")])
    assert [panel.quality for panel in pareto.panels(without)] == ["agreement"]


def test_what_is_not_swept_has_no_panel(frame: pd.DataFrame) -> None:
    exact = frame[frame["verdict"] != "approximate"]
    assert list(pareto.panels(exact)) == [] and pareto.write(exact, Path("unused")) == []
    assert pareto.write(summarise(empty()), Path("unused")) == []


def test_a_sheet_shows_prompts_spread_over_the_set():
    assert spread([f"p{i}" for i in range(20)], 4) == ("p0", "p5", "p10", "p15")
    assert spread(["a", "b", "c"], 2) == ("a", "b") and spread(["a"], 8) == ("a",) and spread([], 8) == ()


def test_a_row_is_named_by_its_caption_where_that_is_short():
    assert row_name(pd.Series({"prompt_text": "a green fish"}), "single/0") == "a green fish"
    for sample in (pd.Series({"prompt_text": "def f(): " * 20}), pd.Series({"prompt_text": None}), pd.Series(), None):
        assert row_name(sample, "single/0") == "single/0"
