"""What MuLo-SD's text says in numbers, beside what the run measured; each with its place in the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from reports.papers.measured import Measured, Run, counted, plain
from reports.papers.mulo_sd.pareto import PUBLISHED, Line, option, radii, timed
from reports.papers.mulo_sd.sheets import ratios
from reports.papers.mulo_sd.stages import breakdown, predicted
from reports.papers.paper_files import printed
from reports.papers.registry import sheet
from reports.summary import FinishedCell
from reports.text_table import UNMEASURED, TextTable, measured_text

if TYPE_CHECKING:
    from harness.record.store import Cell

TAU, STRICT = "0.0001", "0.001"
"""What the paper settles on, and what it calls the closest to the original."""


@dataclass(frozen=True)
class Swept:
    """What a row is measured on.

    Args:
        line: MuLo-SD over tau as published, at the row's factor, with trained samplers. None: not run.
        base: the autoregressive cell. None: not run.
    """

    run: Run
    group: Measured
    factor: int
    line: Line | None
    base: str | None

    def cell(self, tau: str) -> Cell | None:
        """The cell at a tau."""
        name = self.line.cells.get(tau) if self.line else None
        return self.run.store.cell(name) if name else None


@sheet("mulo_sd_text")
def table(run: Run) -> Iterator[TextTable]:
    """A sheet a group with cells of MuLo-SD: what, printed, measured, where."""
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
        for found in plain(title, lines, notes):
            yield replace(found, columns=tuple(replace(column, rank=min(column.rank, 3)) for column in found.columns))


def _line(run: Run, group: Measured, factor: int) -> Line | None:
    for line in radii(run, group):
        options = line.rows["options"].iloc[0]
        if (option(options, "factor"), option(options, "radius")) == (factor, PUBLISHED["radius"]):
            return line
    return None


def _overhead(swept: Swept) -> str | None:
    """Share of a picture's seconds that is neither drafting nor redrawing; the samplers' own beside it."""
    cell = swept.cell(TAU)
    seconds = None if cell is None else breakdown(cell)
    if seconds is None:
        return None
    whole, samplers = seconds.sum(), seconds["2 up-sampling"] + seconds["7 down-sampling"]
    rest = whole - seconds["1 drafter"] - seconds["6 redraws"]
    return f"{rest / whole:.1%}, of which the samplers {samplers / whole:.1%}"


def _bound(swept: Swept) -> str | None:
    """What the run came to, by eq. 10 and by the wall."""
    cell = swept.cell(TAU)
    speedups = None if cell is None else predicted(FinishedCell.of(cell).totals, swept.factor)
    if cell is None or speedups is None:
        return None
    wall = measured_text(swept.group.row(cell.name), "speedup")
    return f"eq. 10 {speedups.eq10:.2f} at a = {speedups.acceptance:.3f}, wall {wall}"


def _range(swept: Swept) -> str | None:
    """Least and most wall speed-up of the sweep."""
    if swept.line is None or not timed(swept.line.rows).any():
        return None
    speeds = swept.line.rows["speedup"].astype(float)
    return f"{speeds.min():.2f} - {speeds.max():.2f}"


def _slower(swept: Swept) -> str | None:
    """Of the pictures at tau = 1e-3, how many took longer than AR's of the same prompt and seed."""
    cell = swept.cell(STRICT)
    speeds = ratios(swept.run.store.cell(swept.base), cell) if cell and swept.base else {}
    return f"{sum(speed < 1 for speed in speeds.values())} of {len(speeds)} pictures" if speeds else None


def _before(swept: Swept) -> str | None:
    """Mean seconds of opening and reading the prompt, of the autoregressive cell."""
    if swept.base is None:
        return None
    samples = counted(swept.run.store.cell(swept.base))
    return f"{float((samples['open_ns'] + samples['prefill_ns']).mean()) / 1e9:.3f}"


def _picture(swept: Swept) -> str | None:
    """Seconds of the autoregressive cell's pictures, and their tokens."""
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
"""By the first word of a row's key; its last is the factor."""
