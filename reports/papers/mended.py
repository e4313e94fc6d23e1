"""Figures whose definition changed, before and now: `python -m stridebench.reports.papers.mended RUN...`.

Both follow from the same run, so that the difference is the definition's alone. Cells that show none are left out.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from stridebench.harness.record.store import Store
from stridebench.reports.papers.measured import measured
from stridebench.reports.pareto import is_quality
from stridebench.reports.summary import FinishedCell
from stridebench.reports.text_table import markdown_lines

HEADS = ("figure", "printed", "cell", "before", "now")
Value = Callable[["pd.Series[float]"], float | None]


@dataclass(frozen=True)
class Mended:
    """A figure with both definitions.

    Args:
        title: of the figure, before and now.
        printed: its place in a paper, and its value.
        before: from the totals of an output (see `harness.record.metrics.totals`) and its scores, summed over outputs.
        now: the same.
        shown: whether a cell's totals can show the difference.
    """

    title: str
    printed: str
    before: Value
    now: Value
    shown: Value
    digits: int = 2


def ratio(above: str, below: str, scale: float = 1.0) -> Value:
    """A sum over another sum."""

    def value(totals: pd.Series[float]) -> float | None:
        top, bottom = totals.get(above, math.nan), totals.get(below, 0.0)
        return None if not bottom or pd.isna(top) else float(top) / float(bottom) * scale

    return value


def column(name: str) -> Value:
    """A sum as it stands."""
    return lambda totals: float(totals[name]) if totals.get(name) else None


MENDED = (
    Mended(
        "levels of a tree a cycle: kept after reranking; built",
        "5.00 of EAGLE-2 (ADT-Tree, Table I)",
        ratio("levels", "steps"),
        ratio("levels_built", "steps"),
        ratio("levels_built", "steps"),
    ),
    Mended(
        "accepted / tested: with ends of rows, which leave no choice; without",
        "alpha of eq. 2 (ADT-Tree)",
        ratio("accepted", "tested"),
        ratio("free_accepted", "free_tested"),
        column("forced"),
        4,
    ),
    Mended(
        "log p of a token in nats: with forced tokens, whose log p is 0; without",
        "-4.8950 of AR, -4.9007 of SJD (SJD++, Table 9)",
        ratio("logprob", "output"),
        ratio("logprob", "free"),
        column("forced"),
        4,
    ),
    Mended(
        "tokens a pass of masked models: canvas / passes; completion / steps",
        "1.34 of LLaDA in 256 steps (Cross-Regression, Table 3)",
        ratio("output", "nfe"),
        ratio("completion", "nfe"),
        lambda totals: float(totals["masked"]),
    ),
    Mended(
        "GSM8K: '#### N' alone; the last number of the answer",
        "0.67 of LLaMA-3 8B (Cross-Regression, Table 3)",
        ratio("exact_match", "outputs"),
        ratio("exact_match_flexible", "outputs"),
        column("exact_match_flexible"),
    ),
    Mended(
        "CLIP score: 100 cos; cos",
        "0.3086 (ADT-Tree, Table I)",
        ratio("clip_score", "outputs"),
        ratio("clip_score", "outputs", 0.01),
        column("clip_score"),
        4,
    ),
)


def rows(stores: Sequence[Store]) -> Iterator[tuple[str, ...]]:
    """A line for each figure and each cell that shows it."""
    cells = [(store, name) for store in stores for group in measured(store) for name in group.rows.index]
    for figure in MENDED:
        for store, name in cells:
            totals = sums(store, str(name))
            if figure.shown(totals):
                label = f"{store.cell(str(name)).meta.label}, {store.cell(str(name)).meta.backbone}"
                values = (figure.before(totals), figure.now(totals))
                before, now = ("" if value is None else f"{value:.{figure.digits}f}" for value in values)
                if before != now:
                    yield figure.title, figure.printed, label, before, now


def sums(store: Store, name: str) -> pd.Series[float]:
    """Totals and scores of a cell's outputs, summed."""
    finished = FinishedCell.of(store.cell(name))
    totals: pd.Series[float] = finished.totals.select_dtypes("number").sum(min_count=1)
    totals["free"] = totals["output"] - totals["forced"]
    totals["masked"] = float(finished.cell.meta.method == "masked_diffusion")
    for score in finished.scores:
        totals[str(score)] = finished.scores[score].astype(float).sum()
    return totals


def main(folders: Sequence[str]) -> None:
    """Print the table of some runs, and the scores of whole sets, which the Pareto plot left out."""
    stores = [Store.open(Path(folder)) for folder in folders]
    print("\n".join(markdown_lines(list(HEADS), [list(row) for row in rows(stores)])))
    frames = [group.rows for store in stores for group in measured(store)]
    names = {str(key) for frame in frames for key in frame if str(key).startswith("set.") and frame[key].notna().any()}
    sets = sorted(name for name in names if is_quality(name))
    print(f"\npanels of the Pareto plot that are new: {', '.join(sets) or 'none'}")


if __name__ == "__main__":
    main(sys.argv[1:])
