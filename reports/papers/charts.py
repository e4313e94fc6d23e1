"""Draws the charts of the papers' YAML files, and fills their sheets: one function each, from the rows of a source.

A source yields the rows of a figure, one a point: ``line`` is the label of the curve, bar or row that a point belongs
to, and figures of the summary have their intervals next to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from stridebench.reports.papers.drawing import COLOURS, QUALITIES, SCR, curve, error_bars, legend, side_by_side
from stridebench.reports.papers.measured import CELL, CellGroup, MeasuredRun, fits, plain
from stridebench.reports.papers.paper_files import (
    ChartPanel,
    PaperChart,
    PaperSheet,
    SheetColumn,
    XAxis,
    printed,
    published,
)
from stridebench.reports.pareto import DASHES, OFFSET
from stridebench.reports.text_table import UNMEASURED, TextTable, measured_text

LABELS = {
    "scr": SCR,
    "seconds": "seconds a picture",
    "speedup": "wall speed-up",
    "passes_per_token": "target passes / output token",
    "total_variation": "total variation",
    "logprob_diff": "log p less AR's, nat a token",
    **QUALITIES,
}
"""Labels of panels; a score without one has its name."""


@dataclass(frozen=True)
class ChartData:
    """The points of one figure.

    Args:
        title: the measured cells, below the chart's title.
        rows: one a point. ``mark`` is a text at the point, ``colour`` shares a colour between lines, and ``ends`` is
            where a dashed line across a panel with ``ends`` stands.
        task: chooses among the printed tables of the chart.
        across: rows of references by their label, which are lines across; one with the x of the chart is a point too.
        others: rows of other methods, which are coloured lines across.
        printed: the paper's values: ``label``, ``key`` of the panel, ``x`` and ``y``.
    """

    title: str
    rows: pd.DataFrame
    task: str = ""
    across: Mapping[str, pd.Series[Any]] = field(default_factory=dict)
    others: pd.DataFrame | None = None
    printed: pd.DataFrame | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


Source = Callable[[MeasuredRun], Iterable[ChartData]]
SOURCES: dict[str, Source] = {}
"""Functions that yield the rows of charts and sheets, by the names in the papers' YAML files."""


def source(name: str) -> Callable[[Source], Source]:
    """Register a source."""

    def register(rows: Source) -> Source:
        SOURCES[name] = rows
        return rows

    return register


class _Panel(NamedTuple):
    spec: ChartPanel
    x: XAxis
    key: str | None
    rows: pd.DataFrame
    title: str


def draw_chart(chart: PaperChart, run: MeasuredRun) -> Iterator[Figure]:
    """Draw a chart for each figure of its source.

    Panels without a measured figure say so, or are left out (``missing: panel``); with ``missing: figure`` there is no
    chart at all.
    """
    for data in SOURCES[chart.source](run) if chart.source else _cells(chart, run):
        for column, text in chart.rows.items():
            data = replace(data, rows=data.rows[data.rows[column] == text])
        if data.rows.empty or data.rows[chart.x.key].nunique() < chart.least:
            continue
        panels = list(_panels(chart, data))
        if chart.missing == "panel":
            panels = [panel for panel in panels if panel.key]
        if not panels or (chart.missing == "figure" and not all(panel.key for panel in panels)):
            continue
        drawn, axes = side_by_side(len(panels), chart.title.format(**data.fields), data.title)
        for one, panel in zip(axes, panels, strict=True):
            if panel.key is None:
                one.text(0.5, 0.5, UNMEASURED, ha="center", transform=one.transAxes)
                one.set_axis_off()
            else:
                _draw(one, chart, panel, data)
            if chart.legend == "inside":
                one.legend(frameon=False, fontsize=8)
        if chart.legend == "below":
            legend(drawn, axes[0])
        yield drawn


def _panels(chart: PaperChart, data: ChartData) -> Iterator[_Panel]:
    """Yield the panels: one for each figure, or for each value of the column that ``facets`` names."""
    for spec in chart.panels:
        x = spec.x or chart.x
        if spec.keys == ("qualities",):
            yield from (_Panel(spec, x, key, data.rows, "") for key in qualities(data.rows))
        elif chart.facets:
            parts = data.rows.groupby(chart.facets, sort=False)
            yield from (_Panel(spec, x, spec.keys[0], part, str(name)) for name, part in parts)
        else:
            yield _Panel(spec, x, _measured(data.rows, spec.keys), data.rows, spec.note.format(**data.fields))


