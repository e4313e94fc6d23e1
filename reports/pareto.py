"""Speed-up against quality of approximate methods that are swept, both with intervals; a PNG and a repeatable SVG.

A group of comparable cells has a panel if it holds an approximate method with three values of one parameter. Its
quality is the score that stands for the task, or without one the agreement with the baseline at T = 0 and the
log-probability less the baseline's at T > 0.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import textalloc
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from stridebench.reports.quality import main_score, title_of
from stridebench.reports.tables import GROUP, setting_of

# How every plot looks: colours that colour-blind readers tell apart, and fonts that a PDF embeds.
# The colours are those of Okabe and Ito, "Color Universal Design" (2008). In grey some of them are alike, so a plot
# never tells methods apart by colour alone: a point has its name beside it, and each curve of a panel has a marker
# of its own.


STYLE: Any = {
    "svg.hashsalt": "stridebench",
    "svg.fonttype": "path",
    "font.size": 10,
    "text.parse_math": False,
    "pdf.fonttype": 42,  # TrueType fonts are embedded, as publishers ask; type 3 is refused by some
    "ps.fonttype": 42,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
DASHES = (0, (4, 2))
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#666666", "#8C564B", "#B8A000")
"""One a method: blue, orange, green, purple, sky, grey, brown, olive."""
STYLE_MARKERS = dict(zip(COLOURS, "os^Dv<>p", strict=True))
"""The marker of a curve of each colour."""
BROKEN = "#D55E00"
"""Vermilion, which is kept for broken cells."""
OFFSET: Any = "offset points"


MARKERS = {"exact": "o", "approximate": "o", "broken": "X", "unverified": "s"}


@dataclass(frozen=True)
class Panel:
    """Cells of one group with a speed-up and one quality; ``floor``: the same of a second AR set, or None."""

    title: str
    quality: str
    ylabel: str
    cells: pd.DataFrame
    floor: pd.Series[Any] | None


@dataclass(frozen=True)
class Sweep:
    """Rows that differ in one parameter, in the order of its values."""

    parameter: str
    values: list[float]
    rows: list[int]


def panels(frame: pd.DataFrame) -> Iterator[Panel]:
    """Yield a panel for each group with a sweep of an approximate method."""
    done = frame[(frame["status"] == "done") & frame.get("speedup", pd.Series(np.nan, frame.index)).notna()]
    for _, rows in done.groupby(list(GROUP), sort=False, dropna=False):
        title = setting_of(rows.iloc[0])
        key, label = ("logprob_diff", "log-probability less AR's, nat/token")
        if not rows["temperature"].iloc[0]:
            key, label = ("agreement", "agreement with AR")
        if score := main_score(rows):
            key, label = score, title_of(score)
        measured = rows[rows[key].notna()] if key in rows else rows.iloc[:0]
        floor = measured[measured["role"] == "floor"]
        cells = measured[measured["role"] != "floor"].reset_index(drop=True)
        if any(cells.loc[sweep.rows, "verdict"].eq("approximate").any() for sweep in sweeps(cells)):
            yield Panel(title, key, label, cells, floor.iloc[0] if len(floor) else None)


def _size(panel: Panel) -> str:
    """Return the number of prompts behind the points, as the tables state it."""
    columns = [key for key in ("speedup_n", f"{panel.quality}_n") if key in panel.cells]
    numbers = panel.cells[columns].stack().dropna().astype(int)
    if numbers.empty:
        return ""
    return f"n = {numbers.min()}" if numbers.min() == numbers.max() else f"n = {numbers.min()} to {numbers.max()}"


def write(frame: pd.DataFrame, outdir: Path) -> list[Path]:
    """Write pareto.png and pareto.svg; returns their paths, or none if no approximate method is swept."""
    return save(lambda: draw(frame), outdir, ("pareto.png", "pareto.svg"))


def save(draw_it: Callable[[], Figure | None], outdir: Path, names: Sequence[str]) -> list[Path]:
    """Draw a figure, and write it byte for byte repeatably under names that end in .png or .svg.

    Returns:
        The paths; none if there is nothing to draw, or, with a warning, if its values cannot be drawn.
    """
    try:
        figure = draw_it()
    except (ValueError, OverflowError) as error:  # such as a score of 1e308, which no axis holds
        warnings.warn(f"{names[0]} is left out: its values cannot be drawn ({error})", stacklevel=3)
        return []
    if figure is None:
        return []
    outdir.mkdir(parents=True, exist_ok=True)
    with rc_context(STYLE):
        for name in names:
            repeatable = {"Software": None} if name.endswith(".png") else {"Date": None, "Creator": "stridebench"}
            figure.savefig(outdir / name, metadata=repeatable)
    return [outdir / name for name in names]


def draw(frame: pd.DataFrame) -> Figure | None:
    """Draw a panel for each group with a sweep; return None if there is none."""
    drawn = list(panels(frame))
    if not drawn:
        return None
    columns = min(2, len(drawn))
    rows = -(-len(drawn) // columns)
    with rc_context(STYLE):
        figure = Figure(figsize=(7.2 * columns, 5.2 * rows + 0.5), dpi=150, layout="constrained")
        FigureCanvasAgg(figure)  # names are placed by their size on a canvas
        for i, panel in enumerate(drawn):
            _draw(figure.add_subplot(rows, columns, i + 1), panel)
        figure.legend(handles=_keys(drawn), loc="outside lower center", ncols=7, frameon=False)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for axes, panel in zip(figure.axes, drawn, strict=True):
            for other in figure.axes:
                other.set_visible(other is axes)  # textalloc draws the figure once a call
            _label(axes, panel)
        for axes in figure.axes:
            axes.set_visible(True)
    return figure


def _draw(axes: Axes, panel: Panel) -> None:
    cells, key = panel.cells, panel.quality
    axes.set(
        title=", ".join(filter(None, [panel.title, _size(panel)])),
        xlabel="speed-up over AR (median, 95 % interval)",
        ylabel=panel.ylabel,
    )
    axes.axvline(1, color="0.8", lw=1, zorder=0)
    axes.grid(color="0.94", zorder=0)
    axes.margins(x=0.1, y=0.18)
    if panel.floor is not None and _has_band(panel):
        axes.axhspan(panel.floor[f"{key}_low"], panel.floor[f"{key}_high"], color="0.93", zorder=0)
    names = sorted(set(cells["method"]) - {"autoregressive"})
    colours = {"autoregressive": "0.25"} | {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    for _, row in cells.iterrows():
        colour = BROKEN if row["verdict"] == "broken" else colours[row["method"]]
        x, y = row["speedup"], row[key]
        axes.errorbar(x, y, _bar(row, key), _bar(row, "speedup"), color=colour, elinewidth=1, alpha=0.4, zorder=2)
        face = colour if row["verdict"] in ("exact", "broken") else "white"
        marker = "D" if row["role"] == "baseline" else MARKERS.get(row["verdict"], "s")
        axes.plot(x, y, marker, ms=8, mfc=face, mec=colour, mew=1.5, zorder=4)
    for sweep in sweeps(cells):
        line = cells.loc[sweep.rows]
        axes.plot(line["speedup"], line[key], color=colours[line["method"].iloc[0]], lw=1.2, zorder=1)


def _has_band(panel: Panel) -> bool:
    return panel.floor is not None and bool(pd.notna(panel.floor[f"{panel.quality}_low"]))


def _bar(row: pd.Series[Any], key: str) -> list[list[float]] | None:
    low, high = row[f"{key}_low"], row[f"{key}_high"]
    return None if pd.isna(low) else [[max(0.0, row[key] - low)], [max(0.0, high - row[key])]]


def sweeps(cells: pd.DataFrame) -> list[Sweep]:
    """Sets of at least three cells of one method that differ in one numeric parameter alone."""
    lines: dict[tuple[str, str, str], list[tuple[float, int]]] = {}
    for i, (method, params) in enumerate(zip(cells["method"], map(json.loads, cells["params"]), strict=True)):
        for name, value in params.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                rest = json.dumps({**params, name: None}, sort_keys=True)
                lines.setdefault((method, name, rest), []).append((float(value), i))
    return [
        Sweep(name, [value for value, _ in sorted(line)], [i for _, i in sorted(line)])
        for (_, name, _), line in lines.items()
        if len(line) >= 3
    ]


def _names(cells: pd.DataFrame) -> list[str]:
    names = ["AR" if row["role"] == "baseline" else str(row["label"]) for _, row in cells.iterrows()]
    for sweep in sweeps(cells):
        for i, value in zip(sweep.rows[1:], sweep.values[1:], strict=True):
            names[i] = f"{sweep.parameter}={value:g}"
    return names


def _label(axes: Axes, panel: Panel) -> None:
    """Write a name next to every point. Names cover no point and no other name; a line leads to each."""
    x, y = (panel.cells[key].to_numpy(dtype=float) for key in ("speedup", panel.quality))
    axes.autoscale(False)
    textalloc.allocate(
        axes,
        x,
        y,
        _names(panel.cells),
        x_scatter=x,
        y_scatter=y,
        textsize=9,
        linecolor="0.6",
        linewidth=0.7,
        priority_strategy="largest",
        min_distance=0.02,
        margin=0.015,
        max_distance=0.35,
        nbr_candidates=600,
        path_effects=[withStroke(linewidth=3, foreground="white", alpha=0.8)],
        zorder=5,
    )


def _keys(drawn: Sequence[Panel]) -> list[Artist]:
    """Return the legend of the panels."""
    looks: dict[str, dict[str, Any]] = {
        "AR baseline": {"marker": "D", "mfc": "0.25", "mec": "0.25"},
        "exact": {"marker": "o", "mfc": "0.4", "mec": "0.4"},
        "approximate": {"marker": "o", "mfc": "white", "mec": "0.4"},
        "unverified": {"marker": "s", "mfc": "white", "mec": "0.4"},
        "broken": {"marker": "X", "mfc": BROKEN, "mec": BROKEN},
    }
    roles = {role for panel in drawn for role in panel.cells["role"]}
    present = {verdict for panel in drawn for verdict in panel.cells.loc[panel.cells["role"] != "baseline", "verdict"]}
    present = {"unverified" if verdict == "unverified in batches" else verdict for verdict in present}
    present |= {"AR baseline"} if "baseline" in roles else set()
    keys: list[Artist] = [
        Line2D([], [], ls="", ms=8, mew=1.6, label=name, **look) for name, look in looks.items() if name in present
    ]
    if any(_has_band(panel) for panel in drawn):
        keys.append(Patch(color="0.93", label="AR against AR, 95 %"))
    return keys
