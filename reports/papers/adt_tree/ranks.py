"""ADT-Tree's Fig. 3 (b): which of its siblings an accepted node was, in the order of the drafter's confidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from reports.papers.adt_tree.costs import columns, cycles, named
from reports.papers.drawing import COLOURS, save_each, side_by_side
from reports.papers.measured import Measured
from reports.text_table import TextTable

if TYPE_CHECKING:
    from harness.record.store import Store

TREES = ("eagle2", "eagle3", "lantern", "adt_tree")
"""Methods whose siblings stand by confidence, so an accepted node's place is the least k that has it."""


def shares(store: Store, name: str) -> npt.NDArray[Any] | None:
    """Share of a cell's accepted nodes that stood first, second and so on; None where no rank was stored."""
    found = cycles(store.cell(name)).get("ranks")
    kept = [np.asarray(ranks, dtype=np.int64) for ranks in found if ranks is not None] if found is not None else []
    counts = np.bincount(np.concatenate(kept)) if kept else np.zeros(0)
    return counts / counts.sum() if counts.sum() else None


def sheet(store: Store, groups: Sequence[Measured]) -> list[TextTable]:
    """Fig. 3 (b) as a table: accepted nodes by their place among their siblings."""
    rows = []
    for group in groups:
        for name in named(group, TREES):
            found = shares(store, name)
            if found is not None:
                label = f"{group.row(name)['label']}, T = {group.temperature:g}"
                beyond = f"{found[1:].sum():.0%}"
                rows.append([label, f"{found[0]:.0%}", beyond, " ".join(f"{share:.0%}" for share in found)])
    heads = ("decoding", "the likeliest", "any other", "accepted nodes by place among siblings, from 1")
    notes = ["ends of rows, of which there is one candidate, are among the first; runs without ranks are left out"]
    return [TextTable("ADT-Tree, Fig. 3 (b): places of accepted nodes", columns(*heads), rows, notes)] if rows else []


def figure(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Fig. 3 (b): a panel a group, a colour a tree."""

    def draw(group: Measured) -> Figure | None:
        held = [(name, found) for name in named(group, TREES) if (found := shares(store, name)) is not None]
        held = held[: len(COLOURS)]
        if not held:
            return None
        drawn, (axes,) = side_by_side(1, group, "Fig. 3 (b): places of accepted nodes among their siblings")
        for i, (name, found) in enumerate(held):
            side = (i - (len(held) - 1) / 2) * 0.8 / len(held)
            places = np.arange(1, len(found) + 1) + side
            axes.bar(places, found, 0.8 / len(held), color=COLOURS[i], label=str(group.row(name)["label"]))
        axes.set(xlabel="place by the drafter's confidence", ylabel="share of accepted nodes")
        axes.legend(frameon=False, fontsize=8)
        return drawn

    return save_each(groups, outdir, "fig3b", draw)