def _measured(rows: pd.DataFrame, keys: Iterable[str]) -> str | None:
    """Return the first figure that was measured; a quality must be there for all points."""
    named = [quality_of(rows) if key == "quality" else key for key in keys]
    return next((key for key in named if key and key in rows and rows[key].notna().any()), None)


def quality_of(rows: pd.DataFrame) -> str | None:
    """Return the first quality that all rows have, or None if they share none."""
    return next((key for key in QUALITIES if key in rows and rows[key].notna().all()), None)


def _draw(axes: Axes, chart: PaperChart, panel: _Panel, data: ChartData) -> None:
    """Draw a panel: its lines, the references across, the paper's values, and the labels of both axes."""
    spec, x, key = panel.spec, panel.x, str(panel.key)
    names = list(dict.fromkeys(panel.rows[x.key])) if x.scale == "names" else []
    places = {name: place for place, name in enumerate(names)} or _places(x, panel.rows)
    rows = panel.rows.assign(at=panel.rows[x.key].map(places) if places else panel.rows[x.key])
    if spec.x:
        rows = rows.sort_values("at", kind="stable")
    shared = rows["colour"] if "colour" in rows else rows["line"]
    colours = dict(zip(dict.fromkeys(shared), cycle(COLOURS), strict=False))
    rows = rows.assign(shade=shared.map(colours))
    lines = [(str(line), part, str(part["shade"].iloc[0])) for line, part in rows.groupby("line", sort=False)]
    MARKS[chart.mark](axes, lines, key)
    for label, row in data.across.items():
        _draw_across(axes, label, row, x.key, key)
    others = pd.DataFrame() if data.others is None else data.others
    for colour, (_, row) in zip(cycle(COLOURS[1:]), others.iterrows(), strict=False):
        if pd.notna(row[key]):
            axes.axhline(row[key], color=colour, ls=DASHES, lw=1.2, label=str(row["label"]))
    stated = [*_draw_printed(axes, chart, data, key, panel.title)]
    for _, part, colour in lines if spec.ends else ():
        if pd.notna(part["ends"].iloc[0]):
            axes.axvline(part["ends"].iloc[0], color=colour, ls=DASHES, lw=1)
    if spec.level is not None:
        (axes.axvline if chart.mark == "dots" else axes.axhline)(spec.level, color="0.6", lw=0.8, zorder=0)
    label = spec.label.format(**data.fields) or LABELS.get(key, key.partition(".")[2].replace("_", " "))
    if chart.mark in LYING:
        axes.set(xlabel=label, ylim=(len(lines) - 0.5, -0.5))
    else:
        axes.set_xlabel(x.label.format(**data.fields))
        _label_x(axes, x, places, [*stated, *rows["at"]])
        axes.set(ylabel=label, yscale=spec.scale)
    if spec.limits:
        axes.set_ylim(*spec.limits)
    axes.set_title(panel.title, fontsize=8)


def _draw_across(axes: Axes, label: str, row: pd.Series[Any], x: str, key: str) -> None:
    if pd.isna(row.get(key)):
        return
    axes.axhline(float(row[key]), color="0.6", ls=DASHES, lw=1.1, label=None if x in row else label)
    if x in row:
        axes.plot(row[x], float(row[key]), "D", color="0.25", ms=6, zorder=4, label=label)
        bounds = [row.get(f"{key}_{end}") for end in ("low", "high")]
        if all(pd.notna(bound) for bound in bounds):
            axes.axhspan(*map(float, bounds), color="0.93", zorder=0)  # type: ignore[arg-type]  # they are numbers


def _draw_printed(axes: Axes, chart: PaperChart, data: ChartData, key: str, facet: str) -> Iterator[float]:
    """Draw the paper's values of a figure, and yield their places on the x axis."""
    for stated in chart.printed:
        if stated.key == key:
            table = printed(stated.tables.get(data.task) or stated.tables["default"])
            rows = table.rows[(table.rows[list(stated.rows)] == pd.Series(stated.rows)).all(axis=1)]
            curves: Iterable[tuple[Any, pd.DataFrame]] = rows.groupby(stated.by) if stated.by else [("", rows)]
            for value, part in curves:
                x = part[stated.x].astype(float) if stated.x else pd.Series(stated.at, part.index)
                label = stated.label.format(model=table.layout.model, by=value)
                style: dict[str, Any] = {"marker": "o", "ms": 3} if len(part) > 1 else {"marker": "x", "ms": 6}
                axes.plot(x, part[stated.y].astype(float), color="0.6", ls=DASHES, label=label, **style)
                yield from x
    if data.printed is not None:
        series = data.printed[data.printed["key"].isin([key, facet])].groupby("label", sort=False)
        for shade, (name, points) in zip(cycle(("0.45", "0.6", "0.75")), series, strict=False):
            axes.plot(points["x"], points["y"], "o", ms=4, color=shade, label=str(name))


