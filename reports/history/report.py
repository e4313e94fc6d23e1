"""The table and the figure of a history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from stridebench.reports.history.changes import FEWEST, Change, changes
from stridebench.reports.history.series import Series
from stridebench.reports.plot_style import DASHES, STYLE
from stridebench.reports.text_table import markdown_lines, number

PANELS = 24
"""Panels of a figure at most; series with changes come first."""


@dataclass(frozen=True)
class Finding:
    """A series and its changes."""

    series: Series
    changes: tuple[Change, ...]

    @property
    def verdict(self) -> str:
        """`changed`, `no change`, or `inconclusive`: fewer than six nights, or the latest nights have no value."""
        if self.changes:
            return "changed"
        return "inconclusive" if self.reason else "no change"

    @property
    def reason(self) -> str:
        """Why nothing can be said of the latest nights; empty: something can."""
        if self.series.missing:
            return f"no value in the latest {self.series.missing} nights"
        return f"under {FEWEST} nights" if len(self.series.nights) < FEWEST else ""


def findings(series: Sequence[Series]) -> list[Finding]:
    """Each series with its changes."""
    return [Finding(one, tuple(changes(one))) for one in series]


def table(results: Sequence[Finding]) -> list[str]:
    """The lines of the report in Markdown: every change with its commits, then every series."""
    steps = [(finding.series, change) for finding in results for change in finding.changes]
    titles = ["cell", "setting", "metric", "before", "after", "change", "first night", "commits"]
    rows = [
        [
            one.label,
            one.setting,
            one.metric,
            number(change.before, 3),
            number(change.after, 3),
            "-" if change.relative is None else f"{change.relative:+.1%}",
            change.first.created[:16],
            change.commits,
        ]
        for one, change in steps
    ]
    lines = ["# History", "", *(markdown_lines(titles, rows) if rows else [_none(results)]), ""]
    titles = ["cell", "setting", "metric", "nights", "holes", "first", "latest", "changes", "verdict"]
    rows = [
        [
            (one := finding.series).label,
            one.setting,
            one.metric,
            str(len(one.nights)),
            str(one.holes),
            number(one.values[0], 3),
            number(one.values[-1], 3),
            str(len(finding.changes)),
            finding.verdict + (f": {finding.reason}" if finding.reason else ""),
        ]
        for finding in results
    ]
    return [*lines, "## Series", "", *markdown_lines(titles, rows), "", *_notes(results)]


def _none(results: Sequence[Finding]) -> str:
    """What a history without a change says."""
    if not results:
        return "Inconclusive: no figure has a value in two nights, so no change can be found."
    open_ones = sum(finding.verdict == "inconclusive" for finding in results)
    if open_ones == len(results):
        return "Inconclusive: no change can be found yet. The table says why."
    return "No change was found." + (f" Of {open_ones} series nothing can be said." if open_ones else "")


def _notes(results: Sequence[Finding]) -> list[str]:
    machines = {finding.series.machine for finding in results} - {None}
    notes = []
    if len(machines) > 1:
        notes.append("- speed-ups of different machines are series of their own")
    return notes


def document(results: Sequence[Finding]) -> list[dict[str, Any]]:
    """Every series with its nights, values and changes, as JSON."""
    rows = []
    for finding in results:
        steps = [{**asdict(one), "relative": one.relative, "commits": one.commits} for one in finding.changes]
        judged = {"changes": steps, "verdict": finding.verdict, "reason": finding.reason}
        rows.append({**asdict(finding.series), **judged})
    return rows


def figure(results: Sequence[Finding], path: Path) -> Path | None:
    """Draw the series, those with changes first; None where there is none."""
    drawn = sorted(results, key=lambda finding: not finding.changes)[:PANELS]
    if not drawn:
        return None
    columns = min(3, len(drawn))
    rows = -(-len(drawn) // columns)
    with rc_context(STYLE):
        sheet = Figure(figsize=(5 * columns, 2.4 * rows), layout="constrained")
        FigureCanvasAgg(sheet)
        panels = sheet.subplots(rows, columns, squeeze=False).ravel()
        for axes, finding in zip(panels, drawn, strict=False):
            one = finding.series
            times = np.asarray(pd.to_datetime([night.created for night in one.nights], utc=True, format="ISO8601"))
            axes.plot(times, one.values, marker=".", lw=1, color="C0")
            for change in finding.changes:
                axes.axvline(pd.Timestamp(change.first.created), color="C3", ls=DASHES, lw=1)
            axes.set_title(f"{one.label}\n{one.setting}: {one.metric}", fontsize=8)
            axes.tick_params(labelsize=7)
            axes.tick_params(axis="x", rotation=30)
        for axes in panels[len(drawn) :]:
            axes.set_axis_off()
        sheet.savefig(path, dpi=120)
    return path
