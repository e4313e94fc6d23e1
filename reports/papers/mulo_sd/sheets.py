"""MuLo-SD's pictures beside the target's (Figs. 4 and 10-13), each with its own speed-up at the bottom left.

The first prompts of the run, whatever came of them: nothing is picked. Each cell of MuLo-SD is on a sheet of its sweep.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.papers.drawing import save
from reports.papers.measured import Measured
from reports.papers.mulo_sd.pareto import DECODING, PUBLISHED, families
from reports.papers.sjdpp.maps import blank, show_output
from reports.summary import FinishedCell, token_ms

if TYPE_CHECKING:
    from harness.record.store import Cell, Store

COMPARED, SWEPT = 10, 6
"""Prompts of Figs. 10 and 13."""
TAU = "0.0001"
"""Where the paper's comparisons stand."""
STAMP = {"facecolor": "black", "edgecolor": "none", "alpha": 0.65, "pad": 1.2}


def comparison(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Figs. 4 and 10-12: AR, MuLo-SD at the paper's tau with each pair of samplers and each window, and the others."""
    written: list[Path] = []
    for group in groups:
        columns = {
            f"mulo_sd tau {TAU}, {line.label}": str(cell)
            for line in families(group, DECODING)
            for mark, cell in zip(line.marks, line.rows.index, strict=True)
            if mark == TAU
        }
        others = group.rows[(group.rows["role"] == "method") & (group.rows["method"] != "mulo_sd")]
        columns |= {str(row["label"]): str(cell) for cell, row in others.iterrows()} if columns else {}
        drawn = sheet(store, group, columns, "Figs. 4, 10-12: beside AR", COMPARED)
        if drawn:
            written.append(save(drawn, outdir, "fig10", len(written)))
    return written


def sweeps(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Fig. 13: AR, then MuLo-SD from the strictest tau to the loosest; a sheet for each sweep of the run."""
    written: list[Path] = []
    for group in groups:
        for line in families(group, tuple(PUBLISHED)):
            cells = reversed(list(zip(line.marks, line.rows.index, strict=True)))
            columns = {f"tau {mark}": str(cell) for mark, cell in cells}
            drawn = sheet(store, group, columns, f"Fig. 13: tau, {line.label}", SWEPT)
            if drawn:
                written.append(save(drawn, outdir, "fig13", len(written)))
    return written


def sheet(store: Store, group: Measured, columns: Mapping[str, str], title: str, most: int) -> Figure | None:
    """A row a prompt, AR's picture and then a column a cell; None where AR made no picture on a known grid.

    Args:
        columns: cells by the titles of their columns.
    """
    base = next(iter(group.rows.index[group.rows["role"] == "baseline"]), None)
    if base is None or not columns or not store.cell(str(base)).meta.get("grid"):
        return None
    ar = store.cell(str(base))
    made = FinishedCell.of(ar).samples["output"].fillna("").str.endswith(".png")
    first: dict[str, int] = {}
    for prompt, repetition in made.index[made]:
        first.setdefault(str(prompt), int(repetition))
    shown = list(first.items())[:most]
    if not shown:
        return None
    drawn = blank(group, f"{title}; each picture's own speed-up", len(shown), len(columns) + 1)
    titled = {"AR": ar} | {name: store.cell(cell) for name, cell in columns.items()}
    for column, (name, cell) in enumerate(titled.items()):
        stamps = ratios(ar, cell)
        for row, (prompt, repetition) in enumerate(shown):
            axes = drawn.axes[row * len(titled) + column]
            if cell.meta.get("grid") and show_output(axes, store, cell, prompt, repetition) and column:
                _stamp(axes, stamps.get((prompt, repetition), math.nan))
            if not row:
                axes.set_title(fill(name, 24), fontsize=6)
            if not column:
                axes.set_ylabel(fill(prompt, 20), fontsize=6)
    return drawn


def ratios(base: Cell, cell: Cell) -> dict[tuple[str, int], float]:
    """Wall speed-up of each picture that both decoded, by prompt and repetition: ms a token, AR's over this."""
    paired = (token_ms(FinishedCell.of(base).totals) / token_ms(FinishedCell.of(cell).totals)).dropna()
    keys = ((str(prompt), int(repetition)) for prompt, repetition in paired.index)
    return dict(zip(keys, paired.astype(float), strict=True))


def _stamp(axes: Axes, speedup: float) -> None:
    text = f"{speedup:.2f}x" if math.isfinite(speedup) else "not timed"
    axes.text(0.04, 0.05, text, transform=axes.transAxes, color="white", fontsize=7, bbox=STAMP)
