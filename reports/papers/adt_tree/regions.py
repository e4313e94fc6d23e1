"""Depth of trees by region of the picture: smooth ground, textured ground, object.

A cycle belongs to the cell of its first token, and the end of a row to the row's last cell. ADT-Tree adapts where the
histograms of depth differ between grounds. A picture has one ground, so the test permutes pictures.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from stridebench.harness.record import stats
from stridebench.reports.papers.measured import KEYS, Run, cycles, decoded, plain
from stridebench.reports.papers.registry import sheet
from stridebench.reports.text_table import UNMEASURED, TextTable, estimate_text

if TYPE_CHECKING:
    from stridebench.harness.record.store import Cell

DEEPENING = ("eagle1", "eagle2", "eagle3", "lantern", "lanternpp", "adt_tree")
GROUNDS = ("smooth", "textured")
PERMUTATIONS = 2_000
Counts = npt.NDArray[np.float64]


def located(cell: Cell) -> pd.DataFrame:
    """Return ``cycles`` with a ``region`` each, for pictures with known regions."""
    grid = cell.meta.get("grid")
    if "regions" not in cell.samples or not grid:
        return pd.DataFrame()
    samples = decoded(cell).set_index(KEYS)["regions"].dropna()
    regions = {key: list(names) for key, names in samples.items() if len(names)}
    steps = cycles(cell)
    steps = steps[[key in regions for key in steps[KEYS].itertuples(index=False, name=None)]]
    row, place = np.divmod(steps["begin"].to_numpy(dtype=np.int64), grid["stride"])
    places = np.minimum(row, grid["rows"] - 1) * grid["columns"] + np.minimum(place, grid["columns"] - 1)
    keys = steps[KEYS].itertuples(index=False, name=None)
    return steps.assign(region=[regions[key][at] for key, at in zip(keys, places, strict=True)])


@sheet("trees_regions", "adt_tree_regions")
def table(run: Run) -> Iterator[TextTable]:
    """Return depth, utilisation and histogram of depths in each region, one row a method and region."""
    for group in run.groups:
        lines: list[dict[str, str]] = []
        notes = ["a cycle belongs to the cell of its first token; trees by levels: share of cycles, from 0 levels"]
        for name in group.cells(*DEEPENING):
            steps, label = located(run.store.cell(name)), group.label(name)
            if steps.empty:
                continue
            parts = steps.groupby("region")
            lines += [{"decoding": label, "region": str(region), **_figures(part)} for region, part in parts]
            notes.append(f"{label}, smooth against textured: {difference(steps)}")
        yield from plain(f"Depth of trees by region | measured on {group.title}", lines, notes)


def _figures(steps: pd.DataFrame) -> dict[str, str]:
    sums = steps.assign(one=1.0).groupby(KEYS)[["levels", "one", "kept", "accepted"]].sum().astype(float)
    shares = np.bincount(steps["levels"]) / len(steps)
    return {
        "mean depth": estimate_text(stats.ratio(sums, "levels", "one")),
        "tau": estimate_text(stats.ratio(sums, "kept", "one")),
        "utilisation": estimate_text(stats.ratio(sums, "accepted", "levels")) if sums["levels"].sum() else UNMEASURED,
        "trees by levels": " ".join(f"{share:.0%}" for share in shares),
        "cycles": str(len(steps)),
    }


def difference(steps: pd.DataFrame) -> str:
    """Return the total variation of depths between smooth and textured ground, and its p by permuted pictures."""
    steps = steps[steps["region"].isin(GROUNDS)]
    deepest = int(steps["levels"].max()) if len(steps) else 0
    pictures = [
        (part["region"].iloc[0], np.bincount(part["levels"], minlength=deepest + 1)) for _, part in steps.groupby(KEYS)
    ]
    textured = np.array([ground == "textured" for ground, _ in pictures], dtype=bool)
    fewest = min(textured.sum(), (~textured).sum())
    if fewest < 1:
        return "pictures of one ground only"
    counts = np.array([count for _, count in pictures], dtype=np.float64)
    distance = variation(counts, textured)
    if fewest < 4:
        return f"total variation of the depths {distance:.3f} (too few pictures for a test)"
    random = np.random.default_rng(0)
    permuted = [variation(counts, random.permutation(textured)) for _ in range(PERMUTATIONS)]
    p = (1 + sum(other >= distance for other in permuted)) / (1 + PERMUTATIONS)
    return f"total variation of the depths {distance:.3f}, p = {p:.3g} by {len(pictures)} permuted pictures"


def variation(counts: Counts, chosen: npt.NDArray[np.bool_]) -> float:
    """Return the total variation between the pooled histograms of the chosen rows and of the others."""
    inside, outside = counts[chosen].sum(0), counts[~chosen].sum(0)
    return float(np.abs(inside / inside.sum() - outside / outside.sum()).sum() / 2)
