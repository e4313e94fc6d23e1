"""Figures of Cross-Regression: over the threshold, the smoothing, the horizon and layers, and Fig. 1 over model sizes.

Source: Abulkhanov et al., Cross-Regression, Fig. 1, Tables 12, 13, 16 and 17, appendix D.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.papers.cross_regression.facts import (
    JOINT,
    METHOD,
    QUALITIES,
    beside,
    cells,
    fits,
    layers_of,
    parameters,
    preset,
)
from reports.papers.drawing import COLOURS, SCR, curve, legend, save, save_each, side_by_side
from reports.papers.measured import Measured, Wanted
from reports.papers.printed import printed
from reports.plot_style import DASHES, OFFSET, STYLE
from reports.text_table import UNMEASURED

if TYPE_CHECKING:
    from harness.record.store import Store

GRIDS = {"gsm8k": "cross_regression_table12", "humaneval": "cross_regression_table13"}
SERIES = {"GSM8K tau": "gsm8k", "HumanEval tau": "humaneval", "MT-bench tau": "mt_bench"}
"""Columns of Table 17, and the tasks that they are of."""


def swept(group: Measured, option: str, *lines: str) -> dict[str, pd.DataFrame]:
    """Cells of the method that differ in ``option``, with its value in ``x``: a frame for each setting of the others.

    Args:
        lines: options whose values name a line.
    """
    rows = cells([group])
    rows = rows[rows["method"] == METHOD]
    found: dict[str, list[Any]] = {}
    titles: dict[str, str] = {}
    for name, options in rows["options"].items():
        rest = str(sorted((key, str(value)) for key, value in options.items() if key != option))
        found.setdefault(rest, []).append(name)
        titles[rest] = ", ".join(f"{key} {options[key]}" for key in lines)
    made = {}
    for rest, names in found.items():
        if len(names) > 1:
            line = rows.loc[names]
            line = line.assign(x=[float(options[option]) for options in line["options"]]).sort_values("x")
            made[titles[rest] if titles[rest] not in made else rest] = line
    return made


def _quality(group: Measured) -> str:
    """The benchmark's score; where there is none, log-probability less the baseline's."""
    known = QUALITIES.get(group.task, "")
    return known if group.has(known) else "logprob_diff"


def thresholds(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Tables 12 and 13 as curves: tokens a pass and quality against the threshold, a line a smoothing."""

    def draw(group: Measured) -> Figure | None:
        lines = {
            title: rows.assign(x=-rows["x"]).sort_values("x")
            for title, rows in swept(group, "tau", "mode", "beta", "layout").items()
        }
        if not lines:
            return None
        drawn, panels = _two(group, "Tables 12 and 13: the threshold", lines, "threshold -tau, nat")
        theirs = printed(GRIDS.get(group.task, GRIDS["gsm8k"])).rows
        first = theirs[theirs["Model"] == "LLaMA-3 8B"]
        for beta, rows in first.groupby("Smoothing (= beta)"):
            x, y = (rows[key].astype(float) for key in ("Threshold (= -tau)", "Accept Rate [tokens/fwd]"))
            panels[0].plot(x, y, color="0.6", ls=DASHES, marker="o", ms=3, label=f"printed, LLaMA-3 8B, beta {beta}")
        legend(drawn, panels[0])
        return drawn

    return save_each(groups, outdir, "thresholds", draw)


