"""Figures of the papers, drawn from a run: curves over top-K, window, reuse threshold, initialisation and radius.

The papers print these as pictures; where one also prints the values (Table 10), they are drawn beside as a dashed line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.record.ledger import METRICS
from reports.papers.drawing import (
    COLOURS,
    QUALITIES,
    SCR,
    SECONDS,
    curve,
    legend,
    quality_of,
    save,
    save_each,
    side_by_side,
    spread,
)
from reports.papers.measured import Measured, over_seeds
from reports.papers.printed import printed
from reports.papers.tables import PUBLISHED
from reports.plot_style import DASHES, OFFSET, STYLE
from reports.summary import FinishedCell
from reports.text_table import UNMEASURED

if TYPE_CHECKING:
    from harness.record.store import Store


def top_k(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """SJD++ Fig. 5: tokens a pass and seconds against the K of top-K sampling, a line a method."""

    def draw(group: Measured) -> Figure | None:
        ks = sorted(set(group.rows["top_k"]), key=lambda k: k or math.inf)  # 0 keeps all
        ordered = group.rows.assign(x=[ks.index(k) for k in group.rows["top_k"]]).sort_values("x", kind="stable")
        if len(ks) < 2:
            return None
        figure, panels = side_by_side(2, group, "Fig. 5: under various sampling randomness")
        for axes, key, name in zip(panels, ("scr", "seconds"), (SCR, SECONDS), strict=True):
            for colour, (label, rows) in zip(COLOURS, ordered.groupby("label", sort=False), strict=False):
                curve(axes, rows["x"], rows, key, str(label), colour)
            axes.set_xticks(range(len(ks)), [f"{k}" if k else "all" for k in ks])
            axes.set(xlabel="K of top-K sampling", ylabel=name)
        legend(figure, panels[0])
        return figure

    return save_each(groups, outdir, "fig5", draw)


def resolution(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """SJD++ Fig. 6: tokens a pass against the tokens of a picture, a line a method and task, a point a backbone."""
    rows = pd.concat([group.rows[group.rows["role"] == "method"] for group in groups]).sort_values("tokens")
    if rows["tokens"].nunique() < 2:
        return []
    with rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.2), dpi=130, layout="constrained")
        axes = figure.add_subplot()
        colours = dict(zip(dict.fromkeys(rows["label"]), COLOURS, strict=False))
        for (label, task), line in rows.groupby(["label", "task"], sort=False):
            curve(axes, line["tokens"], line, "scr", f"{label}, {task}", colours[label])
        for _, row in rows.drop_duplicates("backbone").iterrows():
            axes.annotate(row["backbone"], (row["tokens"], row["scr"]), (3, 5), textcoords=OFFSET, fontsize=7)
        axes.set(xlabel="tokens of a picture", ylabel=SCR)
        title = "printed, Lumina-mGPT: above 2 at 1K and 2.3K tokens, 2.43 at 4.1K"
        figure.suptitle(f"Fig. 6: the resolution\n{title}", fontsize=9)
        legend(figure, axes)
    return [save(figure, outdir, "fig6")]


def windows(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """SJD++ Table 10: passes a token and quality against the window."""

    def draw(group: Measured) -> Figure | None:
        rows = sweep(group, "window")
        quality = quality_of(rows)
        if len(rows) < 2 or quality is None:
            return None
        figure, panels = side_by_side(2, group, "Table 10: the window")
        theirs = printed("sjdpp_table10")
        sizes = theirs.rows["WS [tokens]"].astype(float)
        ticks = sorted({*sizes, *rows["x"]})
        for axes, key, column in zip(panels, ("passes_per_token", quality), theirs.rows.columns[[3, 1]], strict=True):
            curve(axes, rows["x"], rows, key, "measured", COLOURS[0])
            if key == "passes_per_token" or "GenEval" in QUALITIES[key]:
                values = theirs.rows[column].astype(float)
                axes.plot(sizes, values, color="0.5", ls=DASHES, marker="o", ms=3, label=f"printed, {theirs.model}")
            axes.set_xscale("log", base=2)
            axes.set_xticks(ticks, labels=[f"{x:g}" for x in ticks], fontsize=7)
            axes.set(xlabel="window, rows", ylabel=QUALITIES.get(key, "target passes / output token"))
        legend(figure, panels[0])
        return figure

    return save_each(groups, outdir, "table10", draw)


def reuse(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Reuse threshold of SJD++: tokens a pass, quality, and the total variation that the run's own proof found."""

    def draw(group: Measured) -> Figure | None:
        rows = sweep(group, "tau")
        keys = ("scr", quality_of(rows), "total_variation")
        if len(rows) < 2:
            return None
        ticks = sorted(rows["x"])
        figure, panels = side_by_side(3, group, "SJD++: the reuse threshold")
        others = group.rows[(group.rows["role"] == "method") & ~group.rows.index.isin(rows.index)]
        for axes, key in zip(panels, keys, strict=True):
            if key is None or rows[key].isna().all():
                axes.text(0.5, 0.5, UNMEASURED, ha="center", transform=axes.transAxes)
                axes.set_axis_off()
                continue
            curve(axes, [ticks.index(x) for x in rows["x"]], rows, key, "as published", COLOURS[0])
            for colour, (_, row) in zip(COLOURS[1:], others.iterrows(), strict=False):
                if pd.notna(row[key]):
                    axes.axhline(row[key], color=colour, ls=DASHES, lw=1.2, label=str(row["label"]))
            axes.set_xticks(range(len(ticks)), [f"{x:g}" for x in ticks])
            axes.set(
                xlabel="reuse threshold tau", ylabel=QUALITIES.get(key, SCR if key == "scr" else "total variation")
            )
        panels[2].set_title("of the run's own proof, worst enumerated model", fontsize=8)
        legend(figure, panels[0])
        return figure

    return save_each(groups, outdir, "tau", draw)


