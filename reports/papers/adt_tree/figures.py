"""Figures of ADT-Tree about its trees: depths over the picture, lengths, starts, and where adapting gained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from reports.papers.adt_tree.costs import FIXED, columns, cycles, gains, named
from reports.papers.drawing import COLOURS, legend, save, save_each, side_by_side
from reports.papers.measured import Measured, shown
from reports.papers.sjdpp.maps import Ints, blank, on_grid, show_output
from reports.plot_style import STYLE
from reports.summary import FinishedCell, metric_interval, put
from reports.text_table import TextTable

if TYPE_CHECKING:
    from harness.record.store import Cell, Store

PROMPTS, METHODS = 4, 3
"""Rows and methods of a map at most."""
MAPS_OF = ("adt_tree", "eagle2", "lantern", "eagle1", "eagle3", "lanternpp")
"""Whose first cell is drawn, the first ones of these."""
INITS = {"horizontal": "horizontal repeat", "vertical": "vertical repeat", "random": "random", "flock": "TokenFlock"}


def token_depths(found: pd.DataFrame) -> Ints:
    """The level of the tree that each token of a picture stood at, the closing token one below the last accepted."""
    parts = [np.arange(1, kept + 1) for kept in found["kept"]]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def tree_depths(found: pd.DataFrame) -> Ints:
    """The levels of the tree that gave each token of a picture."""
    return np.repeat(found["levels"].to_numpy(dtype=np.int64), found["kept"])


MAPPED = {"level of the token": token_depths, "levels of the tree": tree_depths}


def maps(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Fig. 2: beside each picture, the level that each token stood at, and the levels of its tree."""
    written: list[Path] = []
    for group in groups:
        firsts = group.rows[~group.rows["method"].duplicated()].index
        names = [name for method in MAPS_OF for name in named(group, (method,)) if name in firsts]
        cells = [cell for name in names if _pictures(cell := store.cell(name))][:METHODS]
        if not cells:
            continue
        held = {cell.name: cycles(cell) for cell in cells}
        prompts = list(dict.fromkeys(prompt for found in held.values() for prompt in found["prompt"]))[:PROMPTS]
        shade = Normalize(0, max(1, *(int(max(one["levels"].max() + 1, one["kept"].max())) for one in held.values())))
        figure = blank(group, "Fig. 2: levels of tokens and of their trees", len(prompts), 3 * len(cells))
        for place, (prompt, cell) in enumerate((prompt, cell) for prompt in prompts for cell in cells):
            mine = held[cell.name][held[cell.name]["prompt"] == prompt]
            mine = mine[mine["repetition"] == mine["repetition"].min()]
            plain, *mapped = figure.axes[3 * place : 3 * place + 3]
            if mine.empty or not show_output(plain, store, cell, prompt, mine["repetition"].iloc[0]):
                continue
            plain.set_title(str(cell.meta["label"])[:28], fontsize=6)
            for axes, (title, each) in zip(mapped, MAPPED.items(), strict=True):
                axes.imshow(on_grid(each(mine), cell.meta["grid"]), cmap="inferno", norm=shade)
                axes.set_axis_on()
                axes.set_title(title, fontsize=6)
        figure.colorbar(ScalarMappable(shade, "inferno"), ax=figure.axes, shrink=0.6, label="level, from 1")
        written.append(save(figure, outdir, "fig2", len(written)))
    return written


def _pictures(cell: Cell) -> bool:
    return bool(cell.meta.get("grid")) and bool(cell.samples["output"].fillna("").str.endswith(".png").any())


