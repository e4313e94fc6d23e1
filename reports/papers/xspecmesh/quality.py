"""XSpecMesh's "no difference in quality" as equivalence tests, paired by shape.

Row A decoded again with other seeds is tested too: where it is not equivalent to itself, the shapes are too few to say
so of anything. Source: Chen et al., XSpecMesh, Table 3, for the margin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from harness.record import stats
from reports.papers.measured import Measured
from reports.papers.xspecmesh.configs import CONFIGS, DISTANCES, Setting, settings
from reports.summary import FinishedCell
from reports.text_table import Column, TextTable

if TYPE_CHECKING:
    from harness.record.store import Store

MARGIN = 0.05
"""Of the reference's mean distance: about half of what separates C, which the paper calls worse, from A (8.8 and
11.8 %), and three times what separates E (0.3 and 1.7 %)."""
PAIRS = (
    *((row, "A") for row in ("B", "C", "D", "E", "full", "truncated")),
    *((row, f"{row}-tuned") for row in ("C", "E", "full")),
    *((f"{row}-tuned", "A") for row in ("C", "E", "full")),
    ("E", "C"),
)
"""What is compared with what: with the base, with the tuned backbone alone, and E with C."""
HEADS = (
    "configuration",
    "against",
    "distance",
    "shapes",
    "failed",
    "difference",
    "margin",
    "90 % interval",
    "p",
    "verdict",
)
NOTES = (
    f"difference: mean over shapes, less the reference; margin: {MARGIN:.0%} of the reference's mean over those shapes",
    "verdict at 5 %: equivalent, the 90 % interval lies within the margin (two one-sided paired t-tests); different, "
    "outside it; inconclusive, neither: more shapes are needed, and it is no evidence of equality",
    "failed: shapes that became no mesh here and at the reference; they have no distance, and are in no other column",
)


def sheet(store: Store, groups: Sequence[Measured]) -> list[TextTable]:
    """A row for each pair and distance."""
    sheets = []
    for setting in settings(store, groups):
        rows = [line for name, one, other in _pairs(setting) for line in _lines(name, one, other)]
        if rows:
            title = f"XSpecMesh: quality as equivalence | measured on {setting.title}"
            sheets.append(TextTable(title, _columns(), rows, list(NOTES)))
    return sheets


def _columns() -> tuple[Column, ...]:
    """The verdict stays on a narrow terminal."""
    return tuple(Column(title, title, rank=0 if title == "verdict" else i) for i, title in enumerate(HEADS))


def _pairs(setting: Setting) -> Iterator[tuple[tuple[str, str], FinishedCell, FinishedCell]]:
    base = setting.held(CONFIGS["A"])
    floor = base.cell.meta.get("floor") if base else None
    if base and floor in setting.store.cells():
        yield ("A, other seeds", "A"), FinishedCell.of(setting.store.cell(str(floor))), base
    for one, other in PAIRS:
        held, reference = setting.held(CONFIGS[one]), setting.held(CONFIGS[other])
        if held and reference:
            yield (one, other), held, reference


def _lines(name: tuple[str, str], held: FinishedCell, reference: FinishedCell) -> Iterator[list[str]]:
    decoded = [_decoded(one) for one in (held, reference)]
    asked = decoded[0].intersection(decoded[1])
    lost = [len(asked.difference(one.samples.index)) for one in (held, reference)]
    failed = f"{lost[0]} and {lost[1]} of {len(asked)}"
    both = held.samples.index.intersection(reference.samples.index)
    for score, title in DISTANCES.items():
        if not {score} <= set(held.scores) & set(reference.scores):
            continue
        theirs = reference.scores.loc[both, score]
        found = (
            stats.equivalence(theirs, held.scores.loc[both, score], MARGIN * float(theirs.mean()))
            if len(both)
            else None
        )
        yield [*name, title, *_figures(found, failed)]


def _decoded(held: FinishedCell) -> pd.Index[Any]:
    """(prompt, repetition) of all that was decoded and counted, well or not."""
    run = held.cell.samples[~held.cell.samples["warmup"].astype(bool)]
    return run.set_index(["prompt", "repetition"]).index


def _figures(found: stats.Equivalence | None, failed: str) -> list[str]:
    if found is None:
        return ["0", failed, "-", "-", "-", "-", "inconclusive"]
    ends = "-" if found.low is None else f"[{found.low:+.4f}, {found.high:+.4f}]"
    p = "-" if found.p is None else f"{found.p:.3g}"
    return [str(found.n), failed, f"{found.difference:+.4f}", f"{found.margin:.4f}", ends, p, found.verdict]
