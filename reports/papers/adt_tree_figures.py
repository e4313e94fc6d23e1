"""Figures of ADT-Tree: depths over the picture, acceptance lengths, initialisation, and the gain of adaptation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from stridebench.harness.record import stats
from stridebench.harness.record.cell_files import SealedCell
from stridebench.harness.record.entries import GridEntry
from stridebench.reports.papers.adt_tree_tables import FIXED, gains
from stridebench.reports.papers.charts import ChartData, source
from stridebench.reports.papers.drawing import (
    Ints,
    blank,
    figure,
    first_of,
    group_title,
    has_pictures,
    on_grid,
    sheet,
    show_output,
)
from stridebench.reports.papers.measured import KEYS, CellGroup, MeasuredRun, by_group, counted, cycles, decoded, plain
from stridebench.reports.text_table import UNMEASURED, TextTable, estimate_text

PROMPTS, METHODS = 4, 3
"""Most rows and methods of a map."""
MAPS_OF = ("adt_tree", "eagle2", "lantern", "eagle1", "eagle3", "lanternpp")
"""Methods whose first cell is drawn, in order of preference."""
INITS = {"horizontal": "horizontal repeat", "vertical": "vertical repeat", "random": "random", "flock": "TokenFlock"}


def token_depths(steps: pd.DataFrame) -> Ints:
    """Return the tree level of each token of a picture; the bonus token is one level below the last accepted node."""
    parts = [np.arange(1, tokens + 1) for tokens in steps["kept"]]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def tree_depths(steps: pd.DataFrame) -> Ints:
    """Return the number of levels of each token's tree."""
    return np.repeat(steps["levels"].to_numpy(dtype=np.int64), steps["kept"])


MAPPED = {"level of the token": token_depths, "levels of the tree": tree_depths}


@figure("adt_tree_fig2")
def maps(run: MeasuredRun) -> Iterator[Figure]:
    """Draw Fig. 2: each picture, the level of each token, and the levels of its tree."""
    for group in run.groups:
        firsts = [names[0] for method in MAPS_OF if (names := group.cells(method))]
        cells = [cell for name in firsts if has_pictures(cell := run.store.cell(name))][:METHODS]
        if not cells:
            continue
        steps = {cell.name: cycles(cell) for cell in cells}
        prompts = list(dict.fromkeys(prompt for rows in steps.values() for prompt in rows["prompt"]))[:PROMPTS]
        deepest = (int(max(rows["levels"].max() + 1, rows["kept"].max())) for rows in steps.values())
        shade = Normalize(0, max(1, *deepest))
        drawn = blank(group_title("Fig. 2: levels of tokens and of their trees", group), len(prompts), 3 * len(cells))
        for place, (prompt, cell) in enumerate((prompt, cell) for prompt in prompts for cell in cells):
            picture = first_of(steps[cell.name], prompt)
            plain_axes, *mapped = drawn.axes[3 * place : 3 * place + 3]
            if picture.empty or not show_output(plain_axes, run.store, cell, prompt, picture["repetition"].iloc[0]):
                continue
            plain_axes.set_title(cell.meta.label[:28], fontsize=6)
            for axes, (title, depths) in zip(mapped, MAPPED.items(), strict=True):
                axes.imshow(on_grid(depths(picture), cell.meta.picture), cmap="inferno", norm=shade)
                axes.set_axis_on()
                axes.set_title(title, fontsize=6)
        drawn.colorbar(ScalarMappable(shade, "inferno"), ax=drawn.axes, shrink=0.6, label="level, from 1")
        yield drawn


@source("adt_tree_lengths")
def lengths(run: MeasuredRun) -> Iterator[ChartData]:
    """Yield Fig. 3 (a): the share of cycles by their tokens, one panel a tree, one line a temperature."""
    parts = []
    for group in run.groups:
        for name in group.cells(*FIXED)[:METHODS]:
            emitted = cycles(run.store.cell(name))["emitted"]
            share = emitted.value_counts(normalize=True).sort_index()
            line = f"T = {group.temperature:g}, variance {emitted.var():.2f}"
            tree = f"{group.backbone}, {group.task}\n{group.label(name)}"
            parts.append(pd.DataFrame({"tokens": share.index, "share": share.to_numpy(), "line": line, "tree": tree}))
    if parts:
        yield ChartData(run.groups[0].title, pd.concat(parts))


@sheet("adt_tree_fig3")
def length_table(run: MeasuredRun) -> list[TextTable]:
    """Return Fig. 3 (a) as a table: the share of cycles by number of tokens, for each fixed tree."""
    lines = []
    for group in run.groups:
        for name in group.cells(*FIXED):
            emitted = cycles(run.store.cell(name))["emitted"].to_numpy(dtype=np.int64)
            line = {
                "decoding": group.label(name),
                "mean": f"{emitted.mean():.2f}",
                "variance": f"{emitted.var(ddof=1):.2f}",
                "cycles by tokens, from 1": " ".join(f"{n:.0%}" for n in np.bincount(emitted)[1:] / len(emitted)),
                "cycles": str(len(emitted)),
            }
            lines.append((group, line))
    return by_group("ADT-Tree, Fig. 3: acceptance lengths", lines)


@source("adt_tree_starts")
def starts(run: MeasuredRun) -> Iterator[ChartData]:
    """Yield the first cell of each initialisation, by the paper's name of it."""
    for group in run.groups:
        rows = group.rows[group.rows["method"] == "adt_tree"]
        rows = rows[[options["acceptance"] == "exact" for options in rows["options"]]]
        rows = rows.assign(line=[INITS[str(options["init"])] for options in rows["options"]])
        yield ChartData(group.title, rows.drop_duplicates("line"))


