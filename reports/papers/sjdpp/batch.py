"""The batch sweep: tokens a second and speed-up of batches of B prompts, and the B without a gain.

Throughput is output tokens over the time of the batch (`record.metrics`). The speed-up is over the autoregressive batch
of the same B, as in every table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pandas as pd
from matplotlib.figure import Figure

from stridebench.reports.papers.drawing import COLOURS, by_label, curves, figure, legend, sheet, side_by_side
from stridebench.reports.papers.measured import CellGroup, MeasuredRun
from stridebench.reports.pareto import DASHES
from stridebench.reports.text_table import Column, TextTable, measured_text, number

COLUMNS = (
    Column("label", "cell", rank=0),
    Column("batch", "B", 0, 1),
    Column("throughput", "tokens/s of the batch", 1, 2),
    Column("ms_per_token", "ms/token of a row", 1, 4),
    Column("speedup", "speed-up over AR at B", 2, 2),
    Column("scr", "SCR", 2, 3),
    Column("break_even", "break-even B", 1, 5),
)
NOTE = (
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
def table(run: MeasuredRun) -> Iterator[TextTable]:
    """Return a table for each group: one row a cell and B."""
    for group in run.groups:
        lines = [line for _, rows in _by_label(group) for line in _lines(rows)]
        yield TextTable(f"Batch sweep: {group.title}", COLUMNS, lines, [NOTE])


@figure("sjdpp_batch")
def draw(run: MeasuredRun) -> Iterator[Figure]:
    """Draw tokens a second and speed-up against B, one line a method; a dashed line marks the end of the gain."""
    for group in run.groups:
        batches = sorted({int(batch) for batch in group.rows["batch"]})
        if len(batches) < 2:
            continue
        drawn, panels = side_by_side(2, "Batch sweep: B prompts in lock step", group.title)
        lines, speedups = [], []
        for colour, (label, rows) in zip(COLOURS, _by_label(group), strict=False):
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


def _by_label(group: CellGroup) -> list[tuple[str, pd.DataFrame]]:
    """Return the rows of each method and of the baseline by B."""
    return [(label, rows.sort_values("batch")) for label, rows in by_label(group.rows)]


def _is_method(rows: pd.DataFrame) -> bool:
    return bool(rows["role"].iloc[0] != "baseline")


def _end(rows: pd.DataFrame) -> float | None:
    if not _is_method(rows):
        return None
    return break_even([int(batch) for batch in rows["batch"]], [float(value) for value in rows["speedup"]])


def _lines(rows: pd.DataFrame) -> list[list[str]]:
    end = _end(rows)
    limit = "-" if not _is_method(rows) else f"none up to {rows['batch'].max():g}" if end is None else number(end, 1)
    figures = [(column.key, column.digits) for column in COLUMNS[2:-1]]
    return [
        [
            str(row["label"]),
            f"{row['batch']:g}",
            *(measured_text(row, key, digits=digits) for key, digits in figures),
            limit,
        ]
        for _, row in rows.iterrows()
    ]
