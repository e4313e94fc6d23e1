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
from stridebench.reports.papers.drawing import (
    COLOURS,
    Ints,
    blank,
    error_bars,
    figure,
    first_of,
    group_title,
    has_pictures,
    legend,
    on_grid,
    sheet,
    show_output,
    side_by_side,
)
from stridebench.reports.papers.measured import CellGroup, MeasuredRun, cycles, plain
from stridebench.reports.text_table import UNMEASURED, TextTable, measured_text

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


@figure("adt_tree_fig3")
def lengths(run: MeasuredRun) -> Iterator[Figure]:
    """Draw Fig. 3 (a): tokens a cycle of fixed trees, one panel a tree, one colour a temperature."""
    trees: dict[str, list[tuple[float, str]]] = {}
    for group in run.groups:
        for name in group.cells(*FIXED)[:METHODS]:
            title = f"{group.backbone}, {group.task}\n{group.label(name)}"
            trees.setdefault(title, []).append((group.temperature, name))
    if not trees:
        return
    drawn, panels = side_by_side(len(trees), "Fig. 3 (a): frequency of acceptance lengths", run.groups[0].title)
    for axes, (title, cells) in zip(panels, trees.items(), strict=True):
        width = 0.8 / len(cells)
        for i, (temperature, name) in enumerate(cells):
            emitted = cycles(run.store.cell(name))["emitted"]
            share = emitted.value_counts(normalize=True).sort_index()
            label = f"T = {temperature:g}, variance {emitted.var():.2f}"
            axes.bar(share.index + (i - (len(cells) - 1) / 2) * width, share, width, color=COLOURS[i], label=label)
        axes.set_title(title, fontsize=8)
        axes.set(xlabel="tokens a cycle", ylabel="share of cycles")
        axes.legend(frameon=False, fontsize=8)
    yield drawn


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


STARTS = {
    "tau": "tokens a cycle",
    "mean_tree_depth": "mean depth of trees",
    "speedup": "wall speed-up over AR",
}


def _starts(group: CellGroup) -> pd.DataFrame:
    """Return the row of the first cell of each initialisation, by the paper's name of it."""
    starts: dict[str, pd.Series[float]] = {}
    for name in group.cells("adt_tree"):
        row = group.row(name)
        if row["options"]["acceptance"] == "exact":
            starts.setdefault(INITS[str(row["options"]["init"])], row)
    return pd.DataFrame.from_dict({name: row.to_dict() for name, row in starts.items()}, orient="index")


@figure("adt_tree_fig8")
def starts(run: MeasuredRun) -> Iterator[Figure]:
    """Draw Fig. 8: tau, mean depth and speed-up by initialisation of depth and width."""
    for group in run.groups:
        rows = _starts(group)
        if len(rows) < 2:
            continue
        drawn, panels = side_by_side(3, "Fig. 8: initialisation of trees", group.title)
        for axes, (key, title) in zip(panels, STARTS.items(), strict=True):
            heights = rows[key].astype(float)
            axes.bar(range(len(rows)), heights, 0.6, yerr=error_bars(rows, key), color=COLOURS[: len(rows)])
            axes.set_xticks(range(len(rows)), rows.index, fontsize=7)
            axes.set_ylabel(title)
        yield drawn


@sheet("adt_tree_fig8")
def start_table(run: MeasuredRun) -> Iterator[TextTable]:
    """Return Fig. 8 as a table."""
    for group in run.groups:
        lines = [
            {"initialisation": str(name), **{title: measured_text(row, key) for key, title in STARTS.items()}}
            for name, row in _starts(group).iterrows()
        ]
        yield from plain(f"ADT-Tree, Fig. 8: initialisation of trees | measured on {group.title}", lines)


@figure("adt_tree_gain")
def gain(run: MeasuredRun) -> Iterator[Figure]:
    """Draw the stated limitation: the gain of each picture against the variance of its acceptance length."""
    for group in run.groups:
        cells = {name: gains(run.store, group, name) for name in group.cells("adt_tree")}
        if all(pictures is None for pictures in cells.values()):
            continue
        title = "Gain over the fixed tree and how much acceptance lengths vary"
        drawn, (axes,) = side_by_side(1, title, group.title)
        drawable = [(name, pictures) for name, pictures in cells.items() if pictures is not None]
        for colour, (name, pictures) in zip(COLOURS, drawable, strict=False):
            axes.plot(pictures["variance"], pictures["gain"], "o", ms=4, color=colour, label=group.label(name))
        axes.axhline(1, color="0.6", lw=1, zorder=0)
        axes.set(xlabel="variance of tokens a cycle, fixed tree", ylabel="ms/token, fixed tree over ADT-Tree")
        legend(drawn, axes)
        yield drawn


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
