"""Figures of SJD++ from a run: curves over top-K, resolution, window, reuse threshold, initialisation and refinement.

The paper prints these as pictures. If it prints values too (Table 10), they are a dashed line.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stridebench.harness.record.metrics import METRICS
from stridebench.reports.papers.drawing import (
    COLOURS,
    QUALITIES,
    SCR,
    SECONDS,
    by_label,
    curve,
    curves,
    figure,
    legend,
    quality_of,
    side_by_side,
    unmeasured,
)
from stridebench.reports.papers.measured import Measured, Run, fits, over_seeds
from stridebench.reports.papers.paper_files import printed, published
from stridebench.reports.pareto import DASHES, OFFSET
from stridebench.reports.summary import FinishedCell

if TYPE_CHECKING:
    from stridebench.harness.record.store import Store


@figure("sjdpp_fig5")
def top_k(run: Run) -> Iterator[Figure]:
    """Draw Fig. 5: tokens a pass and seconds against the K of top-K sampling, one line a method."""
    for group in run.groups:
        ks = sorted(set(group.rows["top_k"]), key=lambda k: k or math.inf)  # 0 keeps all
        if len(ks) < 2:
            continue
        rows = group.rows.assign(x=[ks.index(k) for k in group.rows["top_k"]]).sort_values("x", kind="stable")
        drawn, panels = side_by_side(2, "Fig. 5: under various sampling randomness", group.title)
        for axes, key, name in zip(panels, ("scr", "seconds"), (SCR, SECONDS), strict=True):
            curves(axes, by_label(rows), "x", key)
            axes.set_xticks(range(len(ks)), [f"{k}" if k else "all" for k in ks])
            axes.set(xlabel="K of top-K sampling", ylabel=name)
        legend(drawn, panels[0])
        yield drawn


@figure("sjdpp_fig6")
def resolution(run: Run) -> Iterator[Figure]:
    """Draw Fig. 6: tokens a pass against tokens of a picture, one line a method and task, one point a backbone.

    Methods of a single size of pictures are left out.
    """
    rows = pd.concat([group.rows[group.rows["role"] == "method"] for group in run.groups]).sort_values("tokens")
    rows = rows[rows.groupby(["label", "task"])["tokens"].transform("nunique") > 1]
    if rows.empty:
        return
    printed_values = "printed, Lumina-mGPT: above 2 at 1K and 2.3K tokens, 2.43 at 4.1K"
    drawn, (axes,) = side_by_side(1, "Fig. 6: the resolution", printed_values)
    colours = dict(zip(dict.fromkeys(rows["label"]), cycle(COLOURS), strict=False))
    for (label, task), line in rows.groupby(["label", "task"], sort=False):
        curve(axes, line["tokens"], line, "scr", f"{label}, {task}", colours[label])
    for _, row in rows.drop_duplicates("backbone").iterrows():
        axes.annotate(row["backbone"], (row["tokens"], row["scr"]), (3, 5), textcoords=OFFSET, fontsize=7)
    axes.set(xlabel="tokens of a picture", ylabel=SCR)
    legend(drawn, axes)
    yield drawn


@figure("sjdpp_table10")
def windows(run: Run) -> Iterator[Figure]:
    """Draw Table 10: passes a token and quality against the window."""
    table = printed("sjdpp_table10")
    sizes = table.rows["WS [tokens]"].astype(float)
    for group in run.groups:
        rows = sweep(group, "window")
        quality = quality_of(rows)
        if len(rows) < 2 or quality is None:
            continue
        drawn, panels = side_by_side(2, "Table 10: the window", group.title)
        ticks = sorted({*sizes, *rows["x"]})
        for axes, key, column in zip(panels, ("passes_per_token", quality), table.rows.columns[[3, 1]], strict=True):
            curve(axes, rows["x"], rows, key, "measured", COLOURS[0])
            if key == "passes_per_token" or "GenEval" in QUALITIES[key]:
                values, label = table.rows[column].astype(float), f"printed, {table.layout.model}"
                axes.plot(sizes, values, color="0.5", ls=DASHES, marker="o", ms=3, label=label)
            axes.set_xscale("log", base=2)
            axes.set_xticks(ticks, labels=[f"{x:g}" for x in ticks], fontsize=7)
            axes.set(xlabel="window, rows", ylabel=QUALITIES.get(key, "target passes / output token"))
        legend(drawn, panels[0])
        yield drawn


@figure("sjdpp_tau")
def reuse(run: Run) -> Iterator[Figure]:
    """Draw the sweep of the reuse threshold: tokens a pass, quality, and total variation in the run's proof."""
    for group in run.groups:
        rows = sweep(group, "tau")
        if len(rows) < 2:
            continue
        ticks = sorted(rows["x"])
        drawn, panels = side_by_side(3, "SJD++: the reuse threshold", group.title)
        others = group.rows[(group.rows["role"] == "method") & ~group.rows.index.isin(rows.index)]
        for axes, key in zip(panels, ("scr", quality_of(rows), "total_variation"), strict=True):
            if key is None or rows[key].isna().all():
                unmeasured(axes)
                continue
            curve(axes, [ticks.index(x) for x in rows["x"]], rows, key, "as published", COLOURS[0])
            for colour, (_, row) in zip(cycle(COLOURS[1:]), others.iterrows(), strict=False):
                if pd.notna(row[key]):
                    axes.axhline(row[key], color=colour, ls=DASHES, lw=1.2, label=str(row["label"]))
            axes.set_xticks(range(len(ticks)), [f"{x:g}" for x in ticks])
            names = {"scr": SCR, "total_variation": "total variation", **QUALITIES}
            axes.set(xlabel="reuse threshold tau", ylabel=names[key])
        panels[2].set_title("of the run's own proof, worst enumerated model", fontsize=8)
        legend(drawn, panels[0])
        yield drawn


