"""The batch sweep: tokens a second and speed-up of gangs of B prompts, and where the speed-up ends.

Throughput is output tokens over the time of the batch (`record.ledger`); the speed-up is over the autoregressive batch
of the same B, as in every table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.figure import Figure

from reports.papers.drawing import COLOURS, curve, legend, save_each, side_by_side
from reports.papers.measured import Measured, shown
from reports.plot_style import DASHES
from reports.text_table import Column, TextTable, number

if TYPE_CHECKING:
    from harness.record.store import Store

COLUMNS = (
    Column("label", "cell", rank=0),
    Column("batch", "B", 0, 1),
    Column("throughput", "tokens/s of the gang", 1, 2),
    Column("ms_per_token", "ms/token of a row", 1, 4),
    Column("speedup", "speed-up over AR at B", 2, 2),
    Column("scr", "SCR", 2, 3),
    Column("break_even", "break-even B", 1, 5),
)


NOTE = "rows of a gang share its time: intervals over few gangs of many rows are narrower than another run would differ"


def break_even(batches: Sequence[int], speedups: Sequence[float]) -> float | None:
    """The B from which on there is nothing gained: where the speed-up last falls to 1, on a line over log2 B.

    Args:
        batches: ascending. speedups: of each.

    Returns:
        None where the largest B still gains; the smallest B where none does.
    """
    points = [(math.log2(batch), value) for batch, value in zip(batches, speedups, strict=True)]
    if not points or points[-1][1] > 1:
        return None
    for (x, above), (right, below) in reversed(list(pairwise(points))):
        if above > 1:
            return float(2 ** (x + (right - x) * (above - 1) / (above - below)))
    return float(2 ** points[0][0])


def sheet(store: Store, groups: Sequence[Measured]) -> list[TextTable]:
    """A table for each group: a row a cell and B."""
    return [
        TextTable(
            f"Batch sweep: {group.title}", COLUMNS, [line for rows in _labels(group) for line in _lines(rows)], [NOTE]
        )
        for group in groups
    ]


def figure(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Tokens a second and speed-up against B, a line a method; a dashed line where the speed-up ends."""

    def draw(group: Measured) -> Figure | None:
        batches = sorted({int(batch) for batch in group.rows["batch"]})
        if len(batches) < 2:
            return None
        drawn, panels = side_by_side(2, group, "Batch sweep: B prompts in lock step")
        for colour, rows in zip(COLOURS, _labels(group), strict=False):
            label, end = str(rows["label"].iloc[0]), _end(rows)
            ours = rows["role"].iloc[0] != "baseline"
            told = f"{label}: no gain from B = {end:.2g}" if ours and end is not None else label
            curve(panels[0], rows["batch"], rows, "throughput", told, colour)
            if ours:
                curve(panels[1], rows["batch"], rows, "speedup", label, colour)
            if ours and end is not None:
                panels[1].axvline(end, color=colour, ls=DASHES, lw=1)
        panels[1].axhline(1, color="0.5", lw=1, zorder=0)
        for axes, name in zip(panels, ("tokens/s of the gang", "speed-up over AR at the same B"), strict=True):
            axes.set_xscale("log", base=2)
            axes.set_xticks(batches, [f"{batch}" for batch in batches])
            axes.set(xlabel="B, prompts in lock step", ylabel=name, ylim=(0, None))
        legend(drawn, panels[0])
        return drawn

    return save_each(groups, outdir, "batch", draw)


def _labels(group: Measured) -> list[pd.DataFrame]:
    """The rows of each method, the baseline's too, by B."""
    return [rows.sort_values("batch") for _, rows in group.rows.groupby("label", sort=False)]


def _end(rows: pd.DataFrame) -> float | None:
    return break_even([int(batch) for batch in rows["batch"]], [float(value) for value in rows["speedup"]])


def _lines(rows: pd.DataFrame) -> list[list[str]]:
    ours = rows["role"].iloc[0] != "baseline"
    end = _end(rows) if ours else None
    told = "-" if not ours else f"none up to {rows['batch'].max():g}" if end is None else number(end, 1)
    figures = [(column.key, column.digits) for column in COLUMNS[2:-1]]
    return [
        [str(row["label"]), f"{row['batch']:g}", *(shown(row, (key,), digits) for key, digits in figures), told]
        for _, row in rows.iterrows()
    ]
