"""Figures of Cross-Regression: over the threshold, the smoothing, the horizon and layers, and Fig. 1 over model sizes.

Source: Abulkhanov et al., Cross-Regression, Fig. 1, Tables 12, 13, 16 and 17, appendix D.3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stridebench.reports.papers.cross_regression.facts import (
    METHOD,
    beside,
    joint,
    layers_of,
    parameters,
    with_layers,
)
from stridebench.reports.papers.drawing import (
    COLOURS,
    SCR,
    SPEEDUP,
    curve,
    curves,
    figure,
    legend,
    side_by_side,
)
from stridebench.reports.papers.measured import MeasuredRun, fits
from stridebench.reports.papers.paper_files import printed
from stridebench.reports.pareto import OFFSET

if TYPE_CHECKING:
    from stridebench.harness.record.store import Store

GRIDS = {"gsm8k": "cross_regression_table12", "humaneval": "cross_regression_table13"}
SERIES = ("GSM8K tau", "HumanEval tau", "MT-bench tau")
"""Columns of Table 17."""
Lines = list[tuple[str, pd.DataFrame]]
"""Rows by the label of their curve."""


@figure("cross_regression_layers")
def layers(run: MeasuredRun) -> Iterator[Figure]:
    """Draw Table 16: tokens a step by the layers that the adapter changes, measured and printed."""
    table = printed("cross_regression_table16").rows
    labels = [label.removeprefix("Layers ") for label in table["Layer Range"]]
    for group in run.groups:
        rows = fits(with_layers(group.rows), method=METHOD, mode="std", beta=0.0)
        if not any(options.get("layers") for options in rows["options"]):
            continue
        drawn, panels = side_by_side(2, "Table 16: layers that the adapter changes", group.title)
        for axes, layout, column in zip(panels, ("sequential", "joint"), ("tau_Seq", "tau_Joint"), strict=True):
            axes.plot(
                range(len(labels)),
                table[column].astype(float),
                "o",
                ms=4,
                color="0.6",
                label="printed, Llama-2-7B-chat",
            )
            if len(cells := _by_range(fits(rows, layout=layout), list(table["Layer Range"]))):
                curve(axes, cells["x"], cells, "tau", "measured", COLOURS[0])
            axes.set_xticks(range(len(labels)), labels, rotation=90, fontsize=7)
            axes.set(title=layout, xlabel="layers, of 32", ylabel="output tokens / step")
        legend(drawn, panels[0])
        yield drawn


def _by_range(rows: pd.DataFrame, labels: list[str]) -> pd.DataFrame:
    """Return the first cell for each printed range of layers, whose place is ``x``; "Full" is all layers."""
    cells = []
    for place, label in enumerate(labels):
        layers = layers_of(label)
        near = beside(rows, layers) if layers else None
        if near or not layers:
            cells.append(fits(rows, layers=near).iloc[:1].assign(x=place))
    return pd.concat(cells) if cells else rows.iloc[:0]


@figure("cross_regression_fig1")
def scaling(run: MeasuredRun) -> Iterator[Figure]:
    """Draw Fig. 1: tokens a pass and wall speed-up of the lossless joint decoding against parameters.

    The paper prints no values of the figure. Table 17's values and the two in the text are drawn too.
    """
    if not run.groups:
        return
    rows = fits(with_layers(pd.concat([group.rows for group in run.groups])), **joint())
    rows = rows[~rows[["backbone", "task", "temperature", "dtype"]].duplicated()]
    sizes = [parameters(run.store, str(name)) or math.nan for name in rows["backbone"]]
    rows = rows.assign(size=sizes).dropna(subset=["size"])
    if rows.empty:
        return
    drawn, panels = side_by_side(2, "Fig. 1: speed by model size, lossless joint decoding")
    groups = rows.sort_values("size").groupby(["task", "temperature", "dtype"])
    lines = [(f"{task} {dtype}, T = {t:g}", line) for (task, t, dtype), line in groups]
    for axes, key, title in zip(panels, ("scr", "speedup"), (SCR, SPEEDUP), strict=True):
        curves(axes, lines, "size", key)
        axes.set_xscale("log")
        axes.set(xlabel="parameters of the backbone", ylabel=title)
    for _, row in rows.drop_duplicates("backbone").iterrows():
        panels[0].annotate(row["backbone"], (row["size"], row["scr"]), (3, 5), textcoords=OFFSET, fontsize=7)
    _printed_sizes(run.store, panels[0])
    legend(drawn, panels[0])
    yield drawn


def _printed_sizes(store: Store, axes: Axes) -> None:
    table = printed("cross_regression_table17")
    rows = table.rows[table.rows["Temperature"] == "0"]
    names = [table.paper.preset(f"{row['Model Series']} {row['Size']}") for _, row in rows.iterrows()]
    sizes = [parameters(store, name) for name in names]
    for shade, column in zip(("0.45", "0.6", "0.75"), SERIES, strict=True):
        points = sorted((size, float(y)) for size, y in zip(sizes, rows[column], strict=True) if size)
        if points:
            label = f"printed, {column.removesuffix(' tau')}, T = 0"
            axes.plot(*zip(*points, strict=True), "o", color=shade, ms=3, label=label)
    text = printed("cross_regression_fig1").rows
    stated_sizes = [float(size.removesuffix("B")) * 1e9 for size in text["Size"]]
    axes.plot(stated_sizes, text["GSM8K speed-up"].astype(float), "x", color="0.3", ms=5, label="said of Fig. 1, GSM8K")
