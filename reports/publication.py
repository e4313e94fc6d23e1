"""Figures of a run for a paper: one PDF with embedded fonts, of the cells that are asked for."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from stridebench.harness.errors import UnknownNameError, UsageError
from stridebench.harness.record.store import Store
from stridebench.reports import forest, pareto
from stridebench.reports.pareto import COLOURS, STYLE, STYLE_MARKERS
from stridebench.reports.run_report import additions
from stridebench.reports.summary import summarise
from stridebench.reports.tables import GROUP, setting_of

NUMBERS = re.compile(r":[\d.,]+(?= |$)")
"""Of a rule of acceptance, as in mixture:0.9."""


def draw_loss(frame: pd.DataFrame) -> Figure | None:
    """Draw tokens a pass against the loss of methods that declare their distributions, a panel a group of cells.

    The loss is the total variation between the declared distributions and the target's, added up over 100 tokens. Exact
    settings lie on the axis at 0; other approximate ones have no such number and are left out.

    Returns:
        The figure, or None if no cell declares its distributions.
    """
    done = frame[(frame["status"] == "done") & (frame["role"] != "floor") & frame["scr"].notna()]
    loss = done["loss"] if "loss" in done else pd.Series(math.nan, done.index)
    done = done.assign(loss=loss.where(loss.notna(), done["verdict"].map({"exact": 0.0})))
    groups = [rows.dropna(subset="loss") for _, rows in done.groupby(list(GROUP), sort=False, dropna=False)]
    groups = [rows for rows in groups if (rows["loss"] > 0).any()]
    if not groups:
        return None
    figure = Figure(figsize=(7.0, 4.4 * len(groups)), layout="constrained")
    for axes, rows in zip(figure.subplots(len(groups), squeeze=False)[:, 0], groups, strict=True):
        _loss_panel(axes, rows)
    return figure


def _loss_panel(axes: Axes, rows: pd.DataFrame) -> None:
    rules = rows["label"].map(lambda label: NUMBERS.sub("", label))
    common = set.intersection(*(set(rule.split()) for rule in rules[rows["loss"] > 0]))
    for number, (rule, points) in enumerate(rows.groupby(rules, sort=False)):
        colour = COLOURS[number % len(COLOURS)]
        points = points.sort_values("loss")
        ends = [(points.get(f"scr_{end}", points["scr"]) - points["scr"]).abs().fillna(0) for end in ("low", "high")]
        look: dict[str, Any] = {"color": colour, "marker": STYLE_MARKERS[colour], "ms": 6, "lw": 1.2, "elinewidth": 0.8}
        name = " ".join(word for word in rule.split() if word not in common) or rule
        axes.errorbar(points["loss"], points["scr"], yerr=ends, label=name, clip_on=False, zorder=3, **look)
        for x, y, label in zip(points["loss"], points["scr"], points["label"], strict=True):
            if value := NUMBERS.search(label):
                axes.annotate(value[0][1:], (x, y), (5, -10), textcoords="offset points", fontsize=8, color=colour)
    axes.set_xlim(left=0)
    axes.set_xlabel("total variation to the target per 100 tokens")
    axes.set_ylabel("tokens a pass of the target")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8))
    axes.set_title(setting_of(rows.iloc[0]), fontsize=10, loc="left")
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(0.0, -0.16), ncols=2)


DRAWN = {"forest": forest.draw, "pareto": pareto.draw, "loss": draw_loss}
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