def _cells(chart: PaperChart, run: MeasuredRun) -> Iterator[ChartData]:
    """Yield the cells of each group with two values on the x axis."""
    for group in run.groups:
        lines = _lines(chart, group)
        if lines:
            rows = pd.concat([part.assign(line=name) for name, part in lines])
            others = group.rows[(group.rows["role"] == "method") & ~group.rows.index.isin(rows.index)]
            counts = {"prompts": group.rows["prompts"].max(), "pictures": group.rows["n_ok"].max()}
            yield ChartData(group.title, rows, group.task, others=others if chart.others else None, fields=counts)


def _lines(chart: PaperChart, group: CellGroup) -> list[tuple[str, pd.DataFrame]]:
    """Return the cells of a chart by the label of their line, each in the order of the x axis.

    The lines of a column of the summary are labels. Those of an option are cells that differ in this option alone.
    """
    key = chart.x.key
    if key in CELL:
        order = group.rows[key].astype(float).map(lambda value: _order(chart.x, value)).sort_values(kind="stable").index
        parts = group.rows.loc[order].groupby("label", sort=False)
        return [(str(name), part) for name, part in parts] if group.rows[key].nunique() > 1 else []
    selection = {"method": chart.method, **(published(chart.method) if chart.published else {})}
    selection.pop(key, None)
    rows = fits(group.rows, **selection)
    values = [float(options.get(key, math.nan)) * chart.x.factor for options in rows["options"]]
    rows = rows.assign(**{key: pd.Series(values, rows.index, dtype=float)})
    if chart.published:
        return [(chart.line, rows.sort_values(key))] if len(rows) > 1 else []
    settings: dict[str, list[Any]] = {}
    for name, options in rows["options"].items():
        rest = str(sorted((other, str(value)) for other, value in options.items() if other != key))
        settings.setdefault(rest, []).append(name)
    named: dict[str, pd.DataFrame] = {}
    for rest, names in settings.items():
        line = rows.loc[names]
        title = ", ".join(f"{option} {line['options'].iloc[-1][option]}" for option in chart.lines)
        if len(names) > 1:
            named[rest if title in named else title] = line.sort_values(key)
    return list(named.items())


def fill_sheet(spec: PaperSheet, run: MeasuredRun) -> Iterator[TextTable]:
    """Fill a sheet for each figure of its source: one row a point."""
    for data in SOURCES[spec.source](run):
        columns = [
            column.model_copy(update={"title": QUALITIES[key], "key": key}) if column.key == "qualities" else column
            for column in spec.columns
            for key in (qualities(data.rows) if column.key == "qualities" else [column.key])
            if not column.optional or key in data.rows
        ]
        lines = [
            {column.title.format(**data.fields): _text(row, column) for column in columns}
            for _, row in data.rows.iterrows()
        ]
        yield from plain(spec.title.format(cells=data.title), lines, spec.notes, spec.labels)


def _text(row: pd.Series[Any], column: SheetColumn) -> str:
    value = row.get(column.key)
    if isinstance(value, str):
        return value or "-"
    if column.format:
        return "-" if pd.isna(value) else column.format.format(value)
    return measured_text(row, column.key, digits=column.digits)


def qualities(rows: pd.DataFrame) -> list[str]:
    """Return the qualities that at least two cells have."""
    return [key for key in QUALITIES if key in rows and rows[key].notna().sum() > 1]


def _places(x: XAxis, rows: pd.DataFrame) -> dict[Any, int]:
    """Return the place of each value on an axis of places; none on other axes."""
    if x.scale != "places":
        return {}
    return {value: i for i, value in enumerate(sorted(set(rows[x.key].astype(float)), key=lambda v: _order(x, v)))}


def _order(x: XAxis, value: float) -> float:
    return math.inf if x.zero and value == 0 else value


def _label_x(axes: Axes, x: XAxis, places: Mapping[Any, int], values: Iterable[float]) -> None:
    if x.scale == "places":
        axes.set_xticks(list(places.values()), [x.zero if x.zero and not value else f"{value:g}" for value in places])
    elif x.scale == "names":
        turned: dict[str, Any] = {"rotation": x.rotate, "ha": "right"} if x.rotate else {}
        axes.set_xticks(list(places.values()), list(places), fontsize=7, **turned)
    elif x.scale == "whole":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    elif x.scale != "linear":
        axes.set_xscale("log", base=2 if x.scale == "log2" else 10)
    if x.ticks:
        ticks = sorted(set(values))
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=7)
        axes.minorticks_off()


