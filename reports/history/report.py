"""The table and the figure of a history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from stridebench.reports.history.series import FEWEST, Change, Series, changes
from stridebench.reports.text_table import Column, TextTable, markdown_lines, number

PANELS = 24
"""Panels of a figure at most; series with changes come first."""


@dataclass(frozen=True)
class Finding:
    """A series and its changes."""

    series: Series
    changes: tuple[Change, ...]

    @property
    def verdict(self) -> str:
        """`changed`, `no change`, or `inconclusive`: fewer than eight nights, or the latest nights lack a value."""
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


CHANGES = (
    Column("cell", "cell", rank=0),
    Column("setting", "setting", rank=1),
    Column("metric", "metric", rank=0),
    Column("before", "before", rank=3),
    Column("after", "after", rank=3),
    Column("change", "change", rank=1),
    Column("night", "first night", rank=2),
    Column("commits", "commits", rank=2),
)
SERIES = (
    *CHANGES[:3],
    Column("nights", "nights", rank=3),
    Column("holes", "holes", rank=5),
    Column("first", "first", rank=3),
    Column("latest", "latest", rank=2),
    Column("changes", "changes", rank=4),
    Column("verdict", "verdict", rank=1, whole=True),
)


def markdown(results: Sequence[Finding]) -> str:
    """Return the report in Markdown: every change with its commits, then every series."""
    steps, all_series = _change_rows(results), [_series_row(one) for one in results]
    heads = [[column.title for column in columns] for columns in (CHANGES, SERIES)]
    first = markdown_lines(heads[0], steps) if steps else [f"{summary(results)}."]
    return "\n".join(["# History", "", *first, "", "## Series", "", *markdown_lines(heads[1], all_series), ""])


def tables(results: Sequence[Finding]) -> list[TextTable]:
    """Return the same for a terminal, without series that have one value in all nights, which are counted."""
    moving = [one for one in results if one.changes or one.series.missing or len(set(one.series.values)) > 1]
    still = len(results) - len(moving)
    notes = [f"{still} more series have one value in all nights"] if still else []
    machines = {one.series.machine for one in results} - {None}
    notes += ["speed-ups of different machines are different series"] if len(machines) > 1 else []
    steps = _change_rows(results)
    rows = [_series_row(one) for one in moving]
    return [TextTable(summary(results), CHANGES, steps, []), TextTable("series", SERIES, rows, notes)]


def summary(results: Sequence[Finding]) -> str:
    """Return what a history shows in one line, with the latest change."""
    steps = [(change, one.series) for one in results for change in one.changes]
    if steps:
        sentence = change_sentence(*max(steps, key=lambda step: step[0].first.created))
        return f"{len({one.cell + one.metric for _, one in steps})} of {len(results)} series changed, latest {sentence}"
    if not results:
        return "Inconclusive: no figure has a value in two nights, so no change can be found"
    open_ones = sum(one.verdict == "inconclusive" for one in results)
    if open_ones == len(results):
        return f"Inconclusive: no change can be found yet in {open_ones} series. The table says why"
    unsaid = f". Of {open_ones} series nothing can be said" if open_ones else ""
    return f"No change was found in {len(results) - open_ones} series{unsaid}"


def change_sentence(change: Change, one: Series) -> str:
    """Return which figure of which cell changed, when, and between which commits."""
    moved = f"{one.metric} {number(change.before, 3)} -> {number(change.after, 3)}"
    return f"{one.label} ({one.setting}) {moved} on {change.first.created[:16]}, commits {change.commits}"


def _change_rows(results: Sequence[Finding]) -> list[list[str]]:
    return [
        [
            *(finding.series.label, finding.series.setting, finding.series.metric),
            number(change.before, 3),
            number(change.after, 3),
            "-" if change.relative is None else f"{change.relative:+.1%}",
            change.first.created[:16],
            change.commits,
        ]
        for finding in results
        for change in finding.changes
    ]


def _series_row(finding: Finding) -> list[str]:
    one = finding.series
    counts = (str(len(one.nights)), str(one.holes), number(one.values[0], 3), number(one.values[-1], 3))
    verdict = finding.verdict + (f": {finding.reason}" if finding.reason else "")
    return [one.label, one.setting, one.metric, *counts, str(len(finding.changes)), verdict]


def document(results: Sequence[Finding]) -> list[dict[str, object]]:
    """Every series with its nights, values and changes, as JSON."""
    rows = []
    for finding in results:
        steps = [{**asdict(one), "relative": one.relative, "commits": one.commits} for one in finding.changes]
        judged = {"changes": steps, "verdict": finding.verdict, "reason": finding.reason}
        rows.append({**asdict(finding.series), **judged})
    return rows


def figure(results: Sequence[Finding], path: Path) -> Path | None:
    """Draw the series, those with changes first; return None if there is none."""
    drawn = sorted(results, key=lambda finding: not finding.changes)[:PANELS]
    if not drawn:
        return None
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from stridebench.reports.pareto import DASHES, STYLE

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
