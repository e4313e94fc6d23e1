"""Tokens a pass by what lies in a cell: smooth ground, textured ground or an object, as the task tells them apart.

A pass is shared equally by the tokens that came in it, so a region's tokens / passes is its part of the SCR.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from harness.record import stats
from reports.papers.measured import Measured, Wanted, written
from reports.papers.sjdpp.maps import RASTER, lengths_on_grid, runs
from reports.text_table import Column, TextTable

if TYPE_CHECKING:
    from harness.record.store import Cell, Store

KEYS = ["prompt", "repetition"]
NOTHING = pd.DataFrame(columns=["tokens", "passes"], dtype=float).set_index(
    pd.MultiIndex.from_arrays([[], []], names=KEYS)
)
NOTES = (
    "of a region: its tokens / the passes they took; a pass is shared equally by the tokens that came in it",
    "less SJD: the difference to it, paired by prompt and seed",
    "ground: as the prompt asked for; object: where the task's detector found one",
)


def by_region(cell: Cell) -> dict[str, pd.DataFrame]:
    """``tokens`` and ``passes`` of each region, by (prompt, repetition); pictures without known regions left out."""
    good = cell.samples[(cell.samples["status"] == "ok") & ~cell.samples["warmup"].astype(bool)]
    if "regions" not in good or not cell.meta.get("grid"):
        return {}
    named = dict(zip(good[KEYS].itertuples(index=False, name=None), good["regions"], strict=True))
    tables = []
    for _, part in runs(cell).groupby(KEYS, sort=False):
        key = tuple(part[KEYS].iloc[0])
        if len(named[key]):
            passes = 1 / lengths_on_grid(part, cell.meta["grid"]).ravel()
            counts = {"region": list(named[key]), "tokens": 1.0, "passes": passes}
            tables.append(pd.DataFrame({**dict(zip(KEYS, key, strict=True)), **counts}))
    if not tables:
        return {}
    sums = pd.concat(tables).groupby(["region", *KEYS]).sum()
    return {region: sums.loc[region] for region in sorted(set(sums.index.get_level_values("region")))}


def sheet(store: Store, groups: Sequence[Measured]) -> list[TextTable]:
    """Tokens a pass of each method in each region, beside SJD's, for groups whose pictures have regions."""
    found = []
    for group in groups:
        names = group.rows.index[group.rows["method"].isin(RASTER)]
        held = {str(name): by_region(store.cell(str(name))) for name in names}
        held = {name: frames for name, frames in held.items() if frames}
        if held:
            found.append(_fill(group, held))
    return found


def _fill(group: Measured, held: Mapping[str, Mapping[str, pd.DataFrame]]) -> TextTable:
    regions = sorted({region for frames in held.values() for region in frames})
    base = group.find(Wanted("sjd")) or ""
    titles = ["decoding", *(title for region in regions for title in (region, f"{region}, less SJD"))]
    rows = []
    for name, frames in held.items():
        row = [str(group.row(name)["label"])]
        for region in regions:
            ours, theirs = frames.get(region, NOTHING), held.get(base, {}).get(region, NOTHING)
            gap = None if name == base else stats.difference(theirs, ours, "tokens", "passes")
            row += [written(stats.ratio(ours, "tokens", "passes")), written(gap) if gap else "-"]
        rows.append(row)
    tokens = {region: sum(float(f[region]["tokens"].sum()) for f in held.values() if region in f) for region in regions}
    shares = ", ".join(f"{region} {count / sum(tokens.values()):.0%}" for region, count in tokens.items())
    title = f"Tokens a pass by region of the picture | measured on {group.title}"
    columns = tuple(Column(title, title, rank=i) for i, title in enumerate(titles))
    return TextTable(title, columns, rows, [*NOTES, f"cells of all pictures: {shares}"])
