"""What MuLo-SD's text says in numbers, beside what the run measured; each with its place in the paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reports.papers.measured import Measured, shown
from reports.papers.mulo_sd.pareto import PUBLISHED, Line, option, radii, timed
from reports.papers.mulo_sd.sheets import ratios
from reports.papers.mulo_sd.stages import breakdown, predicted
from reports.papers.printed import printed
from reports.summary import FinishedCell
from reports.text_table import UNMEASURED, Column, TextTable

if TYPE_CHECKING:
    from harness.record.store import Cell, Store

TAU, STRICT = "0.0001", "0.001"
"""What the paper settles on, and what it calls the closest to the original."""


@dataclass(frozen=True)
class Swept:
    """What a row is measured on.

    Args:
        line: MuLo-SD over tau as published, at the row's factor, with trained samplers; None: not run.
        base: the autoregressive cell; None: not run.
    """

    store: Store
    group: Measured
    factor: int
    line: Line | None
    base: str | None

    def cell(self, tau: str) -> Cell | None:
        """The cell at a tau."""
        names = {} if self.line is None else dict(zip(self.line.marks, self.line.rows.index, strict=True))
        return self.store.cell(str(names[tau])) if tau in names else None


def sheet(store: Store, groups: Sequence[Measured]) -> list[TextTable]:
    """A sheet a group with cells of MuLo-SD: what, printed, measured, where."""
    return [_sheet(store, group) for group in groups if (group.rows["method"] == "mulo_sd").any()]


def _sheet(store: Store, group: Measured) -> TextTable:
    held, rows = printed("mulo_sd_text"), []
    base = next((str(name) for name in group.rows.index[group.rows["role"] == "baseline"]), None)
    for row in held.rows.to_dict("records"):
        name, _, factor = str(row["key"]).partition("_")
        swept = Swept(store, group, int(factor), _line(group, int(factor)), base)
        rows.append([row["What"], row["Printed"], MEASURES[name](swept) or UNMEASURED, row["Where"], row["notes"]])
    titles = ("What", "Printed", "Measured", "Where", "Remarks")
    notes = [
        "measured: with trained samplers, cell by cell, radius 3, at tau = 1e-4 where none is said; [low, high] is "
        "over prompts; the paper's times are of an A100"
    ]
    columns = tuple(Column(title, title, rank=min(i, 3)) for i, title in enumerate(titles))
    return TextTable(f"MuLo-SD, the text: printed of {held.model} | measured on {group.title}", columns, rows, notes)


def _line(group: Measured, factor: int) -> Line | None:
    for line in radii(group):
        options = line.rows["options"].iloc[0]
        if (option(options, "factor"), option(options, "radius")) == (factor, PUBLISHED["radius"]):
            return line
    return None


def _overhead(swept: Swept) -> str | None:
    """Share of a picture's seconds that is neither drafting nor redrawing; the samplers' own beside it."""
    cell = swept.cell(TAU)
    found = None if cell is None else breakdown(cell)
    if found is None:
        return None
    whole, samplers = found.sum(), found["2 up-sampling"] + found["7 down-sampling"]
    rest = whole - found["1 drafter"] - found["6 redraws"]
    return f"{rest / whole:.1%}, of which the samplers {samplers / whole:.1%}"


def _bound(swept: Swept) -> str | None:
    """What the run came to, by eq. 10 and by the wall."""
    cell = swept.cell(TAU)
    found = None if cell is None else predicted(FinishedCell.of(cell).totals, swept.factor)
    if cell is None or found is None:
        return None
    wall = shown(swept.group.row(cell.name), ("speedup",), 2)
    return f"eq. 10 {found.eq10:.2f} at a = {found.acceptance:.3f}, wall {wall}"


def _range(swept: Swept) -> str | None:
    """Least and most wall speed-up of the sweep."""
    if swept.line is None or not timed(swept.line.rows).any():
        return None
    speeds = swept.line.rows["speedup"].astype(float)
    return f"{speeds.min():.2f} - {speeds.max():.2f}"


def _slower(swept: Swept) -> str | None:
    """Of the pictures at tau = 1e-3, how many took longer than AR's of the same prompt and seed."""
    cell = swept.cell(STRICT)
    found = ratios(swept.store.cell(swept.base), cell) if cell and swept.base else {}
    return f"{sum(x < 1 for x in found.values())} of {len(found)} pictures" if found else None


def _before(swept: Swept) -> str | None:
    """Mean seconds of opening and reading the prompt, of the autoregressive cell."""
    if swept.base is None:
        return None
    good = FinishedCell.of(swept.store.cell(swept.base)).samples
    return f"{float((good['open_ns'] + good['prefill_ns']).mean()) / 1e9:.3f}"


def _picture(swept: Swept) -> str | None:
    """Seconds of the autoregressive cell's pictures, and their tokens."""
    if swept.base is None:
        return None
    row = swept.group.row(swept.base)
    return f"{shown(row, ('seconds',), 3)} of {row['tokens']:.0f} tokens"


MEASURES: dict[str, Callable[[Swept], str | None]] = {
    **{"overhead": _overhead, "bound": _bound, "range": _range, "slower": _slower},
    **{"before": _before, "picture": _picture},
}
"""By the first word of a row's key; its last is the factor."""
