"""Figures of Cross-Regression: over the threshold, the smoothing, the horizon and layers, and Fig. 1 over model sizes.

Source: Abulkhanov et al., Cross-Regression, Fig. 1, Tables 12, 13, 16 and 17, appendix D.3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stridebench.reports.papers.cross_regression.facts import (
    METHOD,
    QUALITIES,
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
    unmeasured,
)
from stridebench.reports.papers.measured import Measured, Run, fits
from stridebench.reports.papers.paper_files import printed
from stridebench.reports.pareto import DASHES, OFFSET

if TYPE_CHECKING:
    from stridebench.harness.record.store import Store

GRIDS = {"gsm8k": "cross_regression_table12", "humaneval": "cross_regression_table13"}
SERIES = ("GSM8K tau", "HumanEval tau", "MT-bench tau")
"""Columns of Table 17."""
Lines = list[tuple[str, pd.DataFrame]]
"""Rows by the label of their curve."""


def swept(group: Measured, option: str, *lines: str) -> Lines:
    """Return cells of the method that differ in ``option``, its value in ``x``; one line a setting of the others.

    Args:
        group: the cells.
        option: the swept option.
        lines: options whose values name a line.
    """
    rows = with_layers(group.rows[group.rows["method"] == METHOD])
    settings: dict[str, list[Any]] = {}
    for name, options in rows["options"].items():
        rest = str(sorted((key, str(value)) for key, value in options.items() if key != option))
        settings.setdefault(rest, []).append(name)
    named: dict[str, pd.DataFrame] = {}
    for rest, names in settings.items():
        if len(names) > 1:
            line = rows.loc[names]
            title = ", ".join(f"{key} {line['options'].iloc[-1][key]}" for key in lines)
            line = line.assign(x=[float(options[option]) for options in line["options"]]).sort_values("x")
            named[rest if title in named else title] = line
    return list(named.items())


@figure("cross_regression_thresholds")
def thresholds(run: Run) -> Iterator[Figure]:
    """Draw Tables 12 and 13 as curves: tokens a pass and quality against the threshold, one line a smoothing."""
    for group in run.groups:
        lines = swept(group, "tau", "mode", "beta", "layout")
        if not lines:
            continue
        lines = [(title, rows.assign(x=-rows["x"]).sort_values("x")) for title, rows in lines]
        drawn, panels = _with_quality(group, "Tables 12 and 13: the threshold", lines, "threshold -tau, nat")
        table = printed(GRIDS.get(group.task, GRIDS["gsm8k"])).rows
        for beta, rows in table[table["Model"] == "LLaMA-3 8B"].groupby("Smoothing (= beta)"):
            x, y = (rows[key].astype(float) for key in ("Threshold (= -tau)", "Accept Rate [tokens/fwd]"))
            panels[0].plot(x, y, color="0.6", ls=DASHES, marker="o", ms=3, label=f"printed, LLaMA-3 8B, beta {beta}")
        legend(drawn, panels[0])
        yield drawn


@figure("cross_regression_smoothing")
def smoothing(run: Run) -> Iterator[Figure]:
    """Draw tokens a pass and quality against beta, one line a mode and threshold."""
    for group in run.groups:
        if lines := swept(group, "beta", "mode", "tau", "layout"):
            drawn, panels = _with_quality(group, "The smoothing", lines, "smoothing beta")
            legend(drawn, panels[0])
            yield drawn


@figure("cross_regression_windows")
def windows(run: Run) -> Iterator[Figure]:
    """Draw appendix D.3: tokens a pass and wall speed-up against the horizon, one line a layout."""
    for group in run.groups:
        lines = swept(group, "horizon", "layout")
        if not lines:
            continue
        title = "D.3: the horizon gamma; the paper trains at 16 and tests at 32"
        drawn, panels = side_by_side(2, title, group.title)
        for axes, key, name in zip(panels, ("scr", "speedup"), (SCR, SPEEDUP), strict=True):
            curves(axes, lines, "x", key)
            axes.set_xscale("log", base=2)
            axes.set(xlabel="horizon gamma", ylabel=name)
        legend(drawn, panels[0])
        yield drawn


@figure("cross_regression_layers")
def layers(run: Run) -> Iterator[Figure]:
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


def _with_quality(group: Measured, title: str, lines: Lines, x: str) -> tuple[Figure, list[Axes]]:
    """Draw tokens a pass, and the benchmark's score or, without one, log-probability less the baseline's."""
    score = QUALITIES.get(group.task, "")
    key = score if group.has(score) else "logprob_diff"
    drawn, panels = side_by_side(2, title, group.title)
    curves(panels[0], lines, "x", "scr")
    curves(panels[1], lines, "x", key)
    panels[0].set(xlabel=x, ylabel=SCR)
    panels[1].set(xlabel=x, ylabel=key.partition(".")[2] or "log p less AR's, nat a token")
    if not panels[1].lines:
        unmeasured(panels[1])
    return drawn, panels


@figure("cross_regression_fig1")
def scaling(run: Run) -> Iterator[Figure]:
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
