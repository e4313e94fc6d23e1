"""Pareto plots: speed-up against quality, both with intervals; a PNG and a byte-for-byte repeatable SVG.

A panel for each group of comparable cells and each quality measured there: agreement with the baseline at
T = 0, log-probability less the baseline's at T > 0, and the task's scores.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

from reports.plot_style import DASHES, OFFSET, STYLE
from reports.tables import GROUP

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


@dataclass(frozen=True)
class Place:
    """Where a name may stand: the lower left corner from its point, and its size, in points of type."""

    x: float
    y: float
    width: float
    height: float
    far: int

    def box(self, at: Any, dot: float) -> Bbox:
        """On the canvas, in pixels; ``dot`` pixels a point of type."""
        return Bbox.from_bounds(at[0] + self.x * dot, at[1] + self.y * dot, self.width * dot, self.height * dot)


def panels(frame: pd.DataFrame) -> Iterator[Panel]:
    """A panel for each group and quality that at least two of its cells have."""
    scores = [str(key) for key in frame if str(key).startswith("score.") and f"{key}_low" in frame]
    done = frame[(frame["status"] == "done") & frame.get("speedup", pd.Series(np.nan, frame.index)).notna()]
    for names, rows in done.groupby(list(GROUP), sort=False, dropna=False):
        backbone, dtype, temperature, top_k, task, *_ = names
        title = f"{backbone} {dtype}, T = {temperature:g}, {f'top-k {top_k:g}, ' if top_k else ''}{task}"
        first = ("logprob_diff", "log-probability less AR's, nat/token")
        if not temperature:
            first = ("agreement", "agreement with AR")
        for key, label in (first, *((score, score.removeprefix("score.")) for score in scores)):
            if key in rows and (held := rows[rows[key].notna()]).shape[0] > 1:
                floor = held[held["role"] == "floor"]
                cells = held[held["role"] != "floor"].reset_index(drop=True)
                yield Panel(title, key, label, cells, floor.iloc[0] if len(floor) else None)


def front(x: Sequence[float], y: Sequence[float]) -> list[int]:
    """Indices of the points that no other point beats in both, from slow to fast."""
    order = sorted(range(len(x)), key=lambda i: (-x[i], -y[i]))
    kept: list[int] = []
    for i in order:
        if not kept or y[i] > y[kept[-1]]:
            kept.append(i)
    return kept[::-1]


def write(frame: pd.DataFrame, outdir: Path) -> list[Path]:
    """Write pareto.png and pareto.svg; returns their paths, or none where no cell has a speed-up.

    Args:
        frame: of ``summary.summarise``.
    """
    drawn = list(panels(frame))
    if not drawn:
        return []
    outdir.mkdir(parents=True, exist_ok=True)
    columns = min(2, len(drawn))
    rows = -(-len(drawn) // columns)
    with rc_context(STYLE):
        figure = Figure(figsize=(7.2 * columns, 5.2 * rows + 0.5), dpi=150, layout="constrained")
        canvas = FigureCanvasAgg(figure)
        for i, panel in enumerate(drawn):
            _draw(figure.add_subplot(rows, columns, i + 1), panel)
        figure.legend(handles=_keys(), loc="outside lower center", ncols=7, frameon=False)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for axes, panel in zip(figure.axes, drawn, strict=True):
            _label(axes, panel, canvas.get_renderer())  # type: ignore[no-untyped-call]
        figure.savefig(outdir / "pareto.png", metadata={"Software": None})
        figure.savefig(outdir / "pareto.svg", metadata={"Date": None, "Creator": "stridebench"})
    return [outdir / "pareto.png", outdir / "pareto.svg"]


def _draw(axes: Axes, panel: Panel) -> None:
    cells, key = panel.cells, panel.quality
    axes.set(title=panel.title, xlabel="speed-up over AR (median, 95 % interval)", ylabel=panel.ylabel)
    axes.axvline(1, color="0.8", lw=1, zorder=0)
    axes.grid(color="0.94", zorder=0)
    axes.margins(x=0.1, y=0.18)
    if panel.floor is not None and pd.notna(panel.floor[f"{key}_low"]):
        axes.axhspan(panel.floor[f"{key}_low"], panel.floor[f"{key}_high"], color="0.93", zorder=0)
    colours = _colours(cells["method"])
    for _, row in cells.iterrows():
        colour = "tab:red" if row["verdict"] == "broken" else colours[row["method"]]
        x, y = row["speedup"], row[key]
        axes.errorbar(x, y, _bar(row, key), _bar(row, "speedup"), color=colour, elinewidth=1, alpha=0.4, zorder=2)
        face = colour if row["verdict"] in ("exact", "broken") else "white"
        marker = "D" if row["role"] == "baseline" else MARKERS.get(row["verdict"], "s")
        axes.plot(x, y, marker, ms=8, mfc=face, mec=colour, mew=1.5, zorder=4)
    for sweep in sweeps(cells):
        line = cells.loc[sweep.rows]
        axes.plot(line["speedup"], line[key], color=colours[line["method"].iloc[0]], lw=1.2, zorder=1)
    honest = cells[cells["verdict"] != "broken"]
    best = honest.iloc[front(list(honest["speedup"]), list(honest[key]))]
    axes.step(best["speedup"], best[key], where="pre", color="0.35", lw=1.4, ls=DASHES, zorder=1)


def _bar(row: pd.Series[Any], key: str) -> list[list[float]] | None:
    low, high = row[f"{key}_low"], row[f"{key}_high"]
    return None if pd.isna(low) else [[max(0.0, row[key] - low)], [max(0.0, high - row[key])]]


def _colours(methods: pd.Series[Any]) -> dict[str, Any]:
    """A colour a method; never red, which is kept for what is broken."""
    palette = [f"tab:{name}" for name in ("blue", "orange", "green", "purple", "brown", "pink", "olive", "cyan")]
    named = sorted(set(methods) - {"autoregressive"})
    return {"autoregressive": "0.25"} | {name: palette[i % len(palette)] for i, name in enumerate(named)}


def sweeps(cells: pd.DataFrame) -> list[Sweep]:
    """Sets of at least three cells of one method that differ in one numeric parameter alone."""
    held: dict[tuple[str, str, str], list[tuple[float, int]]] = {}
    for i, (method, params) in enumerate(zip(cells["method"], map(json.loads, cells["params"]), strict=True)):
        for name, value in params.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                rest = json.dumps({**params, name: None}, sort_keys=True)
                held.setdefault((method, name, rest), []).append((float(value), i))
    return [
        Sweep(name, [value for value, _ in sorted(line)], [i for _, i in sorted(line)])
        for (_, name, _), line in held.items()
        if len(line) >= 3
    ]


def _names(cells: pd.DataFrame) -> list[str]:
    names = ["AR" if row["role"] == "baseline" else str(row["label"]) for _, row in cells.iterrows()]
    for sweep in sweeps(cells):
        for i, value in zip(sweep.rows[1:], sweep.values[1:], strict=True):
            names[i] = f"{sweep.parameter}={value:g}"
    return names


def _label(axes: Axes, panel: Panel, renderer: RendererAgg) -> None:
    """Put each name where, around its point, it covers least: near before far; a line leads to far ones."""
    dot = renderer.dpi / 72
    inside = axes.get_window_extent(renderer)
    points = axes.transData.transform(panel.cells[["speedup", panel.quality]].to_numpy(dtype=float))
    taken = [Bbox.from_bounds(x - 6 * dot, y - 6 * dot, 12 * dot, 12 * dot) for x, y in points]
    taken += _bars(axes, panel, dot)
    names, halo = _names(panel.cells), [withStroke(linewidth=3, foreground="white", alpha=0.8)]
    for i in sorted(range(len(names)), key=lambda i: -len(names[i])):
        at = tuple(panel.cells.loc[i, ["speedup", panel.quality]])
        note = axes.annotate(names[i], at, (0, 0), textcoords=OFFSET, fontsize=9, zorder=5, path_effects=halo)
        size = note.get_window_extent(renderer)
        costs = {p: _cost(p.box(points[i], dot), taken, inside) + 150 * p.far * dot**2 for p in _places(size, dot)}
        place = min(costs, key=lambda p: costs[p])
        note.set_position((place.x, place.y))
        taken.append(place.box(points[i], dot))
        if place.far:
            line = {"arrowstyle": "-", "color": "0.6", "lw": 0.7, "shrinkA": 0, "shrinkB": 5}
            nearest = (
                min(max(0.0, place.x), place.x + place.width),
                min(max(0.0, place.y), place.y + place.height),
            )
            axes.annotate("", at, nearest, textcoords=OFFSET, arrowprops=line, zorder=3)


def _bars(axes: Axes, panel: Panel, dot: float) -> list[Bbox]:
    """The error bars as thin boxes: a name may cross one, but had better not lie along it."""
    boxes = []
    for _, row in panel.cells.iterrows():
        (x0, x1), (y0, y1) = (
            (row[key] if pd.isna(row[f"{key}_low"]) else row[f"{key}{end}"] for end in ("_low", "_high"))
            for key in ("speedup", panel.quality)
        )
        x, y = row["speedup"], row[panel.quality]
        for corners in ([(x0, y), (x1, y)], [(x, y0), (x, y1)]):
            (left, low), (right, high) = axes.transData.transform(np.array(corners, dtype=float))
            boxes.append(Bbox.from_extents(left - dot, low - dot, right + dot, high + dot))
    return boxes


def _places(size: Bbox, dot: float) -> Iterator[Place]:
    width, height = size.width / dot, size.height / dot
    for far, reach in enumerate((9, 22, 36, 52, 70)):
        for angle in np.arange(0, 2 * np.pi, np.pi / 8):
            x, y = reach * math.cos(angle), reach * math.sin(angle)
            left = x - width * (1 - math.cos(angle)) / 2
            yield Place(left, y - height * (1 - math.sin(angle)) / 2, width, height, far)


def _cost(box: Bbox, taken: Sequence[Bbox], inside: Bbox) -> float:
    """Pixels that the name would cover of other names and markers, or that would leave the panel."""
    (x0, y0), (x1, y1) = box.get_points()
    others = np.array([other.extents for other in [*taken, inside]])
    wide = np.minimum(others[:, 2], x1) - np.maximum(others[:, 0], x0)
    high = np.minimum(others[:, 3], y1) - np.maximum(others[:, 1], y0)
    shared = wide.clip(0) * high.clip(0)
    outside = (x1 - x0) * (y1 - y0) - shared[-1]
    return float(4 * shared[:-1].sum() + 8 * outside)


def _keys() -> list[Artist]:
    looks: dict[str, dict[str, Any]] = {
        "AR baseline": {"marker": "D", "mfc": "0.25", "mec": "0.25"},
        "exact": {"marker": "o", "mfc": "0.4", "mec": "0.4"},
        "approximate": {"marker": "o", "mfc": "white", "mec": "0.4"},
        "unverified": {"marker": "s", "mfc": "white", "mec": "0.4"},
        "broken": {"marker": "X", "mfc": "tab:red", "mec": "tab:red"},
    }
    keys = [Line2D([], [], ls="", ms=8, mew=1.6, label=name, **look) for name, look in looks.items()]
    return [
        *keys,
        Line2D([], [], color="0.35", lw=1.4, ls=DASHES, label="Pareto front"),
        Patch(color="0.93", label="AR against AR"),
    ]
