"""MuLo-SD's own figures: the speed-up that passes alone would give, and where the time of a picture goes.

Symbols: T_p cells of a picture, T_q the drafter's, r factor between them, a share of the cells that kept their drafts.
Source: MuLo-SD, supplement 7, eq. 10 and Fig. 7.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.figure import Figure

from reports.papers.drawing import COLOURS, legend, save_each, side_by_side
from reports.papers.measured import Measured, shown
from reports.summary import FinishedCell
from reports.text_table import Column, TextTable, number

if TYPE_CHECKING:
    from harness.record.store import Cell, Store

FACTOR = 2
"""r of a run that did not store it."""
STEPS = ("1 drafter", "2 up-sampling", "3 target pass", "4-5 judging", "6 redraws", "7 down-sampling", "rest")
"""Of the paper's Fig. 2; the rest is laws, commits and the host's own work."""


@dataclass(frozen=True)
class Predicted:
    """Speed-ups over one target pass a cell, if a drafter's pass took as long as a target's.

    Args:
        acceptance: a, after dilation. eq10: T_p / ((1 - a) T_p + T_q), as published, without the passes that judge
            bands. corrected: with one such pass a band. counted: T_p over the passes that were made; more than
            ``corrected``, since the first cell redrawn in a band takes no pass of its own, and cells drawn side by side
            share theirs.
    """

    acceptance: float
    eq10: float
    corrected: float
    counted: float


def predicted(frame: pd.DataFrame, factor: int) -> Predicted | None:
    """Over all rows of ``ledger.totals``, of a method whose steps fill bands; None where no drafter ran.

    Ends of rows are no cells: they count neither as tokens nor as passes. T_q are the small cells, T_p / r^2: a drafter
    that draws them side by side makes fewer passes, which ``counted`` alone has.
    """
    total = frame[["emitted", "forced", "resampled", "draft_nfe", "nfe", "steps"]].sum().astype(float)
    if not total["draft_nfe"]:
        return None
    tokens = float(total["emitted"] - total["forced"])
    passes = float(total["resampled"]) + tokens / factor**2
    return Predicted(
        acceptance=1 - float(total["resampled"]) / tokens,
        eq10=tokens / passes,
        corrected=tokens / (passes + float(total["steps"])),
        counted=tokens / float(total["nfe"] + total["draft_nfe"]),
    )


def speedups(store: Store, groups: Sequence[Measured]) -> list[TextTable]:
    """Eq. 10, its corrected form and the count of passes beside the wall's speed-up, a row a cell of MuLo-SD."""
    rows = []
    for group, name in cells(groups):
        row = group.row(name)
        found = predicted(FinishedCell.of(store.cell(name)).totals, int(row["options"].get("factor", FACTOR)))
        if found:
            counts = [number(each) for each in (found.eq10, found.corrected, found.counted)]
            rows.append([group.backbone, str(row["label"]), number(found.acceptance, 3), *counts])
            rows[-1].append(shown(row, ("speedup",), 2))
    heads = ("backbone", "setting", "acceptance a", "eq. 10", "corrected", "counted", "wall speed-up")
    notes = [
        "a: share of cells that kept their draft, after dilation; eq. 10: T_p / ((1 - a) T_p + T_q), as published, "
        "with T_q = T_p / r^2: it knows no parallel decoding, so cells drawn side by side are counted one by one",
        "corrected: with one judging pass a band; counted: T_p over the passes made, of which the first redrawn cell "
        "of a band needs none and cells side by side share one; a drafter's pass counts as a target's in all three, "
        "and seconds are in the last column alone",
        "T_p are cells: the ends of rows are in none of the three, while AR, to which the wall is compared, makes a "
        "pass for each of them too",
    ]
    title = "MuLo-SD, supplement, eq. 10: speed-up over AR by passes, and measured"
    return [TextTable(title, columns(heads), rows, notes)] if rows else []


def breakdown(cell: Cell) -> pd.Series[float] | None:
    """Mean seconds of a picture in each of STEPS; None where the run did not store the stages of its decodes.

    A part's time (steps 2 and 7) is in the drafter's of the steps; here it is taken out again.
    """
    held = FinishedCell.of(cell)
    if "stages" not in held.samples or held.samples.empty:
        return None
    spent = pd.DataFrame([json.loads(one) for one in held.samples["stages"]], index=held.samples.index)
    if not {"up", "score", "judge", "redraw"} <= set(spent):
        return None
    kept = cell.steps[~cell.steps["warmup"].astype(bool)]
    draft = kept.groupby(["prompt", "repetition"])["draft_ns"].sum().reindex(spent.index)
    spent = spent.reindex(columns=["up", "score", "judge", "redraw", "down"]).fillna(0.0)
    spent.insert(0, "drafter", draft - spent["up"] - spent["down"])
    means = spent.mean() / 1e9
    rest = max(0.0, float(held.totals["wall_s"].mean() - means.sum()))
    return pd.Series([*means, rest], index=STEPS)


def stages(store: Store, groups: Sequence[Measured]) -> list[TextTable]:
    """Fig. 7 as a table: seconds of a picture and the share of each step."""
    rows = []
    for group, name in cells(groups):
        found = breakdown(store.cell(name))
        if found is not None:
            whole = found.sum()
            shares = [f"{seconds:.3f} ({seconds / whole:.0%})" for seconds in found]
            rows.append([group.backbone, str(group.row(name)["label"]), number(whole, 3), *shares])
    notes = ["seconds of a picture, prefill not counted, and their share; steps as numbered in the paper's Fig. 2"]
    heads = columns(("backbone", "setting", "all steps", *STEPS))
    return [TextTable("MuLo-SD, supplement, Fig. 7: latency by step", heads, rows, notes)] if rows else []


def latency(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """MuLo-SD Fig. 7: seconds of a picture by step, a bar a setting; AR's as a line."""

    def draw(group: Measured) -> Figure | None:
        found = {name: breakdown(store.cell(name)) for _, name in cells([group])}
        held = {name: one for name, one in found.items() if one is not None}
        if not held:
            return None
        figure, (axes,) = side_by_side(1, group, "Fig. 7: latency by step")
        figure.set_figheight(2.6 + 0.3 * len(held))
        begin = [0.0] * len(held)
        for step, colour in zip(STEPS, COLOURS, strict=False):
            seconds = [float(one[step]) for one in held.values()]
            axes.barh(range(len(held)), seconds, left=begin, color=colour, label=step)
            begin = [a + b for a, b in zip(begin, seconds, strict=True)]
        for name in group.rows.index[group.rows["role"] == "baseline"]:
            axes.axvline(
                FinishedCell.of(store.cell(str(name))).totals["wall_s"].mean(), color="0.3", lw=1, ls="--", label="AR"
            )
        axes.set_yticks(range(len(held)), [str(group.row(name)["label"]) for name in held], fontsize=7)
        axes.set(xlabel="seconds of a picture, prefill not counted", ylim=(len(held) - 0.5, -0.5))
        legend(figure, axes)
        return figure

    return save_each(groups, outdir, "fig7", draw)


def cells(groups: Sequence[Measured]) -> list[tuple[Measured, str]]:
    """Cells of MuLo-SD, each with its group."""
    return [(group, str(name)) for group in groups for name in group.rows.index[group.rows["method"] == "mulo_sd"]]


def columns(titles: Sequence[str]) -> tuple[Column, ...]:
    """Of a sheet; the first two name a row."""
    return tuple(Column(title, title, rank=max(0, i - 1)) for i, title in enumerate(titles))
