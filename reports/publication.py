"""Figures of a run for a paper: one PDF with embedded fonts, of the cells that are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import pandas as pd
from matplotlib import rc_context
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure

from stridebench.harness.errors import UnknownNameError, UsageError
from stridebench.harness.record.store import Store
from stridebench.reports import forest, pareto
from stridebench.reports.pareto import STYLE
from stridebench.reports.run_report import additions
from stridebench.reports.summary import summarise

DRAWN = {"forest": forest.draw, "pareto": pareto.draw}
"""Figures of every run."""


def figure_names() -> list[str]:
    """Return the names of all figures: those of every run, and those of the papers."""
    return [*DRAWN, *sorted(figure for report in additions() for figure in report.figure_names())]


def write_pdf(store: Store, name: str, cells: Sequence[str], path: Path, column: bool = False) -> Path:
    """Write a figure as PDF, one page a panel group.

    Args:
        cells: ids or labels of cells, with * and ? as wildcards; all if there are none.
        column: 3.3 inches wide, for a column of a paper; the forest plot alone.
    """
    if name not in figure_names():
        raise UnknownNameError("figure", name, figure_names())
    if column and name != "forest":
        raise UsageError(f"--width column is for the figure forest; {name} has the width of a page")
    frame = summarise(store)
    chosen = choose(frame, cells)
    with rc_context(STYLE):
        figures = list(_draw(store, name, frame[frame["cell"].isin(chosen)], column))
        if not figures:
            raise UsageError(f"the cells of {store.path} have nothing to draw for {name}; stride report lists them")
        path.parent.mkdir(parents=True, exist_ok=True)
        with PdfPages(path, metadata={"Creator": "stridebench", "Producer": None, "CreationDate": None}) as pages:
            for figure in figures:
                pages.savefig(figure)
    return path


def choose(frame: pd.DataFrame, patterns: Sequence[str]) -> list[str]:
    """Return the cells whose id or label fits a pattern, in the order of the summary."""
    names = {str(cell): str(label) for cell, label in zip(frame["cell"], frame["label"], strict=True)}
    for pattern in patterns:
        if not any(_fits(pattern, cell, label) for cell, label in names.items()):
            labels = ", ".join(dict.fromkeys(names.values()))
            raise UsageError(f"no cell of the run has the id or label {pattern!r}; its labels are {labels}")
    return [cell for cell, label in names.items() if not patterns or any(_fits(p, cell, label) for p in patterns)]


def _fits(pattern: str, cell: str, label: str) -> bool:
    return fnmatchcase(cell, pattern) or fnmatchcase(label, pattern)


def _draw(store: Store, name: str, frame: pd.DataFrame, column: bool) -> Iterable[Figure]:
    if name in DRAWN:
        figure = forest.draw(frame, column=True) if column else DRAWN[name](frame)
        return [] if figure is None else [figure]
    report = next(report for report in additions() if name in report.figure_names())
    return report.draw(store, name, set(frame["cell"]))
