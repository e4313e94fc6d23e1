"""MuLo-SD's Figs. 8 and 9: quality against speed-up, for MuLo-SD over tau and for other methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from stridebench.harness.record.cell_files import SealedCell
from stridebench.harness.record.store import Store
from stridebench.reports.finished_cell import FinishedCell, token_ms
from stridebench.reports.papers.charts import ChartData, qualities, source
from stridebench.reports.papers.drawing import blank, figure, group_title, show_output
from stridebench.reports.papers.measured import CellGroup, MeasuredRun
from stridebench.reports.papers.paper_files import published

UNTRAINED = ("repeat", "bilinear")
DECODING = ("samplers", "factor", "window", "draft_window")
RADIUS = ("radius", "samplers", "factor")


@dataclass(frozen=True)
class SweepLine:
    """Cells joined by a curve."""

    label: str
    rows: pd.DataFrame
    marks: tuple[str, ...]
    swept: bool = True

    @property
    def cells(self) -> dict[str, str]:
        """Return the cells by their marks."""
        return dict(zip(self.marks, map(str, self.rows.index), strict=True))


def taus(run: MeasuredRun, group: CellGroup) -> list[SweepLine]:
    """Return the sweeps over tau that differ in samplers, scale or window only."""
    return families(run, group, DECODING)


def radii(run: MeasuredRun, group: CellGroup) -> list[SweepLine]:
    """Return the sweeps over tau at each radius, cell by cell as published, with trained samplers."""
    lines = families(run, group, RADIUS)
    return [line for line in lines if option(line.rows["options"].iloc[0], "samplers") not in UNTRAINED]


def option(options: Mapping[str, Any], key: str) -> Any:
    """Return a parameter of MuLo-SD, or the published one if the run stored none."""
    return options.get(key, published("mulo_sd")[key])


def families(run: MeasuredRun, group: CellGroup, varied: Sequence[str]) -> list[SweepLine]:
    """Return sweeps over tau in its order: one line a value of the varied options, the others as published.

    The suite's role ``samplers`` replaces published options.
    """
    fixed = {**published("mulo_sd"), **run.roles.get("samplers", {})}
    lines: dict[tuple[Any, ...], list[tuple[float, str]]] = {}
    for cell, options in group.rows.loc[group.rows["method"] == "mulo_sd", "options"].items():
        if all(option(options, key) == value for key, value in fixed.items() if key not in varied):
            values = tuple(option(options, key) for key in varied)
            lines.setdefault(values, []).append((float(options["tau"]), str(cell)))
    return [
        SweepLine(
            _label(fixed, varied, values),
            group.rows.loc[[cell for _, cell in sorted(line)]],
            tuple(f"{tau:g}" for tau, _ in sorted(line)),
        )
        for values, line in lines.items()
    ]


def _label(published: Mapping[str, Any], varied: Sequence[str], values: Sequence[Any]) -> str:
    """Name the first option always, and the others if they are not as published."""
    pairs = list(zip(varied, values, strict=True))
    return ", ".join(f"{key} {value}" for i, (key, value) in enumerate(pairs) if not i or value != published[key])


def others(group: CellGroup) -> list[SweepLine]:
    """Return the other methods, the slowest cell of each first, and autoregressive decoding."""
    rows = group.rows[(group.rows["method"] != "mulo_sd") & group.rows["speedup"].notna()]
    lines = []
    for method, part in rows.sort_values("speedup", kind="stable").groupby("method", sort=False):
        marks = tuple(str(label).removeprefix(str(method)).strip() for label in part["label"])
        label = str(method) if len(part) > 1 else str(part["label"].iloc[0])
        if part["role"].eq("baseline").all():
            label = "AR"
        lines.append(SweepLine(label, part, marks if len(part) > 1 else ("",), swept=False))
    return lines


def timed(rows: pd.DataFrame) -> pd.Series[bool]:
    """Return which rows have a speed-up; none if the run lacks a baseline."""
    return rows.get("speedup", pd.Series(math.nan, rows.index)).notna()


def _data(run: MeasuredRun, sweeps: Callable[[MeasuredRun, CellGroup], list[SweepLine]]) -> Iterator[ChartData]:
    """Yield the sweeps that were timed, and the other methods; nothing if no sweep was timed or no quality measured."""
    for group in run.groups:
        lines = [line for line in sweeps(run, group) if timed(line.rows).any()]
        if lines and qualities(group.rows):
            parts = [
                line.rows.assign(line=line.label, mark=list(line.marks), alone=not line.swept)
                for line in [*lines, *others(group)]
            ]
            yield ChartData(group.title, pd.concat(parts))


@source("mulo_sd_taus")
def by_tau(run: MeasuredRun) -> Iterator[ChartData]:
    """Yield Fig. 8: quality and speed-up over tau."""
    return _data(run, taus)


@source("mulo_sd_radii")
def by_radius(run: MeasuredRun) -> Iterator[ChartData]:
    """Yield Fig. 9: the same at each radius."""
    return _data(run, radii)


# MuLo-SD's pictures next to the target's (Figs. 4 and 10-13), each with its speed-up at the bottom left.
# A sheet shows the first prompts of the run, not chosen ones. Each cell of MuLo-SD is on a sheet of its sweep.


COMPARED, SWEPT = 10, 6
"""Prompts of Figs. 10 and 13."""
TAU = "0.0001"
"""The tau of the paper's comparisons."""
STAMP = {"facecolor": "black", "edgecolor": "none", "alpha": 0.65, "pad": 1.2}


