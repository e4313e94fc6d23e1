"""Functions that the papers' figures share: panels, curves with intervals, legends, and pictures on a grid."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import matplotlib.image
import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stridebench.harness.record.cell_files import SealedCell
from stridebench.harness.record.entries import GridEntry
from stridebench.harness.record.store import Store
from stridebench.reports.papers.measured import CellGroup, MeasuredRun, decoded
from stridebench.reports.pareto import COLOURS as COLOURS
from stridebench.reports.pareto import STYLE_MARKERS as MARKERS
from stridebench.reports.text_table import TextTable

QUALITIES = {
    "set.geneval_overall": "GenEval",
    "set.families": "GenEval's families, mean of six",
    "score.overall": "share of right pictures",
    "score.named": "share of digits named as asked",
    "set.clip_score": "CLIP score",
    "set.dpg_bench": "DPG-Bench",
    "set.hpsv2": "HPSv2",
    "set.fid": "FID, lower is better",
    "set.fd_efflite0": "FD-EffLite0, lower is better",
    "logprob": "log-probability, nat/token",
}
"""Qualities of a curve; the first measured one is drawn."""
SCR = "output tokens / target pass"
Ints = npt.NDArray[np.int64]
Number = TypeVar("Number", np.int64, np.float64)


def side_by_side(count: int, title: str, measured_on: str = "") -> tuple[Figure, list[Axes]]:
    """Return a figure of ``count`` panels side by side, with a title and the measured cells."""
    figure = Figure(figsize=(4.6 * count + (1.6 if count == 1 else 0), 3.9), dpi=130, layout="constrained")
    figure.suptitle(f"{title}\n{measured_on}".strip(), fontsize=9)
    return figure, [figure.add_subplot(1, count, i + 1) for i in range(count)]


def error_bars(rows: pd.DataFrame, key: str) -> npt.NDArray[np.float64]:
    """Return the distances of a figure to the ends of its interval, [2, rows]; 0 if it has none."""
    values = rows[key].astype(float)
    low, high = (rows.get(f"{key}_{end}", values).astype(float).fillna(values) for end in ("low", "high"))
    return np.array([(values - low).clip(lower=0), (high - values).clip(lower=0)])


def curve(
    axes: Axes, x: Sequence[float] | pd.Series[Any], rows: pd.DataFrame, key: str, label: str, colour: str
) -> None:
    """Draw points joined by a line, with their intervals if they have any."""
    values, bars = rows[key].astype(float), error_bars(rows, key)
    look: dict[str, Any] = {"marker": MARKERS.get(colour, "o"), "ms": 4, "lw": 1.3, "elinewidth": 0.8, "capsize": 2}
    axes.errorbar(list(x), values, bars, color=colour, label=label, **look)
    axes.grid(color="0.94", zorder=0)


def legend(figure: Figure, axes: Axes) -> None:
    """Draw the legend below the panels, in as many columns as fit into the figure."""
    handles, labels = axes.get_legend_handles_labels()
    for columns in (4, 3, 2, 1):
        drawn = figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
        if columns == 1 or drawn.get_window_extent().width <= figure.bbox.width:
            return
        drawn.remove()


# pictures


def has_pictures(cell: SealedCell) -> bool:
    """Return whether outputs are complete pictures on a known grid."""
    return bool(cell.meta.grid) and bool(cell.samples["output"].fillna("").str.endswith(".png").any())


def blank(title: str, down: int, across: int) -> Figure:
    """Return a sheet of panels without axes."""
    figure = Figure(figsize=(1.5 * across + 0.8, 1.6 * down + 0.8), dpi=130, layout="constrained")
    figure.suptitle(title, fontsize=9)
    for place in range(down * across):
        axes = figure.add_subplot(down, across, place + 1)
        axes.set(xticks=[], yticks=[])
        axes.set_axis_off()
    return figure


def show_output(axes: Axes, store: Store, cell: SealedCell, prompt: str, repetition: int) -> bool:
    """Draw an output in the units of its grid; return False if there is none."""
    axes.set_axis_on()
    samples = decoded(cell)
    samples = samples[(samples["prompt"] == prompt) & (samples["repetition"] == repetition)]
    name = "" if samples.empty else str(samples["output"].iloc[0])
    if not name.endswith(".png"):
        return False
    grid = cell.meta.picture
    pixels = matplotlib.image.imread(store.path / name)
    axes.imshow(pixels, extent=(0, grid.columns, grid.rows, 0), interpolation="nearest")
    return True


def on_grid(values: npt.NDArray[Number], grid: GridEntry) -> npt.NDArray[Number]:
    """Reshape one value a token to cells [rows, columns], without ends of rows."""
    return values[: grid.rows * grid.stride].reshape(grid.rows, grid.stride)[:, : grid.columns]


def first_of(rows: pd.DataFrame, prompt: str) -> pd.DataFrame:
    """Return the rows of a prompt's first repetition."""
    rows = rows[rows["prompt"] == prompt]
    first: pd.DataFrame = rows[rows["repetition"] == rows["repetition"].min()]
    return first


def group_title(title: str, group: CellGroup) -> str:
    """Return a title with the measured cells below it."""
    return f"{title}\n{group.title}"


# Functions that fill tables and draw figures, by their names in the papers' YAML files.


Fill = Callable[[MeasuredRun], Iterable[TextTable]]
Draw = Callable[[MeasuredRun], Iterable[Figure]]
SHEETS: dict[str, Fill] = {}
FIGURES: dict[str, Draw] = {}


def sheet(*names: str) -> Callable[[Fill], Fill]:
    """Register a function that fills tables."""

    def register(fill: Fill) -> Fill:
        SHEETS.update(dict.fromkeys(names, fill))
        return fill

    return register


def figure(name: str) -> Callable[[Draw], Draw]:
    """Register a function that draws figures. Files have this name without the paper's."""

    def register(draw: Draw) -> Draw:
        FIGURES[name] = draw
        return draw

    return register