def smoothing(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Tokens a pass and quality against beta, a line a mode and threshold."""

    def draw(group: Measured) -> Figure | None:
        lines = swept(group, "beta", "mode", "tau", "layout")
        if not lines:
            return None
        drawn, panels = _two(group, "The smoothing", lines, "smoothing beta")
        legend(drawn, panels[0])
        return drawn

    return save_each(groups, outdir, "smoothing", draw)


def windows(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Appendix D.3: tokens a pass and wall speed-up against the horizon, a line a layout."""

    def draw(group: Measured) -> Figure | None:
        lines = swept(group, "horizon", "layout")
        if not lines:
            return None
        drawn, panels = side_by_side(2, group, "D.3: the horizon gamma; the paper trains at 16 and tests at 32")
        for axes, key, title in zip(panels, ("scr", "speedup"), (SCR, "wall speed-up"), strict=True):
            for colour, (line, rows) in zip(COLOURS, lines.items(), strict=False):
                if key in rows:
                    curve(axes, rows["x"], rows, key, line, colour)
            axes.set_xscale("log", base=2)
            axes.set(xlabel="horizon gamma", ylabel=title)
        legend(drawn, panels[0])
        return drawn

    return save_each(groups, outdir, "windows", draw)


def layers(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Table 16: tokens a step by the layers that the adapter changes, measured above printed."""

    def draw(group: Measured) -> Figure | None:
        rows, theirs = cells([group]), printed("cross_regression_table16").rows
        held = [(layout, fits(rows[rows["method"] == METHOD], _of(layout))) for layout in ("sequential", "joint")]
        if not any(one.get("layers") for _, found in held for one in found["options"]):
            return None
        drawn, panels = side_by_side(2, group, "Table 16: layers that the adapter changes")
        for axes, (layout, found), column in zip(panels, held, ("tau_Seq", "tau_Joint"), strict=True):
            labels = [label.removeprefix("Layers ") for label in theirs["Layer Range"]]
            places = range(len(labels))
            axes.plot(places, theirs[column].astype(float), "o", ms=4, color="0.6", label="printed, Llama-2-7B-chat")
            near = {i: beside(found, one) if (one := layers_of(row)) else None for i, row in _numbered(theirs)}
            cell = {i: _at(found, near[i]) for i in places if near[i] or labels[i].startswith("Full")}
            shown = pd.DataFrame([row for row in cell.values() if row is not None])
            if len(shown):
                curve(axes, [i for i, row in cell.items() if row is not None], shown, "tau", "measured", COLOURS[0])
            axes.set_xticks(list(places), labels, rotation=90, fontsize=7)
            axes.set(title=layout, xlabel="layers, of 32", ylabel="output tokens / step")
        legend(drawn, panels[0])
        return drawn

    return save_each(groups, outdir, "layers", draw)


def _of(layout: str) -> Wanted:
    return Wanted(METHOD, {"layout": layout, "mode": "std", "beta": 0.0})


def _numbered(theirs: pd.DataFrame) -> list[tuple[int, str]]:
    return list(enumerate(str(row) for row in theirs["Layer Range"]))


def _at(found: pd.DataFrame, wanted: tuple[int, int] | None) -> pd.Series[Any] | None:
    rows = found[[one.get("layers") == wanted for one in found["options"]]]
    return None if rows.empty else rows.iloc[0]


def _two(group: Measured, title: str, lines: dict[str, pd.DataFrame], x: str) -> tuple[Figure, list[Axes]]:
    """Tokens a pass, and quality."""
    key = _quality(group)
    drawn, panels = side_by_side(2, group, title)
    for colour, (line, rows) in zip(COLOURS, lines.items(), strict=False):
        curve(panels[0], rows["x"], rows, "scr", line, colour)
        if key in rows and rows[key].notna().any():
            curve(panels[1], rows["x"], rows, key, line, colour)
    panels[0].set(xlabel=x, ylabel=SCR)
    said = "log p less AR's, nat a token" if key == "logprob_diff" else key.partition(".")[2]
    panels[1].set(xlabel=x, ylabel=said)
    if not panels[1].lines:
        panels[1].text(0.5, 0.5, UNMEASURED, ha="center", transform=panels[1].transAxes)
    return drawn, panels


def scaling(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Fig. 1: tokens a pass and wall speed-up of the lossless joint decoding against parameters.

    The figure's own points are not printed; beside the measured ones stand Table 17's and the two that the text names.
    """
    if not groups:
        return []
    rows = fits(cells(groups), JOINT)
    rows = rows[~rows[["backbone", "task", "temperature", "dtype"]].duplicated()]
    rows = rows.assign(size=rows["backbone"].map(lambda name: parameters(store, str(name)))).dropna(subset=["size"])
    if rows.empty:
        return []
    with rc_context(STYLE):
        figure = Figure(figsize=(10, 4.4), dpi=130, layout="constrained")
        figure.suptitle("Fig. 1: speed by model size, lossless joint decoding", fontsize=9)
        panels = [figure.add_subplot(1, 2, i + 1) for i in range(2)]
        for axes, key, title in zip(panels, ("scr", "speedup"), (SCR, "wall speed-up"), strict=True):
            for colour, (setting, line) in zip(COLOURS, rows.groupby(["task", "temperature", "dtype"]), strict=False):
                ordered = line.sort_values("size")
                if key in ordered:
                    name = f"{setting[0]} {setting[2]}, T = {setting[1]:g}"
                    curve(axes, ordered["size"], ordered, key, name, colour)
            axes.set_xscale("log")
            axes.set(xlabel="parameters of the backbone", ylabel=title)
        for _, row in rows.drop_duplicates("backbone").iterrows():
            panels[0].annotate(row["backbone"], (row["size"], row["scr"]), (3, 5), textcoords=OFFSET, fontsize=7)
        _printed_sizes(store, panels[0])
        legend(figure, panels[0])
    return [save(figure, outdir, "fig1")]


def _printed_sizes(store: Store, axes: Axes) -> None:
    theirs = printed("cross_regression_table17").rows
    theirs = theirs[theirs["Temperature"] == "0"]
    names = [preset(f"{series} {size}") for series, size in zip(theirs["Model Series"], theirs["Size"], strict=True)]
    sizes = [parameters(store, name) for name in names]
    for shade, column in zip(("0.45", "0.6", "0.75"), SERIES, strict=True):
        held = sorted((s, float(y)) for s, y in zip(sizes, theirs[column], strict=True) if s)
        if held:
            label = f"printed, {column.removesuffix(' tau')}, T = 0"
            axes.plot(*zip(*held, strict=True), "o", color=shade, ms=3, label=label)
    said = printed("cross_regression_fig1").rows
    ends = [float(size.removesuffix("B")) * 1e9 for size in said["Size"]]
    axes.plot(ends, said["GSM8K speed-up"].astype(float), "x", color="0.3", ms=5, label="said of Fig. 1, GSM8K")
