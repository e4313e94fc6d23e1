"""MuLo-SD's Figs. 8 and 9: quality against speed-up, MuLo-SD swept over tau, other methods beside it.

Each figure has a sheet of the values that it draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.papers.drawing import COLOURS, QUALITIES, curve, legend, save_each, side_by_side
from reports.papers.measured import Measured, shown
from reports.papers.mulo_sd.stages import FACTOR, columns
from reports.plot_style import OFFSET
from reports.text_table import TextTable

if TYPE_CHECKING:
    from harness.record.store import Store

PUBLISHED = {
    **{"samplers": "mulo-2x", "factor": FACTOR, "radius": 3, "window": 0, "draft_window": 0},
    **{"band": 4, "k": 0, "delta": 0.1, "recompute": False},
}
"""MuLo-SD at 2x as its paper's sweeps over tau have it, and as we run what it leaves open (the band, the entries of
drafts that stay). A run that did not store a parameter has it so."""
UNTRAINED = ("repeat", "bilinear")
DECODING = ("samplers", "factor", "window", "draft_window")
TITLES = {
    "fig8": "Fig. 8: Pareto fronts by tau",
    "fig9": "Fig. 9: radius of the local expansion",
}


@dataclass(frozen=True)
class Line:
    """Cells joined by a curve. marks: what is written at each; swept: whether they are MuLo-SD's."""

    label: str
    rows: pd.DataFrame
    marks: tuple[str, ...]
    swept: bool = True


def by_tau(store: Store, groups: Sequence[Measured]) -> list[TextTable]:
    """The values of Fig. 8."""
    return [found for group in groups for found in _sheet(group, "fig8", taus(group))]


def by_radius(store: Store, groups: Sequence[Measured]) -> list[TextTable]:
    """The values of Fig. 9."""
    return [found for group in groups for found in _sheet(group, "fig9", radii(group))]


def draw_by_tau(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """MuLo-SD Fig. 8: a panel a quality; a curve for each pair of samplers and each way of drawing cells."""
    return save_each(groups, outdir, "fig8", lambda group: figure(group, "fig8", taus(group)))


def draw_by_radius(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """MuLo-SD Fig. 9: the same, a curve for each radius of local expansion."""
    return save_each(groups, outdir, "fig9", lambda group: figure(group, "fig9", radii(group)))


def taus(group: Measured) -> list[Line]:
    """Sweeps over tau that differ in samplers, scale or window alone."""
    return families(group, DECODING)


def radii(group: Measured) -> list[Line]:
    """Sweeps over tau at each radius, cell by cell as published, with trained samplers."""
    return [
        line
        for line in families(group, ("radius", "samplers", "factor"))
        if option(line.rows["options"].iloc[0], "samplers") not in UNTRAINED
    ]


def option(options: Mapping[str, Any], key: str) -> Any:
    """A parameter of MuLo-SD, as published where the run did not store it."""
    return options.get(key, PUBLISHED[key])


def families(group: Measured, varied: Sequence[str]) -> list[Line]:
    """Sweeps of MuLo-SD over tau, in its order: a line for each value of the options varied, others as published."""
    lines: dict[tuple[Any, ...], list[tuple[float, str]]] = {}
    for cell, options in group.rows.loc[group.rows["method"] == "mulo_sd", "options"].items():
        if all(option(options, key) == value for key, value in PUBLISHED.items() if key not in varied):
            values = tuple(option(options, key) for key in varied)
            lines.setdefault(values, []).append((float(options["tau"]), str(cell)))
    return [
        Line(_label(varied, values), group.rows.loc[[cell for _, cell in sorted(line)]], _marks(sorted(line)))
        for values, line in lines.items()
    ]


def _label(varied: Sequence[str], values: Sequence[Any]) -> str:
    """The first always, the others where they are not as published."""
    pairs = list(zip(varied, values, strict=True))
    return ", ".join(f"{key} {value}" for i, (key, value) in enumerate(pairs) if not i or value != PUBLISHED[key])


def _marks(line: Sequence[tuple[float, str]]) -> tuple[str, ...]:
    return tuple(f"{tau:g}" for tau, _ in line)


def rivals(group: Measured) -> list[Line]:
    """The other methods, the slowest cell of each first, and autoregressive decoding."""
    rows = group.rows[(group.rows["method"] != "mulo_sd") & group.rows["speedup"].notna()]
    lines = []
    for method, found in rows.sort_values("speedup", kind="stable").groupby("method", sort=False):
        base = found["role"].eq("baseline").all()
        marks = tuple(str(label).removeprefix(str(method)).strip() for label in found["label"])
        label = "AR" if base else str(method) if len(found) > 1 else str(found["label"].iloc[0])
        lines.append(Line(label, found, marks if len(found) > 1 else ("",), swept=False))
    return lines


def qualities(group: Measured) -> list[str]:
    """Those that two cells or more have."""
    return [key for key in QUALITIES if key in group.rows and group.rows[key].notna().sum() > 1]


def _sheet(group: Measured, name: str, lines: Sequence[Line]) -> list[TextTable]:
    keys, lines = qualities(group), [line for line in lines if timed(line.rows).any()]
    if not lines or not keys:
        return []
    rows = [
        [line.label, mark or "-", shown(row, ("speedup",), 3), *(shown(row, (key,), 4) for key in keys)]
        for line in [*lines, *rivals(group)]
        for mark, (_, row) in zip(line.marks, line.rows.iterrows(), strict=True)
    ]
    heads = columns(("line", "tau, or setting", "wall speed-up", *(QUALITIES[key] for key in keys)))
    notes = ["the values that the figure draws; the paper prints none of its own; curves go from small tau to large"]
    return [TextTable(f"MuLo-SD, supplement, {TITLES[name]} | {group.title}", heads, rows, notes)]


def timed(rows: pd.DataFrame) -> pd.Series[bool]:
    """Which rows have a speed-up; none where nothing was compared with a baseline."""
    return rows.get("speedup", pd.Series(math.nan, rows.index)).notna()


def figure(group: Measured, name: str, lines: Sequence[Line]) -> Figure | None:
    """A panel for each quality; None: there is none, or no sweep was timed against a baseline."""
    keys, lines = qualities(group), [line for line in lines if timed(line.rows).any()]
    if not lines or not keys:
        return None
    drawn, panels = side_by_side(len(keys), group, TITLES[name])
    for axes, key in zip(panels, keys, strict=True):
        for colour, line in zip(cycle(COLOURS), [*lines, *rivals(group)], strict=False):
            _draw(axes, line, key, colour)
        axes.set(xlabel="speed-up over AR", ylabel=QUALITIES[key])
    legend(drawn, panels[0])
    return drawn


def _draw(axes: Axes, line: Line, key: str, colour: str) -> None:
    """A curve, or a diamond for a single cell that is not MuLo-SD's."""
    if len(line.rows) == 1 and not line.swept:
        axes.plot(line.rows["speedup"], line.rows[key], "D", ms=7, color=colour, label=line.label)
        return
    curve(axes, line.rows["speedup"], line.rows, key, line.label, colour)
    for (_, row), mark in zip(line.rows.iterrows(), line.marks, strict=True):
        if pd.notna(row["speedup"]) and pd.notna(row[key]):
            axes.annotate(mark, (row["speedup"], row[key]), (3, 3), textcoords=OFFSET, fontsize=7)