# Marks: functions that draw the lines of a panel, each with its label, rows and colour

ColouredLine = tuple[str, pd.DataFrame, str]


def _curves(axes: Axes, lines: Iterable[ColouredLine], key: str) -> None:
    """Draw points joined by lines, with intervals; a line with ``alone`` is a diamond if it has one point."""
    for label, rows, colour in lines:
        if len(rows) == 1 and rows.get("alone", pd.Series(False, rows.index)).iloc[0]:
            axes.plot(rows["at"], rows[key], "D", ms=7, color=colour, label=label)
            continue
        rows = rows[rows[key].notna()]
        if rows.empty:
            continue
        curve(axes, rows["at"], rows, key, label, colour)
        for mark, x, y in zip(rows.get("mark", ()), rows["at"], rows[key], strict=False):
            if mark and pd.notna(x) and pd.notna(y):
                axes.annotate(mark, (x, y), (3, 4), textcoords=OFFSET, fontsize=7)


def _bands(axes: Axes, lines: Iterable[ColouredLine], key: str) -> None:
    """Draw curves whose intervals are shaded."""
    for label, rows, colour in lines:
        rows = rows[rows[key].notna()]
        axes.plot(rows["at"], rows[key], color=colour, marker="o", ms=3, label=label)
        if f"{key}_low" in rows:
            axes.fill_between(rows["at"], rows[f"{key}_low"], rows[f"{key}_high"], color=colour, alpha=0.12, lw=0)


def _points(axes: Axes, lines: Iterable[ColouredLine], key: str) -> None:
    for label, rows, colour in lines:
        axes.plot(rows["at"], rows[key], "o", ms=4, color=colour, label=label)


def _bars(axes: Axes, lines: list[ColouredLine], key: str) -> None:
    """Draw bars with intervals, those of the same place next to each other."""
    beside = len(lines) if pd.concat([rows for _, rows, _ in lines]).groupby("at").size().max() > 1 else 1
    for place, (label, rows, colour) in enumerate(lines):
        at = rows["at"].to_numpy(dtype=float) + 0.8 * (place % beside - (beside - 1) / 2) / beside
        axes.bar(at, rows[key].astype(float), 0.8 / beside, color=colour, label=label)
        if (bars := error_bars(rows, key)).any():
            axes.errorbar(at, rows[key].astype(float), bars, fmt="none", ecolor="0.2", lw=0.8)


def _ranges(axes: Axes, lines: Iterable[ColouredLine], key: str) -> None:
    """Draw values with their intervals, one row a line."""
    for place, (label, rows, colour) in enumerate(lines):
        if rows[key].notna().all():
            axes.errorbar(
                rows[key].astype(float),
                [place],
                xerr=error_bars(rows, key),
                color=colour,
                marker="o",
                ms=5,
                capsize=3,
                label=label,
            )
    axes.set_yticks([])
    axes.grid(color="0.94", zorder=0)


def _dots(axes: Axes, lines: list[ColouredLine], key: str) -> None:
    """Draw a dot an output (``values``), a bar for all outputs, and their interval; one row a line."""
    for place, (_, rows, _) in enumerate(lines):
        row = rows.iloc[0]
        heights = place + (np.arange(len(row["values"])) % 5 - 2) * 0.08  # separates the dots of a row
        axes.plot(row["values"], heights, "o", ms=4, mfc="none", color=COLOURS[0], alpha=0.7)
        axes.plot(row[key], place, "|", ms=18, mew=2, color=COLOURS[1])
        bounds = row.reindex([f"{key}_low", f"{key}_high"]).astype(float)
        if bounds.notna().all():
            axes.plot(bounds.tolist(), [place + 0.3] * 2, color=COLOURS[1], lw=1.5, solid_capstyle="butt")
    axes.set_yticks(range(len(lines)), [label for label, _, _ in lines])


MARKS: Mapping[str, Callable[[Axes, list[ColouredLine], str], None]] = {
    "curves": _curves,
    "bands": _bands,
    "points": _points,
    "bars": _bars,
    "ranges": _ranges,
    "dots": _dots,
}
LYING = ("ranges", "dots")
"""Marks whose values lie on the x axis."""
