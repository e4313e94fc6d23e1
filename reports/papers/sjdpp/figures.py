"""Figures of SJD++ from a run: the resolution, initialisation, refinement, and the batch sweep.

The other curves are charts of `reports/data/papers/sjdpp.yaml`. In the batch sweep, throughput is output tokens over
the time of the batch, and the speed-up is over the autoregressive batch of the same B, as in every table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import cycle, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stridebench.harness.record.metrics import METRICS
from stridebench.reports.papers.drawing import (
    COLOURS,
    SCR,
    by_label,
    curve,
    curves,
    figure,
    legend,
    sheet,
    side_by_side,
)
from stridebench.reports.papers.measured import CellGroup, MeasuredRun, over_seeds
from stridebench.reports.papers.paper_files import printed
from stridebench.reports.pareto import DASHES, OFFSET
from stridebench.reports.summary import FinishedCell
from stridebench.reports.text_table import Column, TextTable, measured_text, number

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


BATCH_COLUMNS = (
    Column("label", "cell", rank=0),
    Column("batch", "B", 0, 1),
    Column("throughput", "tokens/s of the batch", 1, 2),
    Column("ms_per_token", "ms/token of a row", 1, 4),
    Column("speedup", "speed-up over AR at B", 2, 2),
    Column("scr", "SCR", 2, 3),
    Column("break_even", "break-even B", 1, 5),
)
BATCH_NOTE = (
    "rows of a batch share its time: intervals over few batches of many rows are narrower than another run would differ"
)


def break_even(batches: Sequence[int], speedups: Sequence[float]) -> float | None:
    """Return the B from which on nothing is gained: the speed-up last falls to 1 there, interpolated over log2 B.

    Args:
        batches: ascending.
        speedups: one a batch.

    Returns:
        The smallest B if no B gains, or None if the largest B still gains.
    """
    points = [(math.log2(batch), value) for batch, value in zip(batches, speedups, strict=True)]
    if not points or points[-1][1] > 1:
        return None
    for (x, above), (right, below) in reversed(list(pairwise(points))):
        if above > 1:
            return float(2 ** (x + (right - x) * (above - 1) / (above - below)))
    return float(2 ** points[0][0])


@sheet("sjdpp_batch")
def batch_table(run: MeasuredRun) -> Iterator[TextTable]:
    """Return a batch_table for each group: one row a cell and B."""
    for group in run.groups:
        lines = [line for _, rows in _by_batch(group) for line in _batch_lines(rows)]
        yield TextTable(f"Batch sweep: {group.title}", BATCH_COLUMNS, lines, [BATCH_NOTE])


@figure("sjdpp_batch")
def batches(run: MeasuredRun) -> Iterator[Figure]:
    """Draw tokens a second and speed-up against B, one line a method; a dashed line marks the end of the gain."""
    for group in run.groups:
        batches = sorted({int(batch) for batch in group.rows["batch"]})
        if len(batches) < 2:
            continue
        drawn, panels = side_by_side(2, "Batch sweep: B prompts in lock step", group.title)
        lines, speedups = [], []
        for colour, (label, rows) in zip(COLOURS, _by_batch(group), strict=False):
            end = _end(rows)
            lines.append((label if end is None else f"{label}: no gain from B = {end:.2g}", rows))
            speedups.append((label, rows if _is_method(rows) else rows.drop(columns="speedup")))
            if end is not None:
                panels[1].axvline(end, color=colour, ls=DASHES, lw=1)
        curves(panels[0], lines, "batch", "throughput")
        curves(panels[1], speedups, "batch", "speedup")
        panels[1].axhline(1, color="0.5", lw=1, zorder=0)
        for axes, name in zip(panels, ("tokens/s of the batch", "speed-up over AR at the same B"), strict=True):
            axes.set_xscale("log", base=2)
            axes.set_xticks(batches, [f"{batch}" for batch in batches])
            axes.set(xlabel="B, prompts in lock step", ylabel=name, ylim=(0, None))
        legend(drawn, panels[0])
        yield drawn


def _by_batch(group: CellGroup) -> list[tuple[str, pd.DataFrame]]:
    """Return the rows of each method and of the baseline by B."""
    return [(label, rows.sort_values("batch")) for label, rows in by_label(group.rows)]


def _is_method(rows: pd.DataFrame) -> bool:
    return bool(rows["role"].iloc[0] != "baseline")


def _end(rows: pd.DataFrame) -> float | None:
    if not _is_method(rows):
        return None
    return break_even([int(batch) for batch in rows["batch"]], [float(value) for value in rows["speedup"]])


def _batch_lines(rows: pd.DataFrame) -> list[list[str]]:
    end = _end(rows)
    limit = "-" if not _is_method(rows) else f"none up to {rows['batch'].max():g}" if end is None else number(end, 1)
    figures = [(column.key, column.digits) for column in BATCH_COLUMNS[2:-1]]
    return [
        [
            str(row["label"]),
            f"{row['batch']:g}",
            *(measured_text(row, key, digits=digits) for key, digits in figures),
            limit,
        ]
        for _, row in rows.iterrows()
    ]
