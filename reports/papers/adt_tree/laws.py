"""Maps of the top-1 probability of each cell of a picture, and distributions of single cells.

Probabilities are of the target's distribution at T = 1, without filters, along the baseline's outputs
(`Sample.leading`). Source: ADT-Tree, Figs. 4, 5 and 9.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from stridebench.harness.record import stats
from stridebench.harness.record.entries import GridEntry
from stridebench.reports.papers.charts import ChartData, source
from stridebench.reports.papers.drawing import (
    blank,
    figure,
    group_title,
    on_grid,
    sheet,
    show_output,
)
from stridebench.reports.papers.measured import KEYS, CellGroup, MeasuredRun, counted, cycles, decoded, plain
from stridebench.reports.text_table import UNMEASURED, TextTable, estimate_text

if TYPE_CHECKING:
    from stridebench.harness.record.store import SealedCell


# Depth of trees by region of the picture: smooth ground, textured ground, object.
# A cycle belongs to the cell of its first token, and the end of a row to the row's last cell. ADT-Tree adapts where
# the histograms of depth differ between grounds. A picture has one ground, so the test permutes pictures.


DEEPENING = ("eagle1", "eagle2", "eagle3", "lantern", "lanternpp", "adt_tree")
GROUNDS = ("smooth", "textured")
PERMUTATIONS = 2_000
Counts = npt.NDArray[np.float64]


def located(cell: SealedCell) -> pd.DataFrame:
    """Return ``cycles`` with a ``region`` each, for pictures with known regions."""
    grid = cell.meta.grid
    if "regions" not in cell.samples or not grid:
        return pd.DataFrame()
    samples = decoded(cell).set_index(KEYS)["regions"].dropna()
    regions = {key: list(names) for key, names in samples.items() if len(names)}
    steps = cycles(cell)
    steps = steps[[key in regions for key in steps[KEYS].itertuples(index=False, name=None)]]
    row, place = np.divmod(steps["begin"].to_numpy(dtype=np.int64), grid.stride)
    places = np.minimum(row, grid.rows - 1) * grid.columns + np.minimum(place, grid.columns - 1)
    keys = steps[KEYS].itertuples(index=False, name=None)
    return steps.assign(region=[regions[key][at] for key, at in zip(keys, places, strict=True)])


@sheet("trees_regions", "adt_tree_regions")
def region_table(run: MeasuredRun) -> Iterator[TextTable]:
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


Floats = npt.NDArray[np.float64]
PICTURES = 4
"""Most pictures of a map."""


class PictureProbs(NamedTuple):
    """An output of the baseline: prompt, repetition, probabilities of the likeliest codes [tokens, K], and regions."""

    prompt: str
    repetition: int
    probs: Floats
    regions: tuple[str, ...]

    def sureness(self, grid: GridEntry) -> Floats:
        """Return the top-1 probability of each cell."""
        return on_grid(self.probs[:, 0], grid)


def pictures(cell: SealedCell) -> Iterator[PictureProbs]:
    """Yield the complete outputs whose distributions were stored."""
    grid, samples = cell.meta.grid, counted(cell)
    if not grid or "leading" not in samples:
        return
    for sample in samples.to_dict("records"):
        leading = np.asarray([] if sample["leading"] is None else sample["leading"], dtype=np.float64)
        count = len(sample["tokens"])
        if leading.size and count >= grid.rows * grid.stride:
            regions = sample.get("regions")
            named = () if regions is None else tuple(regions)
            yield PictureProbs(sample["prompt"], int(sample["repetition"]), leading.reshape(count, -1), named)


def _baselines(run: MeasuredRun) -> Iterator[tuple[CellGroup, SealedCell, list[PictureProbs]]]:
    for group in run.groups:
        for name in group.cells(role="baseline"):
            cell = run.store.cell(name)
            if outputs := list(pictures(cell)):
                yield group, cell, outputs


@figure("adt_tree_fig9")
def maps(run: MeasuredRun) -> Iterator[Figure]:
    """Draw Figs. 4 and 9: each picture and its top-1 probabilities, one sheet a model."""
    shade = Normalize(0, 1)
    for group, cell, outputs in _baselines(run):
        title = group_title("Figs. 4 and 9: top-1 probability of each cell", group)
        drawn = blank(title, len(outputs[:PICTURES]), 2)
        for place, picture in enumerate(outputs[:PICTURES]):
            plain_axes, over = drawn.axes[2 * place : 2 * place + 2]
            show_output(plain_axes, run.store, cell, picture.prompt, picture.repetition)
            plain_axes.set_title(picture.prompt, fontsize=7)
            over.imshow(picture.sureness(cell.meta.picture), cmap="viridis", norm=shade)
            over.set_axis_on()
        drawn.colorbar(ScalarMappable(shade, "viridis"), ax=drawn.axes, shrink=0.6, label="top-1 probability")
        yield drawn


class PictureCell(NamedTuple):
    """A cell of a picture, [row, column], and its distribution's largest probabilities."""

    kind: str
    prompt: str
    row: int
    column: int
    probs: Floats


def extremes(outputs: Sequence[PictureProbs], grid: GridEntry) -> list[PictureCell]:
    """Return the least certain, the median and the most certain of all cells."""
    order = np.argsort(np.concatenate([picture.sureness(grid).ravel() for picture in outputs]), kind="stable")
    places = []
    for kind, at in (("least certain", order[0]), ("median", order[len(order) // 2]), ("most certain", order[-1])):
        which, place = divmod(int(at), grid.rows * grid.columns)
        row, column = divmod(place, grid.columns)
        picture = outputs[which]
        places.append(PictureCell(kind, picture.prompt, row, column, picture.probs[row * grid.stride + column]))
    return places


@source("adt_tree_laws")
def laws(run: MeasuredRun) -> Iterator[ChartData]:
    """Yield Fig. 5: distributions of an uncertain and of a certain cell, by rank."""
    for group, cell, outputs in _baselines(run):
        parts = []
        for place in extremes(outputs, cell.meta.picture):
            at = f"cell ({place.row}, {place.column})"
            line = f"{place.kind}: {place.prompt}, {at}, other codes {1 - place.probs.sum():.2f}"
            ranks = np.arange(1, len(place.probs) + 1)
            parts.append(pd.DataFrame({"rank": ranks, "probability": place.probs, "line": line}))
        yield ChartData(group.title, pd.concat(parts))


@sheet("adt_tree_fig9")
def table(run: MeasuredRun) -> list[TextTable]:
    """Return top-1 probabilities by region; the paper says they are low on smooth ground and high on detail."""
    lines: list[dict[str, str]] = []
    for group, cell, outputs in _baselines(run):
        values: dict[str, list[Any]] = {}
        for picture in outputs:
            flat = picture.sureness(cell.meta.picture).ravel()
            for region in dict.fromkeys(picture.regions) if len(picture.regions) == len(flat) else ():
                values.setdefault(region, []).extend(flat[np.array(picture.regions) == region])
            values.setdefault("all cells", []).extend(flat)
        for region in sorted(values, key=lambda name: (name not in GROUNDS, name)):
            lower, median, upper = (f"{q:.3f}" for q in np.quantile(values[region], (0.25, 0.5, 0.75)))
            line = {"model": f"{group.backbone}, T = {group.temperature:g}", "region": region}
            line |= {"lower quartile": lower, "median": median, "upper quartile": upper}
            lines.append(line | {"cells": str(len(values[region]))})
    return plain("ADT-Tree, Figs. 4 and 9: top-1 probability", lines)
