"""The table and the figure of a history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stridebench.reports.history.series import Night, Series
from stridebench.reports.text_table import Column, TextTable, markdown_lines, number

# Candidates are the change points of ruptures (PELT) with a cost of squared deviations, in units of the noise that the
# differences of neighbouring nights show. Each is then tested between its neighbours, in two ways:
# - against noise that goes on for several nights: it explains ``GAIN`` times the variance of the nights around it. In
#   95 of 100 series without a change no place does, even if neighbouring nights are correlated by 0.6 (AR(1));
# - against odd nights: in 95 of 100 permutations of these nights no place explains as much.
# A night's deviation is at least a share of its standard error over prompts (`WITHIN`). The whole error would be too
# much: it is over prompts drawn anew, and all nights have the same ones, so most of it is common to them.
# ``python -m tests.power.history`` measures false alarms and power.


FEWEST = 8
"""Nights below which no change is looked for: permutations of fewer are too few to tell one."""
SHORTEST = 3
"""Nights on each side of a change: a step is seen on its third night, and one odd night is none."""
PENALTY = 25.0
"""Least gain of a candidate in units of the noise's variance: five standard errors."""
GAIN, SEVERAL = 40.0, 60.0
"""Least gain in units of the variance around a change: of the only candidate of a series, and of several."""
PERMUTATIONS, ALPHA = 999, 0.05
NEGLIGIBLE, WITHIN = 0.002, 0.1
"""The deviation of a night is at least this share of its value, and this share of its standard error over prompts.

A tenth of the error is what two nights differ by whose prompts agree to a correlation of 0.995.
"""


@dataclass(frozen=True)
class Change:
    """A step of a series.

    Args:
        before: mean of the nights since the change before.
        after: mean of the nights up to the next change.
    """

    before: float
    after: float
    last: Night
    first: Night

    @property
    def relative(self) -> float | None:
        """Return the step as a share of the size before, or None if that is 0."""
        return (self.after - self.before) / abs(self.before) if self.before else None

    @property
    def commits(self) -> str:
        """The range of commits in which the change lies."""
        return f"{self.last.commit or 'unknown'}..{self.first.commit or 'unknown'}"


def changes(series: Series) -> list[Change]:
    """The change points of a series, in the order of time; none in fewer than eight nights."""
    values = np.array(series.values, dtype=np.float64)
    if len(values) < FEWEST:
        return []
    floor = max(NEGLIGIBLE * float(np.median(np.abs(values))), WITHIN * series.error, 1e-12)
    import ruptures  # with scipy's optimisers, which tables of fewer nights do not need

    scaled = (values - np.median(values)) / max(noise(values), floor)
    search = ruptures.Pelt(model="l2", min_size=SHORTEST, jump=1).fit(scaled[:, None])
    ends = _tested(values, floor, [0, *search.predict(pen=PENALTY)])
    parts = [values[begin:end] for begin, end in pairwise(ends)]
    return [
        Change(float(left.mean()), float(right.mean()), series.nights[place - 1], series.nights[place])
        for (left, right), place in zip(pairwise(parts), ends[1:-1], strict=True)
    ]


def noise(values: NDArray[np.float64]) -> float:
    """Standard deviation of a night, from the median of the absolute differences of neighbours."""
    return 1.4826 * float(np.median(np.abs(np.diff(values)))) / 2**0.5


def _tested(values: NDArray[np.float64], floor: float, ends: list[int]) -> list[int]:
    """Return the ends of the parts between changes that pass both tests; the weakest candidate is left out first."""
    while len(ends) > 2:
        around = [values[begin:end] for begin, end in zip(ends, ends[2:], strict=False)]
        gains = [
            float(_gains(nights[None], floor)[0, place - begin - SHORTEST])
            for nights, begin, place in zip(around, ends, ends[1:], strict=False)
        ]
        weakest = int(np.argmin(gains))
        if gains[weakest] >= (GAIN if len(ends) == 3 else SEVERAL):
            p = [_p_of_permutations(nights, gain, floor) for nights, gain in zip(around, gains, strict=True)]
            weakest = int(np.argmax(p))
            if p[weakest] <= ALPHA:
                break
        ends = [*ends[: weakest + 1], *ends[weakest + 2 :]]
    return ends


def _gains(rows: NDArray[np.float64], floor: float) -> NDArray[np.float64]:
    """Return what a change at each place of each row explains, in units of the variance around it, [rows, places].

    The first place is behind ``SHORTEST`` nights, and the last one before as many. The deviation is at least ``floor``.
    """
    n = rows.shape[1]
    centred = rows - rows.mean(axis=1, keepdims=True)
    places = np.arange(SHORTEST, n - SHORTEST + 1)
    explained = np.cumsum(centred, axis=1)[:, places - 1] ** 2 * n / (places * (n - places))
    rest = (centred**2).sum(axis=1, keepdims=True) - explained
    gains: NDArray[np.float64] = explained / np.maximum(rest / (n - 2), floor**2)
    return gains


def _p_of_permutations(nights: NDArray[np.float64], gain: float, floor: float) -> float:
    """Return the share of permutations of the nights with a place that explains as much."""
    rows = np.random.default_rng(0).permuted(np.tile(nights, (PERMUTATIONS, 1)), axis=1)
    return float((_gains(rows, floor).max(axis=1) >= gain * (1 - 1e-9)).sum() + 1) / (PERMUTATIONS + 1)


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
