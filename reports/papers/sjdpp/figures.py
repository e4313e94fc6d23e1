"""Figures of SJD++ from a run: curves over top-K, resolution, window, reuse threshold, initialisation and refinement.

The paper prints these as pictures. If it prints values too (Table 10), they are a dashed line.
"""

from __future__ import annotations

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
    SCR,
    curve,
    figure,
    legend,
    side_by_side,
)
from stridebench.reports.papers.measured import CellGroup, MeasuredRun, over_seeds
from stridebench.reports.papers.paper_files import printed
from stridebench.reports.pareto import OFFSET
from stridebench.reports.summary import FinishedCell

if TYPE_CHECKING:
    from stridebench.harness.record.store import Store


@figure("sjdpp_fig6")
def resolution(run: MeasuredRun) -> Iterator[Figure]:
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


@figure("sjdpp_fig13")
def inits(run: MeasuredRun) -> Iterator[Figure]:
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
def refinement(run: MeasuredRun) -> Iterator[Figure]:
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


def _with_option(group: CellGroup, name: str) -> pd.DataFrame:
    return group.rows[[name in options for options in group.rows["options"]]]
