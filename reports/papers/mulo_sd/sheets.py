"""MuLo-SD's pictures beside the target's (Figs. 4 and 10-13), each with its own speed-up at the bottom left.

A sheet shows the first prompts of the run, not chosen ones. Each cell of MuLo-SD is on a sheet of its sweep.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from textwrap import fill
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stridebench.reports.papers.drawing import blank, group_title, show_output
from stridebench.reports.papers.measured import Measured, Run
from stridebench.reports.papers.mulo_sd.pareto import DECODING, families
from stridebench.reports.papers.paper_files import published
from stridebench.reports.papers.registry import figure
from stridebench.reports.summary import FinishedCell, token_ms

if TYPE_CHECKING:
    from stridebench.harness.record.store import Cell, Store

COMPARED, SWEPT = 10, 6
"""Prompts of Figs. 10 and 13."""
TAU = "0.0001"
"""The tau of the paper's comparisons."""
STAMP = {"facecolor": "black", "edgecolor": "none", "alpha": 0.65, "pad": 1.2}


@figure("mulo_sd_fig10")
def comparison(run: Run) -> Iterator[Figure]:
    """Draw Figs. 4 and 10-12: AR, MuLo-SD at the paper's tau with each samplers and window, and other methods."""
    for group in run.groups:
        columns = {
            f"mulo_sd tau {TAU}, {line.label}": line.cells[TAU]
            for line in families(run, group, DECODING)
            if TAU in line.marks
        }
        others = group.rows[(group.rows["role"] == "method") & (group.rows["method"] != "mulo_sd")]
        columns |= {str(row["label"]): str(cell) for cell, row in others.iterrows()} if columns else {}
        yield from sheet(run.store, group, columns, "Figs. 4, 10-12: beside AR", COMPARED)


@figure("mulo_sd_fig13")
def sweeps(run: Run) -> Iterator[Figure]:
    """Draw Fig. 13: AR, then MuLo-SD from the strictest tau to the loosest; one sheet a sweep."""
    for group in run.groups:
        for line in families(run, group, tuple(published("mulo_sd"))):
            columns = {f"tau {mark}": cell for mark, cell in reversed(line.cells.items())}
            yield from sheet(run.store, group, columns, f"Fig. 13: tau, {line.label}", SWEPT)


def sheet(store: Store, group: Measured, columns: Mapping[str, str], title: str, most: int) -> Iterator[Figure]:
    """Draw one row a prompt: AR's picture, then one column a cell; nothing where AR has no picture on a known grid.

    Args:
        store: the run.
        group: its cells.
        columns: cells by the titles of their columns.
        title: of the sheet.
        most: number of prompts.
    """
    base = next(iter(group.cells(role="baseline")), None)
    if base is None or not columns or not store.cell(base).meta.get("grid"):
        return
    cells = {"AR": store.cell(base)} | {name: store.cell(cell) for name, cell in columns.items()}
    prompts = _first_pictures(cells["AR"], most)
    if not prompts:
        return
    title = group_title(f"{title}; each picture's own speed-up", group)
    drawn = blank(title, len(prompts), len(cells))
    for column, (name, cell) in enumerate(cells.items()):
        stamps = ratios(cells["AR"], cell)
        for row, (prompt, repetition) in enumerate(prompts.items()):
            axes = drawn.axes[row * len(cells) + column]
            if cell.meta.get("grid") and show_output(axes, store, cell, prompt, repetition) and column:
                _stamp(axes, stamps.get((prompt, repetition), math.nan))
            if not row:
                axes.set_title(fill(name, 24), fontsize=6)
            if not column:
                axes.set_ylabel(fill(prompt, 20), fontsize=6)
    yield drawn


def _first_pictures(cell: Cell, most: int) -> dict[str, int]:
    """Return the first repetition of each of the first prompts that became a picture."""
    pictures = FinishedCell.of(cell).samples["output"].fillna("").str.endswith(".png")
    first: dict[str, int] = {}
    for prompt, repetition in pictures.index[pictures]:
        first.setdefault(str(prompt), int(repetition))
    return dict(list(first.items())[:most])


def ratios(base: Cell, cell: Cell) -> dict[tuple[str, int], float]:
    """Return the wall speed-up of each picture that both cells decoded, by prompt and repetition."""
    paired = (token_ms(FinishedCell.of(base).totals) / token_ms(FinishedCell.of(cell).totals)).dropna()
    keys = ((str(prompt), int(repetition)) for prompt, repetition in paired.index)
    return dict(zip(keys, paired.astype(float), strict=True))


def _stamp(axes: Axes, speedup: float) -> None:
    text = f"{speedup:.2f}x" if math.isfinite(speedup) else "not timed"
    axes.text(0.04, 0.05, text, transform=axes.transAxes, color="white", fontsize=7, bbox=STAMP)
