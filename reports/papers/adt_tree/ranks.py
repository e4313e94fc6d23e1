"""ADT-Tree's Fig. 3 (b): the rank of accepted nodes among their siblings, by the drafter's confidence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from stridebench.reports.papers.drawing import COLOURS, side_by_side
from stridebench.reports.papers.measured import Run, cycles, plain
from stridebench.reports.papers.registry import figure, sheet
from stridebench.reports.text_table import TextTable

if TYPE_CHECKING:
    from stridebench.harness.record.store import Store

TREES = ("eagle2", "eagle3", "lantern", "adt_tree")
"""Methods that sort siblings by confidence, so that a node's rank is the smallest k that contains it."""


def shares(store: Store, name: str) -> npt.NDArray[Any] | None:
    """Return the shares of accepted nodes by rank, from the first; None where no rank was stored."""
    column = cycles(store.cell(name)).get("ranks")
    ranks = [np.asarray(row, dtype=np.int64) for row in column if row is not None] if column is not None else []
    counts = np.bincount(np.concatenate(ranks)) if ranks else np.zeros(0)
    return counts / counts.sum() if counts.sum() else None


@sheet("adt_tree_fig3b")
def table(run: Run) -> list[TextTable]:
    """Return Fig. 3 (b) as a table: accepted nodes by rank among their siblings."""
    lines = [
        {
            "decoding": f"{group.label(name)}, T = {group.temperature:g}",
            "the likeliest": f"{places[0]:.0%}",
            "any other": f"{places[1:].sum():.0%}",
            "accepted nodes by place among siblings, from 1": " ".join(f"{share:.0%}" for share in places),
        }
        for group in run.groups
        for name in group.cells(*TREES)
        if (places := shares(run.store, name)) is not None
    ]
    notes = ["ends of rows, of which there is one candidate, are among the first; runs without ranks are left out"]
    return plain("ADT-Tree, Fig. 3 (b): places of accepted nodes", lines, notes)


@figure("adt_tree_fig3b")
def draw(run: Run) -> Iterator[Figure]:
    """Draw Fig. 3 (b): one panel a group, one colour a tree."""
    for group in run.groups:
        trees = [(name, places) for name in group.cells(*TREES) if (places := shares(run.store, name)) is not None]
        trees = trees[: len(COLOURS)]
        if not trees:
            continue
        title = "Fig. 3 (b): places of accepted nodes among their siblings"
        drawn, (axes,) = side_by_side(1, title, group.title)
        width = 0.8 / len(trees)
        for i, (name, ranked) in enumerate(trees):
            places = np.arange(1, len(ranked) + 1) + (i - (len(trees) - 1) / 2) * width
            axes.bar(places, ranked, width, color=COLOURS[i], label=group.label(name))
        axes.set(xlabel="place by the drafter's confidence", ylabel="share of accepted nodes")
        axes.legend(frameon=False, fontsize=8)
        yield drawn
