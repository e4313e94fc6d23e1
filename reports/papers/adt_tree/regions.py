"""Depth of trees by what lies in the cell that they were grown for: smooth ground, textured ground, an object.

A cycle belongs to the cell of its first token; the end of a row to the row's last cell. ADT-Tree adapts where the
histograms of depth differ between grounds. A picture has one ground, so pictures are what is permuted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.record import stats
from reports.papers.adt_tree.costs import KEYS, columns, cycles, named
from reports.papers.measured import Measured, written
from reports.text_table import UNMEASURED, TextTable

if TYPE_CHECKING:
    from harness.record.store import Cell, Store

DEEPENING = ("eagle1", "eagle2", "eagle3", "lantern", "lanternpp", "adt_tree")
GROUNDS = ("smooth", "textured")
PERMUTATIONS = 2_000
Counts = npt.NDArray[np.float64]


def located(cell: Cell) -> pd.DataFrame:
    """``cycles`` with the ``region`` of each, of pictures whose regions are known."""
    grid = cell.meta.get("grid")
    if "regions" not in cell.samples or not grid:
        return pd.DataFrame()
    counted = cell.samples[~cell.samples["warmup"].astype(bool)]
    known = {
        key: list(found)
        for *key_parts, found in counted[[*KEYS, "regions"]].itertuples(index=False, name=None)
        if found is not None and len(found) and (key := tuple(key_parts))
    }
    found = cycles(cell)
    found = found[[key in known for key in found[KEYS].itertuples(index=False, name=None)]]
    row, place = np.divmod(found["begin"].to_numpy(dtype=np.int64), grid["stride"])
    cells = np.minimum(row, grid["rows"] - 1) * grid["columns"] + np.minimum(place, grid["columns"] - 1)
    names = [known[key][at] for key, at in zip(found[KEYS].itertuples(index=False, name=None), cells, strict=True)]
    return found.assign(region=names)


def sheet(store: Store, groups: Sequence[Measured]) -> list[TextTable]:
    """Depth, use and histogram of depths in each region, a row a method and region."""
    heads = ("decoding", "region", "mean depth", "tau", "utilisation", "trees by levels", "cycles")
    sheets = []
    for group in groups:
        rows: list[list[str]] = []
        notes = ["a cycle belongs to the cell of its first token; trees by levels: share of cycles, from 0 levels"]
        for name in named(group, DEEPENING):
            found, label = located(store.cell(name)), str(group.row(name)["label"])
            if found.empty:
                continue
            rows += [[label, str(region), *_figures(part)] for region, part in found.groupby("region")]
            notes.append(f"{label}, smooth against textured: {apart(found)}")
        if rows:
            title = f"Depth of trees by region | measured on {group.title}"
            sheets.append(TextTable(title, columns(*heads), rows, notes))
    return sheets


def _figures(part: pd.DataFrame) -> list[str]:
    sums = part.assign(one=1.0).groupby(KEYS)[["levels", "one", "kept", "accepted"]].sum().astype(float)
    shares = np.bincount(part["levels"]) / len(part)
    used = written(stats.ratio(sums, "accepted", "levels")) if sums["levels"].sum() else UNMEASURED
    figures = [written(stats.ratio(sums, above, "one")) for above in ("levels", "kept")]
    return [*figures, used, " ".join(f"{share:.0%}" for share in shares), str(len(part))]


def apart(found: pd.DataFrame) -> str:
    """Total variation between the depths of trees on smooth and on textured ground, and its p by permuted pictures."""
    kept = found[found["region"].isin(GROUNDS)]
    deepest = int(kept["levels"].max()) if len(kept) else 0
    pictures = [
        (part["region"].iloc[0], np.bincount(part["levels"], minlength=deepest + 1)) for _, part in kept.groupby(KEYS)
    ]
    textured = np.array([ground == "textured" for ground, _ in pictures], dtype=bool)
    if min(textured.sum(), (~textured).sum()) < 1:
        return "pictures of one ground only"
    counts = np.array([count for _, count in pictures], dtype=np.float64)
    seen = variation(counts, textured)
    if min(textured.sum(), (~textured).sum()) < 4:
        return f"total variation of the depths {seen:.3f} (too few pictures for a test)"
    random = np.random.default_rng(0)
    drawn = [variation(counts, random.permutation(textured)) for _ in range(PERMUTATIONS)]
    p = (1 + sum(one >= seen for one in drawn)) / (1 + PERMUTATIONS)
    return f"total variation of the depths {seen:.3f}, p = {p:.3g} by {len(pictures)} permuted pictures"


def variation(counts: Counts, chosen: npt.NDArray[np.bool_]) -> float:
    """Between the pooled histograms of the chosen rows and of the others."""
    ours, theirs = counts[chosen].sum(0), counts[~chosen].sum(0)
    return float(np.abs(ours / ours.sum() - theirs / theirs.sum()).sum() / 2)
