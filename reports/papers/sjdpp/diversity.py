"""SJD++, Figs. 2 and 10: how far pictures of one prompt differ by seed, under each decoding and K of top-K sampling.

A column of a sheet is one seed, so that what changes down a column is the decoding and K. The numbers are the task's
own: the mean distance of every two pictures of a prompt, averaged over prompts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from reports.contact_sheets import COLUMNS, name_row, sample, tile
from reports.papers.drawing import COLOURS, QUALITIES, curve, legend, quality_of, save, save_each, side_by_side
from reports.papers.measured import Measured, shown
from reports.plot_style import STYLE
from reports.text_table import Column, TextTable

if TYPE_CHECKING:
    from harness.record.store import Cell, Store

DISTANCES = {
    "set.diversity_lpips": "diversity, LPIPS",
    "set.diversity_efflite0": "diversity, cosine of EfficientNet-Lite0",
}
PROMPTS = 3
"""Sheets at most: as many prompts as the paper shows."""
NOTES = (
    "diversity: mean distance of every two pictures of a prompt, over prompts; [low, high] is a 95 % interval over the "
    "prompts, none where there is one; 0 where no seed changes the picture",
    "decodings of one law have one diversity, whatever its size; one that collapses has less",
)


def sheet(store: Store, groups: Sequence[Measured]) -> list[TextTable]:
    """A table for each group in which diversity was asked for: a row a decoding and K."""
    found = []
    for group in groups:
        keys = _asked(store, group)
        if keys:
            quality = quality_of(group.rows)
            titles = {**{key: DISTANCES[key] for key in keys}, **({quality: QUALITIES[quality]} if quality else {})}
            heads = ("decoding", "top-k", "prompts", "pictures", *titles.values())
            columns = tuple(Column(title, title, rank=i) for i, title in enumerate(heads))
            rows = [
                [str(row["label"]), _top_k(row["top_k"]), f"{row['prompts']:g}", f"{row['n_ok']:g}"]
                + [shown(row, (key,), 4) for key in titles]
                for _, row in _ordered(group).iterrows()
            ]
            found.append(
                TextTable(f"SJD++, Figs. 2 and 10: diversity | measured on {group.title}", columns, rows, [*NOTES])
            )
    return found


def figure(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Diversity against K, a line a decoding, a panel a distance."""

    def draw(group: Measured) -> Figure | None:
        keys = [key for key in DISTANCES if group.has(key)]
        rows = _ordered(group)
        ks = list(dict.fromkeys(sorted(rows["top_k"], key=_size)))
        if not keys or len(ks) < 2:
            return None
        drawn, panels = side_by_side(len(keys), group, "Figs. 2 and 10: diversity by seed under top-K sampling")
        for axes, key in zip(panels, keys, strict=True):
            for colour, (label, line) in zip(COLOURS, rows.groupby("label", sort=False), strict=False):
                curve(axes, [ks.index(k) for k in line["top_k"]], line, key, str(label), colour)
            axes.set_xticks(range(len(ks)), [_top_k(k) for k in ks])
            axes.set(xlabel="K of top-K sampling", ylabel=DISTANCES[key])
            axes.set_title(f"{rows['prompts'].max():g} prompts, {rows['n_ok'].max():g} pictures a point", fontsize=8)
        legend(drawn, panels[0])
        return drawn

    return save_each(groups, outdir, "diversity", draw)


def same_seed(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Fig. 10, and Fig. 2 in its autoregressive rows: a sheet a prompt, a row a decoding and K, a column a seed."""
    written: list[Path] = []
    for group in groups:
        rows = _ordered(group)
        cells = [store.cell(str(name)) for name in rows.index]
        counted = pd.concat([cell.samples[~cell.samples["warmup"].astype(bool)] for cell in cells])
        prompts, seeds = list(dict.fromkeys(counted["prompt"])), sorted(set(counted["repetition"]))
        if len(seeds) < 2 or not counted["output"].fillna("").str.endswith(".png").any():
            continue
        names = [f"{row['label']}, top-k {_top_k(row['top_k'])}" for _, row in rows.iterrows()]
        for prompt in prompts[:PROMPTS]:
            with rc_context(STYLE):
                drawn = _seeds(store, f"{prompt}\n{group.title}", list(zip(names, cells, strict=True)), prompt, seeds)
            written.append(save(drawn, outdir, "fig10", len(written)))
    return written


def _seeds(store: Store, title: str, cells: Sequence[tuple[str, Cell]], prompt: str, seeds: Sequence[int]) -> Figure:
    """The sheet of one prompt; cells by the names of their rows."""
    kept = seeds[:COLUMNS]
    left = f"; {len(seeds) - len(kept)} more seeds" if len(seeds) > len(kept) else ""
    figure = Figure(figsize=(1.3 * len(kept) + 1.6, 1.3 * len(cells) + 0.9), dpi=130, layout="constrained")
    figure.suptitle(f"Figs. 2 and 10: one seed a column, {title}{left}", fontsize=8)
    for row, (name, cell) in enumerate(cells):
        for column, seed in enumerate(kept):
            place = (len(cells), len(kept), row * len(kept) + column + 1)
            axes = tile(store, figure, place, sample(cell, prompt, seed))
            if row == 0:
                axes.set_title(f"seed {seed}", fontsize=7)
            if column == 0:
                name_row(axes, name)
    return figure


def _asked(store: Store, group: Measured) -> list[str]:
    """Distances that some cell was to be scored by, with a value or with a reason why there is none."""
    scored = [store.cell(str(name)).meta.get("set_scores") or {} for name in group.rows.index]
    return [key for key in DISTANCES if any(key.removeprefix("set.") in one for one in scored)]


def _ordered(group: Measured) -> pd.DataFrame:
    """Decodings in the order of the run, each by K."""
    places = {label: place for place, label in enumerate(dict.fromkeys(group.rows["label"]))}
    keys = group.rows["top_k"].map(_size), group.rows["label"].map(places)
    rows = group.rows.assign(k=keys[0], place=keys[1]).sort_values(["place", "k"], kind="stable")
    return rows.drop(columns=["k", "place"])


def _size(top_k: int) -> float:
    """0 keeps all codes."""
    return top_k or math.inf


def _top_k(top_k: int) -> str:
    return str(top_k) if top_k else "all"
