"""MuLo-SD's Figs. 8 and 9: quality against speed-up, for MuLo-SD over tau and for other methods.

Each figure has a table of its values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stridebench.reports.papers.drawing import COLOURS, QUALITIES, curve, legend, side_by_side
from stridebench.reports.papers.measured import Measured, Run, plain
from stridebench.reports.papers.paper_files import published
from stridebench.reports.papers.registry import figure, sheet
from stridebench.reports.plot_style import OFFSET
from stridebench.reports.text_table import TextTable, measured_text

UNTRAINED = ("repeat", "bilinear")
DECODING = ("samplers", "factor", "window", "draft_window")
RADIUS = ("radius", "samplers", "factor")
TITLES = {
    "fig8": "Fig. 8: Pareto fronts by tau",
    "fig9": "Fig. 9: radius of the local expansion",
}


@dataclass(frozen=True)
class Line:
    """Cells joined by a curve.

    Args:
        label: of the curve.
        rows: the cells.
        marks: texts at the points.
        swept: whether they are MuLo-SD's.
    """

    label: str
    rows: pd.DataFrame
    marks: tuple[str, ...]
    swept: bool = True

    @property
    def cells(self) -> dict[str, str]:
        """Return the cells by their marks."""
        return dict(zip(self.marks, map(str, self.rows.index), strict=True))


def taus(run: Run, group: Measured) -> list[Line]:
    """Return the sweeps over tau that differ in samplers, scale or window only."""
    return families(run, group, DECODING)


def radii(run: Run, group: Measured) -> list[Line]:
    """Return the sweeps over tau at each radius, cell by cell as published, with trained samplers."""
    lines = families(run, group, RADIUS)
    return [line for line in lines if option(line.rows["options"].iloc[0], "samplers") not in UNTRAINED]


def option(options: Mapping[str, Any], key: str) -> Any:
    """Return a parameter of MuLo-SD, the published one where the run stored none."""
    return options.get(key, published("mulo_sd")[key])


def families(run: Run, group: Measured, varied: Sequence[str]) -> list[Line]:
    """Return sweeps over tau in its order: one line a value of the varied options, the others as published.

    The suite's role ``samplers`` replaces published options.
    """
    fixed = {**published("mulo_sd"), **run.roles.get("samplers", {})}
    lines: dict[tuple[Any, ...], list[tuple[float, str]]] = {}
    for cell, options in group.rows.loc[group.rows["method"] == "mulo_sd", "options"].items():
        if all(option(options, key) == value for key, value in fixed.items() if key not in varied):
            values = tuple(option(options, key) for key in varied)
            lines.setdefault(values, []).append((float(options["tau"]), str(cell)))
    return [
        Line(
            _label(fixed, varied, values),
            group.rows.loc[[cell for _, cell in sorted(line)]],
            tuple(f"{tau:g}" for tau, _ in sorted(line)),
        )
        for values, line in lines.items()
    ]


def _label(published: Mapping[str, Any], varied: Sequence[str], values: Sequence[Any]) -> str:
    """Name the first option always, the others where they are not as published."""
    pairs = list(zip(varied, values, strict=True))
    return ", ".join(f"{key} {value}" for i, (key, value) in enumerate(pairs) if not i or value != published[key])


def others(group: Measured) -> list[Line]:
    """Return the other methods, the slowest cell of each first, and autoregressive decoding."""
    rows = group.rows[(group.rows["method"] != "mulo_sd") & group.rows["speedup"].notna()]
    lines = []
    for method, part in rows.sort_values("speedup", kind="stable").groupby("method", sort=False):
        marks = tuple(str(label).removeprefix(str(method)).strip() for label in part["label"])
        label = str(method) if len(part) > 1 else str(part["label"].iloc[0])
        if part["role"].eq("baseline").all():
            label = "AR"
        lines.append(Line(label, part, marks if len(part) > 1 else ("",), swept=False))
    return lines


def qualities(group: Measured) -> list[str]:
    """Return the qualities that at least two cells have."""
    return [key for key in QUALITIES if key in group.rows and group.rows[key].notna().sum() > 1]


def timed(rows: pd.DataFrame) -> pd.Series[bool]:
    """Return which rows have a speed-up; none where the run has no baseline."""
    return rows.get("speedup", pd.Series(math.nan, rows.index)).notna()


def _lines(group: Measured, sweeps: Sequence[Line]) -> list[Line]:
    """Return the lines of a figure; none where no sweep was timed or no quality measured."""
    sweeps = [line for line in sweeps if timed(line.rows).any()]
    return [*sweeps, *others(group)] if sweeps and qualities(group) else []


def _table(group: Measured, name: str, sweeps: Sequence[Line]) -> list[TextTable]:
    lines = [
        {
            "line": line.label,
            "tau, or setting": mark or "-",
            "wall speed-up": measured_text(row, "speedup", digits=3),
            **{QUALITIES[key]: measured_text(row, key, digits=4) for key in qualities(group)},
        }
        for line in _lines(group, sweeps)
        for mark, (_, row) in zip(line.marks, line.rows.iterrows(), strict=True)
    ]
    notes = ["the values that the figure draws; the paper prints none of its own; curves go from small tau to large"]
    return plain(f"MuLo-SD, supplement, {TITLES[name]} | {group.title}", lines, notes, labels=2)


def draw(group: Measured, name: str, sweeps: Sequence[Line]) -> Iterator[Figure]:
    """Draw one panel a quality; nothing where there is none, or no sweep was timed against a baseline."""
    lines, keys = _lines(group, sweeps), qualities(group)
    if not lines:
        return
    drawn, panels = side_by_side(len(keys), TITLES[name], group.title)
    for axes, key in zip(panels, keys, strict=True):
        for colour, line in zip(cycle(COLOURS), lines, strict=False):
            _draw(axes, line, key, colour)
        axes.set(xlabel="speed-up over AR", ylabel=QUALITIES[key])
    legend(drawn, panels[0])
    yield drawn


def _draw(axes: Axes, line: Line, key: str, colour: str) -> None:
    """Draw a curve, or a diamond for a single cell that is not MuLo-SD's."""
    if len(line.rows) == 1 and not line.swept:
        axes.plot(line.rows["speedup"], line.rows[key], "D", ms=7, color=colour, label=line.label)
        return
    curve(axes, line.rows["speedup"], line.rows, key, line.label, colour)
    for (_, row), mark in zip(line.rows.iterrows(), line.marks, strict=True):
        if pd.notna(row["speedup"]) and pd.notna(row[key]):
            axes.annotate(mark, (row["speedup"], row[key]), (3, 3), textcoords=OFFSET, fontsize=7)


def _register(name: str, sweeps: Callable[[Run, Measured], list[Line]]) -> None:
    """Register a figure and the table of its values."""
    sheet(f"mulo_sd_{name}")(
        lambda run: [filled_table for group in run.groups for filled_table in _table(group, name, sweeps(run, group))]
    )
    figure(f"mulo_sd_{name}")(
        lambda run: (drawn for group in run.groups for drawn in draw(group, name, sweeps(run, group)))
    )


_register("fig8", taus)
_register("fig9", radii)
