"""Draws the charts of the papers' YAML files: figures over a column or an option, next to printed values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stridebench.reports.papers.drawing import (
    COLOURS,
    QUALITIES,
    SCR,
    SECONDS,
    SPEEDUP,
    by_label,
    curves,
    legend,
    quality_of,
    side_by_side,
    unmeasured,
)
from stridebench.reports.papers.measured import CELL, CellGroup, MeasuredRun, fits
from stridebench.reports.papers.paper_files import ChartPanel, PaperChart, XAxis, printed, published
from stridebench.reports.pareto import DASHES

LABELS = {
    "scr": SCR,
    "seconds": SECONDS,
    "speedup": SPEEDUP,
    "passes_per_token": "target passes / output token",
    "total_variation": "total variation",
    "logprob_diff": "log p less AR's, nat a token",
    **QUALITIES,
}
"""Labels of panels; a score without one has its name."""
Lines = list[tuple[str, pd.DataFrame]]
"""Rows by the label of their curve."""


def draw_chart(chart: PaperChart, run: MeasuredRun) -> Iterator[Figure]:
    """Draw a chart for each group of cells with two values on the x axis.

    Panels without a measured figure say so, or are left out (``missing: panel``); with ``missing: figure`` there is no
    chart at all.
    """
    for group in run.groups:
        lines = chart_lines(chart, group)
        if not lines:
            continue
        panels = [(panel, _key(panel, group, lines)) for panel in chart.panels]
        if chart.missing == "panel":
            panels = [(panel, key) for panel, key in panels if key]
        if not panels or (chart.missing == "figure" and not all(key for _, key in panels)):
            continue
        drawn, axes = side_by_side(len(panels), chart.title, group.title)
        places = _places(chart.x, lines)
        for one, (panel, key) in zip(axes, panels, strict=True):
            if key is None:
                unmeasured(one)
                continue
            at = [(name, rows.assign(x=rows["x"].map(places) if places else rows["x"])) for name, rows in lines]
            curves(one, at, "x", key)
            if chart.others:
                _draw_others(one, group, lines, key)
            stated = _draw_printed(one, chart, group.task, key)
            _label_x(one, chart.x, places, [*stated, *(x for _, rows in at for x in rows["x"])])
            note = panel.note.format(prompts=group.rows["prompts"].max(), pictures=group.rows["n_ok"].max())
            one.set_ylabel(panel.label or LABELS.get(key, key.partition(".")[2]))
            one.set_title(note, fontsize=8)
        legend(drawn, axes[0])
        yield drawn


def chart_lines(chart: PaperChart, group: CellGroup) -> Lines:
    """Return the lines of a chart, each ordered by ``x``; none if no line has two points.

    The lines of a column of the summary are labels. Those of an option are cells that differ in this option alone.
    """
    key = chart.x.key
    if key in CELL:
        rows = group.rows.assign(x=group.rows[key].astype(float))
        lines = by_label(
            rows.sort_values("x", key=lambda x: x.map(lambda value: _order(chart.x, value)), kind="stable")
        )
        return lines if rows["x"].nunique() > 1 else []
    selection = {"method": chart.method, **(published(chart.method) if chart.published else {})}
    selection.pop(key, None)
    rows = fits(group.rows, **selection)
    values = [float(options.get(key, math.nan)) * chart.x.factor for options in rows["options"]]
    rows = rows.assign(x=pd.Series(values, rows.index, dtype=float))
    if chart.published:
        return [(chart.line, rows.sort_values("x"))] if len(rows) > 1 else []
    settings: dict[str, list[Any]] = {}
    for name, options in rows["options"].items():
        rest = str(sorted((other, str(value)) for other, value in options.items() if other != key))
        settings.setdefault(rest, []).append(name)
    named: dict[str, pd.DataFrame] = {}
    for rest, names in settings.items():
        line = rows.loc[names]
        title = ", ".join(f"{option} {line['options'].iloc[-1][option]}" for option in chart.lines)
        if len(names) > 1:
            named[rest if title in named else title] = line.sort_values("x")
    return list(named.items())


def _key(panel: ChartPanel, group: CellGroup, lines: Lines) -> str | None:
    """Return the first figure of a panel that was measured; a quality must be there for all points."""
    rows = pd.concat([rows for _, rows in lines])
    keys = [quality_of(rows) if key == "quality" else key for key in panel.keys]
    return next((key for key in keys if key and key in rows and rows[key].notna().any() and group.has(key)), None)


def _order(x: XAxis, value: float) -> float:
    return math.inf if x.zero and value == 0 else value


def _places(x: XAxis, lines: Lines) -> dict[float, int]:
    """Return the place of each value on an axis of places; none on other axes."""
    values = {float(value) for _, rows in lines for value in rows["x"]}
    return (
        {value: i for i, value in enumerate(sorted(values, key=lambda v: _order(x, v)))} if x.scale == "places" else {}
    )


def _label_x(axes: Axes, x: XAxis, places: dict[float, int], values: Sequence[float]) -> None:
    axes.set_xlabel(x.label)
    if x.scale == "places":
        axes.set_xticks(list(places.values()), [x.zero if x.zero and not value else f"{value:g}" for value in places])
    elif x.scale == "log2":
        ticks = sorted(set(values))
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=7)


def _draw_others(axes: Axes, group: CellGroup, lines: Lines, key: str) -> None:
    """Draw the other methods of a group as dashed lines across."""
    swept = [cell for _, rows in lines for cell in rows.index]
    others = group.rows[(group.rows["role"] == "method") & ~group.rows.index.isin(swept)]
    for colour, (_, row) in zip(cycle(COLOURS[1:]), others.iterrows(), strict=False):
        if pd.notna(row[key]):
            axes.axhline(row[key], color=colour, ls=DASHES, lw=1.2, label=str(row["label"]))


def _draw_printed(axes: Axes, chart: PaperChart, task: str, key: str) -> Iterator[float]:
    """Draw the paper's values of a figure, and yield their places on the x axis."""
    for stated in chart.printed:
        if stated.key != key:
            continue
        table = printed(stated.tables.get(task) or stated.tables["default"])
        rows = table.rows[(table.rows[list(stated.rows)] == pd.Series(stated.rows)).all(axis=1)]
        for value, part in rows.groupby(stated.by) if stated.by else [("", rows)]:
            x, y = part[stated.x].astype(float), part[stated.y].astype(float)
            label = stated.label.format(model=table.layout.model, by=value)
            axes.plot(x, y, color="0.6", ls=DASHES, marker="o", ms=3, label=label)
            yield from x