def lengths(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Fig. 3 (a): how often a cycle of a fixed tree emitted so many tokens, a panel a tree, a colour a temperature."""
    held: dict[tuple[str, str, str], list[tuple[float, str]]] = {}
    for group in groups:
        for name in named(group, FIXED)[:METHODS]:
            key = (group.backbone, group.task, str(group.row(name)["label"]))
            held.setdefault(key, []).append((group.temperature, name))
    if not held:
        return []
    with rc_context(STYLE):
        figure, panels = side_by_side(len(held), groups[0], "Fig. 3 (a): frequency of acceptance lengths")
        for axes, ((backbone, task, label), cells) in zip(panels, held.items(), strict=True):
            for i, (temperature, name) in enumerate(cells):
                emitted = cycles(store.cell(name))["emitted"]
                share = emitted.value_counts(normalize=True).sort_index()
                side = (i - (len(cells) - 1) / 2) * 0.8 / len(cells)
                told = f"T = {temperature:g}, variance {emitted.var():.2f}"
                axes.bar(share.index + side, share, 0.8 / len(cells), color=COLOURS[i], label=told)
            axes.set_title(f"{backbone}, {task}\n{label}", fontsize=8)
            axes.set(xlabel="tokens a cycle", ylabel="share of cycles")
            axes.legend(frameon=False, fontsize=8)
        return [save(figure, outdir, "fig3")]


def length_sheet(store: Store, groups: Sequence[Measured]) -> list[TextTable]:
    """Fig. 3 (a) as a table: the share of cycles that emitted so many tokens, of each fixed tree."""
    rows = []
    for group in groups:
        for name in named(group, FIXED):
            emitted = cycles(store.cell(name))["emitted"].to_numpy(dtype=np.int64)
            shares = " ".join(f"{share:.0%}" for share in np.bincount(emitted)[1:] / len(emitted))
            label = f"{group.row(name)['label']}, T = {group.temperature:g}"
            rows.append([label, f"{emitted.mean():.2f}", f"{emitted.var(ddof=1):.2f}", shares, str(len(emitted))])
    heads = ("decoding", "mean", "variance", "cycles by tokens, from 1", "cycles")
    return [TextTable("ADT-Tree, Fig. 3: acceptance lengths", columns(*heads), rows, [])] if rows else []


def starts(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Fig. 8: tau, mean depth and speed-up by what a tree's depth and width begin from."""

    def draw(group: Measured) -> Figure | None:
        rows = _starts(store, group)
        if len(rows) < 2:
            return None
        figure, panels = side_by_side(3, group, "Fig. 8: initialisation of trees")
        for axes, (key, title) in zip(panels, STARTS.items(), strict=True):
            values = rows[key].astype(float)
            low, high = (rows.get(f"{key}_{end}", values).astype(float).fillna(values) for end in ("low", "high"))
            axes.bar(range(len(rows)), values, 0.6, yerr=[values - low, high - values], color=COLOURS[: len(rows)])
            axes.set_xticks(range(len(rows)), rows.index, fontsize=7)
            axes.set_ylabel(title)
        return figure

    return save_each(groups, outdir, "fig8", draw)


STARTS = {"tau": "tokens a cycle", "depth": "mean depth of trees", "speedup": "wall speed-up over AR"}


def _starts(store: Store, group: Measured) -> pd.DataFrame:
    """Figures of the first cell of each start, by its name in the paper."""
    found: dict[str, dict[str, Any]] = {}
    for name in named(group, ("adt_tree",)):
        row = group.row(name)
        title = INITS[str(row["options"]["init"])]
        if title not in found and row["options"]["acceptance"] == "exact":
            found[title] = {str(key): value for key, value in row.items()}
            put(found[title], "depth", metric_interval("mean_tree_depth", FinishedCell.of(store.cell(name)).totals))
    return pd.DataFrame.from_dict(found, orient="index")


def start_sheet(store: Store, groups: Sequence[Measured]) -> list[TextTable]:
    """Fig. 8 as a table."""
    sheets = []
    for group in groups:
        rows = _starts(store, group)
        if len(rows):
            lines = [[str(title), *(shown(row, (key,), 2) for key in STARTS)] for title, row in rows.iterrows()]
            title = f"ADT-Tree, Fig. 8: initialisation of trees | measured on {group.title}"
            sheets.append(TextTable(title, columns("initialisation", *STARTS.values()), lines, []))
    return sheets


def gain(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """The stated limitation: gain of each picture over the fixed tree against the variance of its acceptance length."""

    def draw(group: Measured) -> Figure | None:
        found = {name: one for name in named(group, ("adt_tree",)) if (one := gains(store, group, name)) is not None}
        if not found:
            return None
        figure, (axes,) = side_by_side(1, group, "Gain over the fixed tree and how much acceptance lengths vary")
        for colour, (name, one) in zip(COLOURS, found.items(), strict=False):
            axes.plot(one["variance"], one["gain"], "o", ms=4, color=colour, label=str(group.row(name)["label"]))
        axes.axhline(1, color="0.6", lw=1, zorder=0)
        axes.set(xlabel="variance of tokens a cycle, fixed tree", ylabel="ms/token, fixed tree over ADT-Tree")
        legend(figure, axes)
        return figure

    return save_each(groups, outdir, "gain", draw)
