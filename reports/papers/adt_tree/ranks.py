"""ADT-Tree's Fig. 3 (b): which of its siblings an accepted node was, in the order of the drafter's confidence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from reports.papers.drawing import COLOURS, side_by_side
from reports.papers.measured import Run, cycles, plain
from reports.papers.registry import figure, sheet
from reports.text_table import TextTable

if TYPE_CHECKING:
    from harness.record.store import Store

TREES = ("eagle2", "eagle3", "lantern", "adt_tree")
"""Methods whose siblings stand by confidence, so an accepted node's place is the least k that has it."""


def shares(store: Store, name: str) -> npt.NDArray[Any] | None:
    """Share of a cell's accepted nodes that stood first, second and so on; None where no rank was stored."""
    column = cycles(store.cell(name)).get("ranks")
    ranks = [np.asarray(row, dtype=np.int64) for row in column if row is not None] if column is not None else []
    counts = np.bincount(np.concatenate(ranks)) if ranks else np.zeros(0)
    return counts / counts.sum() if counts.sum() else None


@sheet("adt_tree_fig3b")
def table(run: Run) -> list[TextTable]:
    """Fig. 3 (b) as a table: accepted nodes by their place among their siblings."""
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
    """Fig. 3 (b): a panel a group, a colour a tree."""
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