@figure("sjdpp_fig13")
def inits(run: Run) -> Iterator[Figure]:
    """Draw Fig. 13: tokens a pass by initialisation, one dot a seed."""
    for group in run.groups:
        rows = _with_option(group, "init")
        if len(rows) < 2:
            continue
        drawn, (axes,) = side_by_side(1, "Fig. 13: token initialisation", group.title)
        _dots(run.store, axes, rows, "scr", [str(options["init"]) for options in rows["options"]])
        axes.set(xlabel=f"{SCR}; a dot a picture, the bar all together with its interval")
        axes.set_title(over_seeds(rows), fontsize=8)
        yield drawn


@figure("sjdpp_fig12")
def refinement(run: Run) -> Iterator[Figure]:
    """Draw Fig. 12: passes a token with and without refinement, measured and printed."""
    by_init = printed("sjdpp_fig12").rows.groupby("Init")
    steps = ", ".join(f"{name} {part['Steps'].astype(float).mean():.0f}" for name, part in by_init)
    for group in run.groups:
        rows = _with_option(group, "refine")
        if len(rows) < 2:
            continue
        drawn, (axes,) = side_by_side(1, "Fig. 12: refinement of unaccepted tokens", group.title)
        kinds = {True: "refined", False: "thrown away"}
        names = [f"{options['init']}, {kinds[bool(options['refine'])]}" for options in rows["options"]]
        _dots(run.store, axes, rows, "nfe_per_output", names)
        axes.axvline(1, color="0.8", lw=1, zorder=0)
        axes.set(xlabel="target passes / output token; 1: nothing gained")
        axes.set_title(f"printed steps of a picture without refinement: {steps}", fontsize=8)
        yield drawn


def _dots(store: Store, axes: Axes, rows: pd.DataFrame, name: str, labels: Sequence[str]) -> None:
    """Draw a metric, one row a cell: a dot a picture, a bar for all pictures, and their interval."""
    metric = METRICS[name]
    for place, (cell, row) in enumerate(rows.iterrows()):
        frame = FinishedCell.of(store.cell(str(cell))).totals
        values = frame[metric.numerator] / frame[metric.denominator]
        heights = place + (np.arange(len(values)) % 5 - 2) * 0.08  # separates the dots of a row
        axes.plot(values, heights, "o", ms=4, mfc="none", color=COLOURS[0], alpha=0.7)
        axes.plot(row[name], place, "|", ms=18, mew=2, color=COLOURS[1])
        bounds = row.reindex([f"{name}_low", f"{name}_high"]).astype(float)
        if bounds.notna().all():
            axes.plot(bounds.tolist(), [place + 0.3] * 2, color=COLOURS[1], lw=1.5, solid_capstyle="butt")
    axes.set_yticks(range(len(rows)), labels)
    axes.set_ylim(len(rows) - 0.5, -0.5)


def _with_option(group: Measured, name: str) -> pd.DataFrame:
    return group.rows[[name in options for options in group.rows["options"]]]


def sweep(group: Measured, parameter: str) -> pd.DataFrame:
    """Return cells of SJD++ as published that differ in one parameter, sorted by its value ``x``."""
    rest = {key: value for key, value in published("sjdpp").items() if key != parameter}
    rows = fits(group.rows, method="sjdpp", **rest)
    values = [float(options.get(parameter, math.nan)) for options in rows["options"]]
    return rows.assign(x=pd.Series(values, rows.index, dtype=float)).sort_values("x")