@figure("mulo_sd_fig10")
def comparison(run: MeasuredRun) -> Iterator[Figure]:
    """Draw Figs. 4 and 10-12: AR, MuLo-SD at the paper's tau with each samplers and window, and other methods."""
    for group in run.groups:
        columns = {
            f"mulo_sd tau {TAU}, {line.label}": line.cells[TAU]
            for line in families(run, group, DECODING)
            if TAU in line.marks
        }
        others = group.rows[(group.rows["role"] == "method") & (group.rows["method"] != "mulo_sd")]
        columns |= {str(row["label"]): str(cell) for cell, row in others.iterrows()} if columns else {}
        yield from picture_sheet(run.store, group, columns, "Figs. 4, 10-12: beside AR", COMPARED)


@figure("mulo_sd_fig13")
def sweeps(run: MeasuredRun) -> Iterator[Figure]:
    """Draw Fig. 13: AR, then MuLo-SD from the strictest tau to the loosest; one sheet a sweep."""
    for group in run.groups:
        for line in families(run, group, tuple(published("mulo_sd"))):
            columns = {f"tau {mark}": cell for mark, cell in reversed(line.cells.items())}
            yield from picture_sheet(run.store, group, columns, f"Fig. 13: tau, {line.label}", SWEPT)


def picture_sheet(
    store: Store, group: CellGroup, columns: Mapping[str, str], title: str, most: int
) -> Iterator[Figure]:
    """Draw one row a prompt: AR's picture, then one column a cell; nothing if AR has no picture on a known grid.

    Args:
        columns: cells by the titles of their columns.
    """
    base = next(iter(group.cells(role="baseline")), None)
    if base is None or not columns or not store.cell(base).meta.grid:
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
            if cell.meta.grid and show_output(axes, store, cell, prompt, repetition) and column:
                speedup = stamps.get((prompt, repetition))
                text = f"{speedup:.2f}x" if speedup is not None else "not timed"
                axes.text(0.04, 0.05, text, transform=axes.transAxes, color="white", fontsize=7, bbox=STAMP)
            if not row:
                axes.set_title(fill(name, 24), fontsize=6)
            if not column:
                axes.set_ylabel(fill(prompt, 20), fontsize=6)
    yield drawn


def _first_pictures(cell: SealedCell, most: int) -> dict[str, int]:
    """Return the first repetition of each of the first prompts that became a picture."""
    pictures = FinishedCell.of(cell).samples["output"].fillna("").str.endswith(".png")
    first: dict[str, int] = {}
    for prompt, repetition in pictures.index[pictures]:
        first.setdefault(str(prompt), int(repetition))
    return dict(list(first.items())[:most])


def ratios(base: SealedCell, cell: SealedCell) -> dict[tuple[str, int], float]:
    """Return the wall speed-up of each picture that both cells decoded, by prompt and repetition."""
    paired = (token_ms(FinishedCell.of(base).totals) / token_ms(FinishedCell.of(cell).totals)).dropna()
    keys = ((str(prompt), int(repetition)) for prompt, repetition in paired.index)
    return dict(zip(keys, paired.astype(float), strict=True))
