"""Tokens a pass by region of the picture: smooth ground, textured ground or object, as the task says.

The tokens of a pass share it equally, so that tokens / passes of a region is its part of the SCR.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pandas as pd

from stridebench.harness.record import stats
from stridebench.reports.papers.measured import KEYS, Measured, Run, counted, plain
from stridebench.reports.papers.registry import sheet
from stridebench.reports.papers.sjdpp.maps import RASTER, lengths_on_grid, runs
from stridebench.reports.text_table import TextTable, estimate_text

if TYPE_CHECKING:
    from stridebench.harness.record.store import Cell

NOTHING = pd.DataFrame({"tokens": [], "passes": []}, index=pd.MultiIndex.from_arrays([[], []], names=KEYS), dtype=float)
NOTES = (
    "of a region: its tokens / the passes they took; a pass is shared equally by the tokens that came in it",
    "less SJD: the difference to it, paired by prompt and seed",
    "ground: as the prompt asked for; object: where the task's detector found one",
)


def by_region(cell: Cell) -> dict[str, pd.DataFrame]:
    """Return ``tokens`` and ``passes`` of each region by (prompt, repetition), for pictures with known regions."""
    samples = counted(cell)
    if "regions" not in samples or not cell.meta.get("grid"):
        return {}
    regions = dict(zip(samples[KEYS].itertuples(index=False, name=None), samples["regions"], strict=True))
    tables = []
    for key, part in runs(cell).groupby(KEYS, sort=False):
        names = list(regions[key])
        if names:
            passes = 1 / lengths_on_grid(part, cell.meta["grid"]).ravel()
            counts = {"region": names, "tokens": 1.0, "passes": passes}
            tables.append(pd.DataFrame({**dict(zip(KEYS, key, strict=True)), **counts}))
    if not tables:
        return {}
    sums = pd.concat(tables).groupby(["region", *KEYS]).sum()
    return {region: sums.loc[region] for region in sorted(set(sums.index.get_level_values("region")))}


@sheet("sjdpp_regions")
def table(run: Run) -> Iterator[TextTable]:
    """Return tokens a pass of each method and region, and less SJD's, for groups whose pictures have regions."""
    for group in run.groups:
        frames = {name: by_region(run.store.cell(name)) for name in group.cells(*RASTER)}
        frames = {name: regions for name, regions in frames.items() if regions}
        if frames:
            yield from _fill(group, frames)


def _fill(group: Measured, frames: Mapping[str, Mapping[str, pd.DataFrame]]) -> list[TextTable]:
    regions = sorted({region for frame in frames.values() for region in frame})
    base = group.find(method="sjd") or ""
    lines = []
    for name, frame in frames.items():
        line = {"decoding": group.label(name)}
        for region in regions:
            sums, base_sums = frame.get(region, NOTHING), frames.get(base, {}).get(region, NOTHING)
            gap = None if name == base else stats.difference(base_sums, sums, "tokens", "passes")
            line[region] = estimate_text(stats.ratio(sums, "tokens", "passes"))
            line[f"{region}, less SJD"] = estimate_text(gap) if gap else "-"
        lines.append(line)
    tokens = {
        region: sum(float(frame[region]["tokens"].sum()) for frame in frames.values() if region in frame)
        for region in regions
    }
    shares = ", ".join(f"{region} {count / sum(tokens.values()):.0%}" for region, count in tokens.items())
    title = f"Tokens a pass by region of the picture | measured on {group.title}"
    return plain(title, lines, [*NOTES, f"cells of all pictures: {shares}"])
