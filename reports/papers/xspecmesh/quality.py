"""XSpecMesh's "no difference in quality" as equivalence tests, paired by shape.

Row A with other seeds is tested too. Where it is not equivalent to itself, the shapes are too few for any such claim.
Source: Chen et al., XSpecMesh, Table 3, for the margin.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stridebench.harness.record import stats
from stridebench.reports.papers.measured import KEYS, Run, decoded, plain
from stridebench.reports.papers.registry import sheet
from stridebench.reports.papers.xspecmesh.facts import DISTANCES, Setting, settings
from stridebench.reports.summary import FinishedCell
from stridebench.reports.text_table import TextTable

if TYPE_CHECKING:
    import pandas as pd

MARGIN = 0.05
"""Share of the reference's mean distance: about half the difference of C, which the paper calls worse, to A (8.8 and
11.8 %), and three times the difference of E (0.3 and 1.7 %)."""
PAIRS = (
    *((role, "A") for role in ("B", "C", "D", "E", "full", "rival")),
    *((role, f"{role}-tuned") for role in ("C", "E", "full")),
    *((f"{role}-tuned", "A") for role in ("C", "E", "full")),
    ("E", "C"),
)
"""Compared roles: with the base, with the tuned backbone alone, and E with C."""
NOTES = (
    f"difference: mean over shapes, less the reference; margin: {MARGIN:.0%} of the reference's mean over those shapes",
    "verdict at 5 %: equivalent, the 90 % interval lies within the margin (two one-sided paired t-tests); different, "
    "outside it; inconclusive, neither: more shapes are needed, and it is no evidence of equality",
    "failed: shapes that became no mesh here and at the reference; they have no distance, and are in no other column",
)


@sheet("xspecmesh_quality")
def table(run: Run) -> Iterator[TextTable]:
    """Return one row a pair and distance; a narrow terminal keeps the verdict."""
    for setting in settings(run):
        lines = [line for pair in _pairs(setting) for line in _lines(*pair)]
        for filled_table in plain(f"XSpecMesh: quality as equivalence | measured on {setting.title}", lines, NOTES):
            *columns, verdict = filled_table.columns
            yield replace(filled_table, columns=(*columns, replace(verdict, rank=0)))


def _pairs(setting: Setting) -> Iterator[tuple[str, str, FinishedCell, FinishedCell]]:
    base = setting.outputs("A")
    floor = base.cell.meta.get("floor") if base else None
    if base and floor in setting.store.cells():
        yield "A, other seeds", "A", FinishedCell.of(setting.store.cell(str(floor))), base
    for role, other in PAIRS:
        outputs, reference = setting.outputs(role), setting.outputs(other)
        if outputs and reference:
            yield "truncated" if role == "rival" else role, other, outputs, reference


def _lines(name: str, against: str, outputs: FinishedCell, reference: FinishedCell) -> Iterator[dict[str, str]]:
    shapes = _shapes(outputs).intersection(_shapes(reference))
    lost = [len(shapes.difference(side.samples.index)) for side in (outputs, reference)]
    common = outputs.samples.index.intersection(reference.samples.index)
    for score, title in DISTANCES.items():
        if not {score} <= set(outputs.scores) & set(reference.scores):
            continue
        values = reference.scores.loc[common, score]
        margin = MARGIN * float(values.mean())
        test = stats.equivalence(values, outputs.scores.loc[common, score], margin) if len(common) else None
        yield {
            "configuration": name,
            "against": against,
            "distance": title,
            "shapes": str(test.n) if test else "0",
            "failed": f"{lost[0]} and {lost[1]} of {len(shapes)}",
            "difference": f"{test.difference:+.4f}" if test else "-",
            "margin": f"{test.margin:.4f}" if test else "-",
            "90 % interval": f"[{test.low:+.4f}, {test.high:+.4f}]" if test and test.low is not None else "-",
            "p": f"{test.p:.3g}" if test and test.p is not None else "-",
            "verdict": test.verdict if test else "inconclusive",
        }


def _shapes(outputs: FinishedCell) -> pd.Index[Any]:
    """Return (prompt, repetition) of all samples without warm-up, failed ones too."""
    return decoded(outputs.cell).set_index(KEYS).index