def inits(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """SJD++ Fig. 13: tokens a pass by initialisation, a dot a seed."""

    def draw(group: Measured) -> Figure | None:
        rows = _with_option(group, "init")
        figure, (axes,) = side_by_side(1, group, "Fig. 13: token initialisation")
        _dots(store, axes, rows, "scr", [str(options["init"]) for options in rows["options"]])
        axes.set(xlabel=f"{SCR}; a dot a picture, the bar all together with its interval")
        axes.set_title(over_seeds(rows), fontsize=8)
        return figure if len(rows) > 1 else None

    return save_each(groups, outdir, "fig13", draw)


def refinement(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """SJD++ Fig. 12: passes a token with and without refinement, ours beside the paper's."""
    theirs = printed("sjdpp_fig12").rows

    def draw(group: Measured) -> Figure | None:
        rows = _with_option(group, "refine")
        figure, (axes,) = side_by_side(1, group, "Fig. 12: refinement of unaccepted tokens")
        kinds = {True: "refined", False: "thrown away"}
        names = [f"{options['init']}, {kinds[bool(options['refine'])]}" for options in rows["options"]]
        _dots(store, axes, rows, "nfe_per_output", names)
        axes.axvline(1, color="0.8", lw=1, zorder=0)
        steps = ", ".join(f"{name} {part['Steps'].astype(float).mean():.0f}" for name, part in theirs.groupby("Init"))
        axes.set(xlabel="target passes / output token; 1: nothing gained")
        axes.set_title(f"printed steps of a picture without refinement: {steps}", fontsize=8)
        return figure if len(rows) > 1 else None

    return save_each(groups, outdir, "fig12", draw)


def _dots(store: Store, axes: Axes, rows: pd.DataFrame, name: str, labels: Sequence[str]) -> None:
    """A row a cell: a metric of the ledger, a dot a picture, and a bar for all together with its interval."""
    metric = METRICS[name]
    for place, (cell, row) in enumerate(rows.iterrows()):
        frame = FinishedCell.of(store.cell(str(cell))).totals
        values = frame[metric.numerator] / frame[metric.denominator]
        axes.plot(values, place + spread(len(values)), "o", ms=4, mfc="none", color=COLOURS[0], alpha=0.7)
        axes.plot(row[name], place, "|", ms=18, mew=2, color=COLOURS[1])
        ends = row.reindex([f"{name}_low", f"{name}_high"]).astype(float)
        if ends.notna().all():
            axes.plot(ends.tolist(), [place + 0.3] * 2, color=COLOURS[1], lw=1.5, solid_capstyle="butt")
    axes.set_yticks(range(len(rows)), labels)
    axes.set_ylim(len(rows) - 0.5, -0.5)


def _option(rows: pd.DataFrame, name: str) -> dict[str, float]:
    """The value of a parameter by cell, for those that have it."""
    return {str(cell): float(options[name]) for cell, options in rows["options"].items() if name in options}


def _with_option(group: Measured, name: str) -> pd.DataFrame:
    return group.rows[group.rows["options"].map(lambda options: name in options).astype(bool)]


def sweep(group: Measured, parameter: str) -> pd.DataFrame:
    """Cells of SJD++ as published that differ in one parameter, with its value in ``x``, in its order."""
    rest = {key: value for key, value in PUBLISHED.items() if key != parameter}
    rows = group.rows[group.rows["method"] == "sjdpp"]
    fits = [all(options.get(key) == value for key, value in rest.items()) for options in rows["options"]]
    rows = rows[fits]
    return rows.assign(x=pd.Series(_option(rows, parameter), dtype=float)).sort_values("x")
