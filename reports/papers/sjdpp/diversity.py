"""SJD++, Figs. 2 and 10: the diversity of pictures of one prompt over seeds, by decoding and K of top-K sampling.

A column of a sheet is one seed, so that only decoding and K change down a column. The task measures diversity: the mean
distance of every two pictures of a prompt, averaged over prompts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.figure import Figure

from stridebench.reports.contact_sheets import COLUMNS, name_row, sample, tile
from stridebench.reports.papers.drawing import (
    QUALITIES,
    figure,
    quality_of,
    sheet,
)
from stridebench.reports.papers.measured import CellGroup, MeasuredRun, decoded, plain
from stridebench.reports.text_table import TextTable, measured_text

if TYPE_CHECKING:
    from stridebench.harness.record.store import SealedCell, Store

DISTANCES = {
    "set.diversity_lpips": "diversity, LPIPS",
    "set.diversity_efflite0": "diversity, cosine of EfficientNet-Lite0",
}
PROMPTS = 3
"""Most sheets, as many as the paper's prompts."""
NOTES = (
    "diversity: mean distance of every two pictures of a prompt, over prompts; [low, high] is a 95 % interval over the "
    "prompts, none where there is one; 0 where no seed changes the picture",
    "decodings of one law have one diversity, whatever its size; one that collapses has less",
)


@sheet("sjdpp_diversity")
def table(run: MeasuredRun) -> Iterator[TextTable]:
    """Return a table for each group that measures diversity: one row a decoding and K."""
    for group in run.groups:
        titles = {key: DISTANCES[key] for key in _measured_distances(run.store, group)}
        if not titles:
            continue
        if quality := quality_of(group.rows):
            titles[quality] = QUALITIES[quality]
        lines = [
            {
                "decoding": str(row["label"]),
                "top-k": _top_k(row["top_k"]),
                "prompts": f"{row['prompts']:g}",
                "pictures": f"{row['n_ok']:g}",
                **{title: measured_text(row, key, digits=4) for key, title in titles.items()},
            }
            for _, row in _ordered(group).iterrows()
        ]
        yield from plain(f"SJD++, Figs. 2 and 10: diversity | measured on {group.title}", lines, NOTES)


@figure("sjdpp_fig10")
def same_seed(run: MeasuredRun) -> Iterator[Figure]:
    """Draw Figs. 2 and 10: one sheet a prompt, one row a decoding and K, one column a seed."""
    for group in run.groups:
        rows = _ordered(group)
        cells = [run.store.cell(str(name)) for name in rows.index]
        samples = pd.concat([decoded(cell) for cell in cells])
        seeds = sorted(set(samples["repetition"]))
        if len(seeds) < 2 or not samples["output"].fillna("").str.endswith(".png").any():
            continue
        names = [f"{row['label']}, top-k {_top_k(row['top_k'])}" for _, row in rows.iterrows()]
        for prompt in list(dict.fromkeys(samples["prompt"]))[:PROMPTS]:
            title = f"{prompt}\n{group.title}"
            yield _seeds(run.store, title, list(zip(names, cells, strict=True)), prompt, seeds)


def _seeds(
    store: Store, title: str, cells: Sequence[tuple[str, SealedCell]], prompt: str, seeds: Sequence[int]
) -> Figure:
    """Draw the sheet of one prompt; ``cells`` have the names of their rows."""
    shown_seeds = seeds[:COLUMNS]
    left = f"; {len(seeds) - COLUMNS} more seeds" if len(seeds) > COLUMNS else ""
    drawn = Figure(figsize=(1.3 * len(shown_seeds) + 1.6, 1.3 * len(cells) + 0.9), dpi=130, layout="constrained")
    drawn.suptitle(f"Figs. 2 and 10: one seed a column, {title}{left}", fontsize=8)
    for row, (name, cell) in enumerate(cells):
        for column, seed in enumerate(shown_seeds):
            place = (len(cells), len(shown_seeds), row * len(shown_seeds) + column + 1)
            axes = tile(store, drawn, place, sample(cell, prompt, seed))
            if row == 0:
                axes.set_title(f"seed {seed}", fontsize=7)
            if column == 0:
                name_row(axes, name)
    return drawn


def _measured_distances(store: Store, group: CellGroup) -> list[str]:
    """Return the distances that some cell has as scores, with a value or with a reason."""
    scores = [store.cell(str(name)).meta.set_scores for name in group.rows.index]
    return [key for key in DISTANCES if any(key.removeprefix("set.") in names for names in scores)]


def _ordered(group: CellGroup) -> pd.DataFrame:
    """Sort decodings in the order of the run, each by K."""
    labels = list(dict.fromkeys(group.rows["label"]))
    order = sorted(
        group.rows.index, key=lambda cell: (labels.index(group.label(cell)), _size(group.row(cell)["top_k"]))
    )
    return group.rows.loc[order]


def _size(top_k: int) -> float:
    """Return a key to sort by; 0 means all codes."""
    return top_k or math.inf


def _top_k(top_k: int) -> str:
    return str(top_k) if top_k else "all"
