"""Numbers in MuLo-SD's text, compared with what the run measured; each has its place in the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stridebench.reports.papers.measured import Measured, Run, counted, plain
from stridebench.reports.papers.mulo_sd.pareto import Line, option, radii, timed
from stridebench.reports.papers.mulo_sd.sheets import ratios
from stridebench.reports.papers.mulo_sd.stages import breakdown, predicted
from stridebench.reports.papers.paper_files import printed, published
from stridebench.reports.papers.registry import sheet
from stridebench.reports.summary import FinishedCell
from stridebench.reports.text_table import UNMEASURED, TextTable, measured_text

if TYPE_CHECKING:
    from stridebench.harness.record.store import Cell

TAU, STRICT = "0.0001", "0.001"
"""The tau that the paper chooses, and the tau that it calls closest to the original."""


@dataclass(frozen=True)
class Swept:
    """The cells that a row is measured on.

    Args:
        run: the run.
        group: its cells.
        factor: of the row.
        line: MuLo-SD over tau as published, at the row's factor, with trained samplers. None: not run.
        base: the autoregressive cell. None: not run.
    """

    run: Run
    group: Measured
    factor: int
    line: Line | None
    base: str | None

    def cell(self, tau: str) -> Cell | None:
        """Return the cell at a tau."""
        name = self.line.cells.get(tau) if self.line else None
        return self.run.store.cell(name) if name else None


@sheet("mulo_sd_text")
def table(run: Run) -> Iterator[TextTable]:
    """Return a table for each group with cells of MuLo-SD: what, printed, measured, where."""
    text = printed("mulo_sd_text")
    notes = [
        "measured: with trained samplers, cell by cell, radius 3, at tau = 1e-4 where none is said; [low, high] is "
        "over prompts; the paper's times are of an A100"
    ]
    for group in run.groups:
        if not group.cells("mulo_sd"):
            continue
        base, lines = next(iter(group.cells(role="baseline")), None), []
        for row in text.rows.to_dict("records"):
            name, _, factor = str(row["key"]).partition("_")
            swept = Swept(run, group, int(factor), _line(run, group, int(factor)), base)
            line = {"What": row["What"], "Printed": row["Printed"], "Measured": MEASURES[name](swept) or UNMEASURED}
            lines.append(line | {"Where": row["Where"], "Remarks": row["notes"]})
        title = f"MuLo-SD, the text: printed of {text.layout.model} | measured on {group.title}"
        for filled_table in plain(title, lines, notes):
            yield replace(
                filled_table,
                columns=tuple(replace(column, rank=min(column.rank, 3)) for column in filled_table.columns),
            )


def _line(run: Run, group: Measured, factor: int) -> Line | None:
    for line in radii(run, group):
        options = line.rows["options"].iloc[0]
        if (option(options, "factor"), option(options, "radius")) == (factor, published("mulo_sd")["radius"]):
            return line
    return None


def _overhead(swept: Swept) -> str | None:
    """Return the share of a picture's time without drafting and redrawing, and the share of the samplers."""
    cell = swept.cell(TAU)
    seconds = None if cell is None else breakdown(cell)
    if seconds is None:
        return None
    total, samplers = seconds.sum(), seconds["2 up-sampling"] + seconds["7 down-sampling"]
    rest = total - seconds["1 drafter"] - seconds["6 redraws"]
    return f"{rest / total:.1%}, of which the samplers {samplers / total:.1%}"


def _bound(swept: Swept) -> str | None:
    """Return the run's speed-up by eq. 10 and by the wall."""
    cell = swept.cell(TAU)
    speedups = None if cell is None else predicted(FinishedCell.of(cell).totals, swept.factor)
    if cell is None or speedups is None:
        return None
    wall = measured_text(swept.group.row(cell.name), "speedup")
    return f"eq. 10 {speedups.eq10:.2f} at a = {speedups.acceptance:.3f}, wall {wall}"


def _range(swept: Swept) -> str | None:
    """Return the least and the largest wall speed-up of the sweep."""
    if swept.line is None or not timed(swept.line.rows).any():
        return None
    speeds = swept.line.rows["speedup"].astype(float)
    return f"{speeds.min():.2f} - {speeds.max():.2f}"


def _slower(swept: Swept) -> str | None:
    """Return how many pictures at tau = 1e-3 took longer than AR's of the same prompt and seed."""
    cell = swept.cell(STRICT)
    speeds = ratios(swept.run.store.cell(swept.base), cell) if cell and swept.base else {}
    return f"{sum(speed < 1 for speed in speeds.values())} of {len(speeds)} pictures" if speeds else None


def _before(swept: Swept) -> str | None:
    """Return the mean seconds of opening and reading the prompt, of the autoregressive cell."""
    if swept.base is None:
        return None
    samples = counted(swept.run.store.cell(swept.base))
    return f"{float((samples['open_ns'] + samples['prefill_ns']).mean()) / 1e9:.3f}"


def _picture(swept: Swept) -> str | None:
    """Return the seconds of the autoregressive cell's pictures, and their tokens."""
    if swept.base is None:
        return None
    row = swept.group.row(swept.base)
    return f"{measured_text(row, 'seconds', digits=3)} of {row['tokens']:.0f} tokens"


MEASURES: dict[str, Callable[[Swept], str | None]] = {
    "overhead": _overhead,
    "bound": _bound,
    "range": _range,
    "slower": _slower,
    "before": _before,
    "picture": _picture,
}
"""Functions by the first word of a row's key; the last word is the factor."""
