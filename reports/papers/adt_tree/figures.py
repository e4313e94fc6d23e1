"""Figures of ADT-Tree: depths over the picture, acceptance lengths, initialisation, and the gain of adaptation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from stridebench.reports.papers.adt_tree.tables import FIXED, gains
from stridebench.reports.papers.charts import ChartData, source
from stridebench.reports.papers.drawing import (
    COLOURS,
    Ints,
    blank,
    figure,
    first_of,
    group_title,
    has_pictures,
    legend,
    on_grid,
    sheet,
    show_output,
)
from stridebench.reports.papers.measured import MeasuredRun, cycles, plain
from stridebench.reports.text_table import UNMEASURED, TextTable

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
                "decoding": f"{group.label(name)}, T = {group.temperature:g}",
                "mean": f"{emitted.mean():.2f}",
                "variance": f"{emitted.var(ddof=1):.2f}",
                "cycles by tokens, from 1": " ".join(f"{n:.0%}" for n in np.bincount(emitted)[1:] / len(emitted)),
                "cycles": str(len(emitted)),
            }
            lines.append(line)
    return plain("ADT-Tree, Fig. 3: acceptance lengths", lines)


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


def folder() -> Path:
    """Return the folder of the shipped weights."""
    return Path(str(files("stridebench.harness"))) / "backbones" / "weights"


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
    for drafter in accuracies(folder()):
        line = {"drafter": drafter.drafter}
        for control, title in CONTROLS.items():
            line[f"top-1, {title}"] = _share(drafter.top1, control)
            line[f"top-3, {title}"] = _share(drafter.top3, control)
        lines.append(line)
    notes = ["of held-out tokens where the backbone's likeliest is the drafter's first, or among its three; from cards"]
    return plain("ADT-Tree, Fig. 1: accuracy of drafters on the next token", lines, notes)


def _share(side: dict[str, float], control: str) -> str:
    return f"{side[control]:.1%}" if control in side else UNMEASURED


@figure("adt_tree_fig1")
def draw(run: MeasuredRun) -> Iterator[Figure]:
    """Draw Fig. 1: bars of top-1 (solid) and top-3 (pale), one group a drafter, one colour a control."""
    drafters = accuracies(folder())
    if not drafters:
        return
    drawn = Figure(figsize=(2.4 + 1.5 * len(drafters), 3.9), dpi=130, layout="constrained")
    drawn.suptitle("Fig. 1: accuracy of drafters on the next token", fontsize=9)
    axes = drawn.add_subplot()
    for i, (control, title) in enumerate(CONTROLS.items()):
        places = [place + (i - 1) * 0.27 for place in range(len(drafters))]
        for side, alpha, k in (("top3", 0.35, 3), ("top1", 1.0, 1)):
            shares = [getattr(drafter, side).get(control, 0.0) for drafter in drafters]
            axes.bar(places, shares, 0.25, color=COLOURS[i], alpha=alpha, label=f"{title}, top-{k}")
    axes.set_xticks(range(len(drafters)), [drafter.drafter for drafter in drafters], fontsize=7)
    axes.set(ylabel="share of held-out tokens", ylim=(0, 1))
    legend(drawn, axes)
    yield drawn
