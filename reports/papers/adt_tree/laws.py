"""How sure a model is of each cell of its pictures: maps of the top-1 probability, and laws of two cells.

Probabilities are of the target's law at T = 1, without filters, along the baseline's outputs (`Sample.leading`).
Source: ADT-Tree, Figs. 4, 5 and 9.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from reports.papers.adt_tree.costs import columns
from reports.papers.adt_tree.regions import GROUNDS
from reports.papers.drawing import COLOURS, save, save_each, side_by_side
from reports.papers.measured import Measured
from reports.papers.sjdpp.maps import blank, on_grid, show_output
from reports.text_table import TextTable

if TYPE_CHECKING:
    from harness.record.store import Cell, Store

Floats = npt.NDArray[np.float64]
PICTURES = 4
"""Of a map at most."""


class Picture(NamedTuple):
    """A baseline's output: its prompt, repetition, probabilities of the likeliest codes [tokens, K], and regions."""

    prompt: str
    repetition: int
    laws: Floats
    regions: tuple[str, ...]

    def sureness(self, grid: Mapping[str, int]) -> Floats:
        """Top-1 probability of each cell."""
        return on_grid(self.laws[:, 0], grid)


def pictures(cell: Cell) -> Iterator[Picture]:
    """Whole outputs whose laws were stored."""
    grid = cell.meta.get("grid")
    counted = cell.samples[(cell.samples["status"] == "ok") & ~cell.samples["warmup"].astype(bool)]
    if not grid or "leading" not in counted:
        return
    for sample in counted.to_dict("records"):
        leading = np.asarray([] if sample["leading"] is None else sample["leading"], dtype=np.float64)
        count = len(sample["tokens"])
        if leading.size and count >= grid["rows"] * grid["stride"]:
            regions = sample.get("regions")
            named = () if regions is None else tuple(regions)
            yield Picture(sample["prompt"], int(sample["repetition"]), leading.reshape(count, -1), named)


def _baselines(store: Store, groups: Sequence[Measured]) -> Iterator[tuple[Measured, Cell, list[Picture]]]:
    for group in groups:
        for name in group.rows.index[group.rows["role"] == "baseline"]:
            cell = store.cell(str(name))
            if found := list(pictures(cell)):
                yield group, cell, found


def maps(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Figs. 4 and 9: beside each picture its top-1 probabilities, a sheet a model."""
    written: list[Path] = []
    shade = Normalize(0, 1)
    for group, cell, found in _baselines(store, groups):
        figure = blank(group, "Figs. 4 and 9: top-1 probability of each cell", len(found[:PICTURES]), 2)
        for place, one in enumerate(found[:PICTURES]):
            plain, over = figure.axes[2 * place : 2 * place + 2]
            show_output(plain, store, cell, one.prompt, one.repetition)
            plain.set_title(one.prompt, fontsize=7)
            over.imshow(one.sureness(cell.meta["grid"]), cmap="viridis", norm=shade)
            over.set_axis_on()
        figure.colorbar(ScalarMappable(shade, "viridis"), ax=figure.axes, shrink=0.6, label="top-1 probability")
        written.append(save(figure, outdir, "fig9", len(written)))
    return written


class Place(NamedTuple):
    """A cell of a picture, [row, column], and its law's largest probabilities."""

    kind: str
    prompt: str
    row: int
    column: int
    law: Floats


def extremes(found: Sequence[Picture], grid: Mapping[str, int]) -> list[Place]:
    """Of all cells the least and the most certain one, and the median one between them."""
    each = [one.sureness(grid) for one in found]
    order = np.argsort(np.concatenate([one.ravel() for one in each]), kind="stable")
    places = []
    for kind, at in (("least certain", order[0]), ("median", order[len(order) // 2]), ("most certain", order[-1])):
        which, place = divmod(int(at), grid["rows"] * grid["columns"])
        row, column = divmod(place, grid["columns"])
        places.append(Place(kind, found[which].prompt, row, column, found[which].laws[row * grid["stride"] + column]))
    return places


def laws(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Fig. 5: the law of a cell that might be many codes, and of one that is one, by rank."""
    held = {id(group): (cell, found) for group, cell, found in _baselines(store, groups)}

    def draw(group: Measured) -> Figure | None:
        if id(group) not in held:
            return None
        cell, found = held[id(group)]
        figure, (axes,) = side_by_side(1, group, "Fig. 5: laws of single cells")
        for colour, one in zip(COLOURS, extremes(found, cell.meta["grid"]), strict=False):
            told = f"{one.kind}: {one.prompt}, cell ({one.row}, {one.column}), other codes {1 - one.law.sum():.2f}"
            axes.plot(range(1, len(one.law) + 1), one.law, "o-", ms=3, color=colour, label=told)
        axes.set(xlabel="rank of the code", ylabel="probability", yscale="log")
        axes.legend(frameon=False, fontsize=6, loc="upper right")
        return figure

    return save_each(groups, outdir, "fig5", draw)


def sheet(store: Store, groups: Sequence[Measured]) -> list[TextTable]:
    """Top-1 probability by region; the paper says that it is low on smooth ground and high on detail."""
    rows: list[list[str]] = []
    for group, cell, found in _baselines(store, groups):
        values: dict[str, list[Any]] = {}
        for one in found:
            flat = one.sureness(cell.meta["grid"]).ravel()
            for region in dict.fromkeys(one.regions) if len(one.regions) == len(flat) else ():
                values.setdefault(region, []).extend(flat[np.array(one.regions) == region])
            values.setdefault("all cells", []).extend(flat)
        for region in sorted(values, key=lambda name: (name not in GROUNDS, name)):
            quartiles = [f"{q:.3f}" for q in np.quantile(values[region], (0.25, 0.5, 0.75))]
            rows.append([f"{group.backbone}, T = {group.temperature:g}", region, *quartiles, str(len(values[region]))])
    heads = ("model", "region", "lower quartile", "median", "upper quartile", "cells")
    return [TextTable("ADT-Tree, Figs. 4 and 9: top-1 probability", columns(*heads), rows, [])] if rows else []
