"""Fronts, sweeps and panels of speed against quality."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pandas as pd

from stridebench.reports import pareto
from stridebench.reports.summary import summarise
from tests.support.fake_store import empty


def test_the_front_equals_the_one_by_hand() -> None:
    x, y = [1.0, 2.0, 3.0, 2.0, 0.5], [1.0, 0.9, 0.2, 0.5, 1.0]
    assert pareto.front(x, y) == [0, 1, 2]


def panel_of(verdicts: list[str]) -> pareto.Panel:
    cells = pd.DataFrame(
        {
            "label": list("abcd"),
            "verdict": verdicts,
            "role": ["baseline", "method", "method", "method"],
            "speedup": [1.0, 2.0, 1.5, 1.2],
            "speedup_n": 24,
            "agreement": [1.0, 0.6, 0.9, 0.95],
            "agreement_n": 24,
        }
    )
    return pareto.Panel("t", "agreement", "agreement with AR", cells, None)


def test_there_is_no_front_where_exactness_makes_the_quality_equal() -> None:
    assert pareto.best(panel_of(["exact"] * 4)).empty
    assert pareto.best(panel_of(["exact", "exact", "exact", "broken"])).empty


def test_the_fastest_exact_cell_stands_for_all_exact_ones() -> None:
    """b and c are exact, so that c's better figure is chance; d is approximate."""
    assert list(pareto.best(panel_of(["exact", "exact", "exact", "approximate"]))["label"]) == ["d", "b"]


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


def test_qualities_of_all_outputs_have_panels_and_lower_is_better_where_it_is(frame: pd.DataFrame) -> None:
    """Of FID 9 at 1x, 5 at 2x and 7 at 3x, the front keeps 5 and 7; of CLIP, which is better higher, 9 and 7."""
    cells = frame[(frame["temperature"] == 1) & (frame["status"] == "done") & frame["speedup"].notna()].head(3)
    cells = cells.assign(speedup=[1.0, 2.0, 3.0], verdict="approximate", role="method")
    for key in ("set.fid", "set.clip_score"):
        cells = cells.assign(**{key: [9.0, 5.0, 7.0], f"{key}_low": 4.0, f"{key}_high": 10.0, f"{key}_n": 6})
    cells = cells.assign(**{"set.swapped": 0.5, "set.swapped_low": 0.4, "set.swapped_high": 0.6, "set.swapped_n": 6})
    cells = cells.assign(**{"score.faces": [60.0, 70.0, 80.0], "score.faces_low": 50.0, "score.faces_high": 90.0})
    by_quality = {panel.quality: panel for panel in pareto.panels(cells)}
    assert "set.swapped" not in by_quality, "a control"
    assert "score.faces" not in by_quality, "a count"
    assert pareto.best(by_quality["set.fid"])["set.fid"].tolist() == [5.0, 7.0]
    assert pareto.best(by_quality["set.clip_score"])["set.clip_score"].tolist() == [9.0, 7.0]
    assert by_quality["set.fid"].ylabel == "fid, lower is better"


def test_panels_hold_the_quality_that_was_measured(frame: pd.DataFrame) -> None:
    panels = [(panel.title.split(", ")[1], panel.quality) for panel in pareto.panels(frame)]
    greedy, sampled = ("agreement", "score.pass@1"), ("logprob_diff", "score.pass@1")
    assert panels == [("T = 0", one) for one in greedy] + [("T = 1", one) for one in sampled]
    assert pareto.write(summarise(empty()), Path("unused")) == []


def test_a_score_that_is_the_same_for_all_cells_has_no_panel(frame: pd.DataFrame) -> None:
    cells = frame[(frame["temperature"] == 1) & (frame["status"] == "done") & frame["speedup"].notna()].head(2)
    for key, values in {"score.count": [1.0, 1.0], "score.colour": [1.0, 0.9]}.items():
        cells = cells.assign(**{key: values, f"{key}_low": 0.5, f"{key}_high": 1.0, f"{key}_n": 6})
    drawn = {panel.quality for panel in pareto.panels(cells)}
    assert "score.colour" in drawn and "score.count" not in drawn


def test_a_score_of_a_few_prompts_of_many_has_no_panel(frame: pd.DataFrame) -> None:
    cells = frame[(frame["temperature"] == 1) & (frame["status"] == "done") & frame["speedup"].notna()].head(2)
    for key, size in {"score.count": 5, "score.colour": 6}.items():
        cells = cells.assign(**{key: [0.5, 0.6], f"{key}_low": 0.4, f"{key}_high": 0.7, f"{key}_n": size})
    assert {"score.count", "score.colour"} & {panel.quality for panel in pareto.panels(cells.assign(speedup_n=6))} == {
        "score.colour"
    }
    few = {panel.quality for panel in pareto.panels(cells.assign(speedup_n=5))}
    assert "score.count" in few, "the run itself is as small"