@source("adt_tree_gains")
def gain(run: MeasuredRun) -> Iterator[ChartData]:
    """Yield the stated limitation: the gain of each picture and the variance of its acceptance length."""
    for group in run.groups:
        cells = {group.label(name): gains(run.store, group, name) for name in group.cells("adt_tree")}
        rows = [pictures.assign(line=label) for label, pictures in cells.items() if pictures is not None]
        if rows:
            yield ChartData(group.title, pd.concat(rows))


# Fig. 1 of ADT-Tree from the cards of the trained drafters: how often the best token, or one of three, is right.
# Controls of the same architecture are untrained or have shuffled weights. The paper's figure prints no values.


FIGURE = re.compile(r"top([13])_(?:head)?1(_untrained|_shuffled)?")
"""Keys of next-token accuracy on the cards."""
CONTROLS = {"": "trained", "_untrained": "untrained", "_shuffled": "shuffled weights"}


class Accuracy(NamedTuple):
    """Shares of held-out tokens of which the best guess, or one of the best three, is right; by control."""

    drafter: str
    top1: dict[str, float]
    top3: dict[str, float]


CARDS = Path(str(files("stridebench.harness"))) / "backbones" / "weights"
"""The folder of the shipped weights."""


def accuracies(cards: Path) -> list[Accuracy]:
    """Read the accuracies of all cards below a folder, in the order of their names."""
    drafters = []
    for path in sorted(cards.glob("*/card.json")):
        card = json.loads(path.read_text(encoding="utf-8"))
        drafter = Accuracy(str(card.get("name", path.parent.name)), {}, {})
        for key, value in (card.get("figures") or {}).items():
            if match := FIGURE.fullmatch(key):
                (drafter.top1 if match[1] == "1" else drafter.top3)[match[2] or ""] = float(value)
        if "" in drafter.top1:
            drafters.append(drafter)
    return drafters


@sheet("adt_tree_fig1")
def table(run: MeasuredRun) -> list[TextTable]:
    """Return Fig. 1 as a table."""
    lines = []
    for drafter in accuracies(CARDS):
        line = {"drafter": drafter.drafter}
        for control, title in CONTROLS.items():
            line[f"top-1, {title}"] = _share(drafter.top1, control)
            line[f"top-3, {title}"] = _share(drafter.top3, control)
        lines.append(line)
    notes = ["of held-out tokens where the backbone's likeliest is the drafter's first, or among its three; from cards"]
    return plain("ADT-Tree, Fig. 1: accuracy of drafters on the next token", lines, notes)


def _share(side: dict[str, float], control: str) -> str:
    return f"{side[control]:.1%}" if control in side else UNMEASURED


@source("adt_tree_accuracies")
def by_control(run: MeasuredRun) -> Iterator[ChartData]:
    """Yield Fig. 1: the accuracies of each drafter, one line a control."""
    drafters = accuracies(CARDS)
    rows = [
        {"drafter": one.drafter, "line": title, "top1": one.top1.get(control), "top3": one.top3.get(control)}
        for control, title in CONTROLS.items()
        for one in drafters
    ]
    if rows:
        yield ChartData("", pd.DataFrame(rows).astype({"top1": float, "top3": float}))


# Maps of the top-1 probability of each cell of a picture, and distributions of single cells.
# Probabilities are of the target's distribution at T = 1, without filters, along the baseline's outputs
# (`Sample.leading`). Source: ADT-Tree, Figs. 4, 5 and 9.


# Depth of trees by region of the picture: smooth ground, textured ground, object.
# A cycle belongs to the cell of its first token, and the end of a row to the row's last cell. ADT-Tree adapts where
# the histograms of depth differ between grounds. A picture has one ground, so the test permutes pictures.


DEEPENING = ("eagle1", "eagle2", "eagle3", "lantern", "lanternpp", "adt_tree")
GROUNDS = ("smooth", "textured")
PERMUTATIONS = 2_000
Floats = npt.NDArray[np.float64]


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


def variation(counts: Floats, chosen: npt.NDArray[np.bool_]) -> float:
    """Return the total variation between the pooled histograms of the chosen rows and of the others."""
    inside, outside = counts[chosen].sum(0), counts[~chosen].sum(0)
    return float(np.abs(inside / inside.sum() - outside / outside.sum()).sum() / 2)


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
def certainty_maps(run: MeasuredRun) -> Iterator[Figure]:
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
def certainty_table(run: MeasuredRun) -> list[TextTable]:
    """Return top-1 probabilities by region; the paper says they are low on smooth ground and high on detail."""
    lines: list[tuple[CellGroup, dict[str, str]]] = []
    for group, cell, outputs in _baselines(run):
        values: dict[str, list[Any]] = {}
        for picture in outputs:
            flat = picture.sureness(cell.meta.picture).ravel()
            for region in dict.fromkeys(picture.regions) if len(picture.regions) == len(flat) else ():
                values.setdefault(region, []).extend(flat[np.array(picture.regions) == region])
            values.setdefault("all cells", []).extend(flat)
        for region in sorted(values, key=lambda name: (name not in GROUNDS, name)):
            lower, median, upper = (f"{q:.3f}" for q in np.quantile(values[region], (0.25, 0.5, 0.75)))
            line = {"region": region, "lower quartile": lower, "median": median, "upper quartile": upper}
            lines.append((group, line | {"cells": str(len(values[region]))}))
    return by_group("ADT-Tree, Figs. 4 and 9: top-1 probability", lines)
