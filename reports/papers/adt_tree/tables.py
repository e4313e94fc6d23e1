"""Tables I to V of ADT-Tree, printed and measured: T = 0 and T = 1 side by side where the paper has both.

Its trees with a fixed base are ours with bounds that leave no other: from a base of 1, d is 1 or 2, and from one of k,
k less or more one step, whatever the neighbour had.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from reports.papers.adt_tree.costs import columns
from reports.papers.measured import Measured, shown
from reports.papers.printed import printed
from reports.papers.tables import BENCHMARKS, Figure
from reports.summary import FinishedCell, metric_interval, put
from reports.text_table import TextTable

if TYPE_CHECKING:
    from harness.record.store import Store

SPEED = (
    Figure("SR [x]", ("speedup",)),
    Figure("tau [tokens/cycle]", ("tau",)),
)
DEPTH = "mean tree depth"
QUALITY = (Figure("HPSv2", ("set.hpsv2",), 4), Figure("CLIP Score", ("set.clip_score",), 4))
SETS = (
    Figure("IS (higher better)", ("set.inception_score",)),
    Figure("Aesthetic (higher better)", ("set.aesthetic",), 5),
    Figure("FID (lower better)", ("set.fid",)),
)


@dataclass(frozen=True)
class Layout:
    """Figures of a table for each of its temperatures, and the paper's own benchmark; none: any task."""

    figures: tuple[Figure, ...]
    temperatures: tuple[float, ...] = (1.0,)
    task: str = ""

    def column(self, figure: Figure, temperature: float) -> str:
        """As printed."""
        return f"T={temperature:g} {figure.title}" if len(self.temperatures) > 1 else figure.title


def _speed(depth: str, *more: Figure) -> tuple[Figure, ...]:
    return (*SPEED, Figure(depth, (DEPTH,)), *more)


BOTH = (0.0, 1.0)
LAYOUTS = {
    "adt_tree_table1": Layout(_speed("mean tree depth d_bar", *QUALITY), BOTH, "coco"),
    "adt_tree_table2": Layout(_speed("mean tree depth d_bar", *QUALITY), BOTH, "partiprompts"),
    "adt_tree_table3": Layout(SETS, task="coco"),
    "adt_tree_table4": Layout(SETS[:2], task="partiprompts"),
    "adt_tree_table5": Layout(_speed("d_bar (paper header: d~)"), task="imagenet_classes"),
}
Name = tuple[str, ...]


def meaning(method: str, options: Mapping[str, Any]) -> Name | None:
    """What of a run stands for a row: the method, and of ADT-Tree its acceptance, start and what is fixed."""
    if method != "adt_tree":
        return (method,)
    widths = options["widths"]
    fixed = ("d" if list(options["depths"]) == [1, 2] else "") + (
        "k" if widths[1] - widths[0] == options["step_k"] else ""
    )
    return (method, str(options["acceptance"]), str(options["init"]), fixed)


ROWS: Mapping[str, Name] = {
    "Anole": ("autoregressive",),
    "EAGLE-2": ("eagle2",),
    "LANTERN": ("lantern",),
    "ADT-Tree": ("adt_tree", "exact", "horizontal", ""),
    "ADT-Tree+LANTERN": ("adt_tree", "lantern", "horizontal", ""),
    "TokenFlock": ("adt_tree", "exact", "flock", ""),
    "(d~=1)": ("adt_tree", "exact", "horizontal", "d"),
    "(k~=25)": ("adt_tree", "exact", "horizontal", "k"),
    "(d~=1, k~=25)": ("adt_tree", "exact", "horizontal", "dk"),
}


def table(name: str) -> Callable[[Store, Sequence[Measured]], list[TextTable]]:
    """Fills one of LAYOUTS: a sheet for each backbone and task, or for each task where the paper has several models."""
    layout = LAYOUTS[name]

    def fill(store: Store, groups: Sequence[Measured]) -> list[TextTable]:
        by_model = "Model" in printed(name).rows
        held: dict[tuple[str, ...], list[Measured]] = {}
        for group in groups:
            fits = group.task == layout.task or group.task not in BENCHMARKS
            if fits and group.temperature in layout.temperatures:
                held.setdefault((group.task, *(() if by_model else (group.backbone, group.dtype))), []).append(group)
        return [_sheet(name, layout, _cells(store, found)) for found in held.values()]

    return fill


def _cells(store: Store, groups: Sequence[Measured]) -> pd.DataFrame:
    """Rows of all groups with their ``meaning`` and the mean depth of trees."""
    rows = pd.concat([group.rows for group in groups])
    more = []
    for name, row in rows.iterrows():
        found: dict[str, Any] = {"meaning": meaning(str(row["method"]), row["options"])}
        put(found, DEPTH, metric_interval("mean_tree_depth", FinishedCell.of(store.cell(str(name))).totals))
        more.append(found)
    return rows.join(pd.DataFrame(more, index=rows.index))


def _sheet(name: str, layout: Layout, cells: pd.DataFrame) -> TextTable:
    held, ours = printed(name), list(dict.fromkeys(cells["backbone"]))
    theirs = list(dict.fromkeys(held.rows["Model"])) if "Model" in held.rows else [held.model]
    stands = dict(zip(theirs, ours, strict=False))
    labels, lines, used = [], [], set()
    for row in held.rows.to_dict("records"):
        backbone = stands.get(str(row.get("Model", held.model)))
        found = cells[(cells["backbone"] == backbone) & (cells["meaning"] == ROWS[str(row["Method"])])]
        found = found[~found["temperature"].duplicated()]
        used |= set(found.index)
        labels.append([str(row["Model"]), str(row["Method"])] if "Model" in row else [str(row["Method"])])
        lines.append(_line(layout, row, found))
    for (backbone, label), found in cells[~cells.index.isin(used)].groupby(["backbone", "label"], sort=False):
        labels.append([str(backbone), str(label)] if "Model" in held.rows else [str(label)])
        lines.append(_line(layout, {}, found))
    heads = ["Model", "Method"] if "Model" in held.rows else ["Method"]
    for temperature in layout.temperatures:
        for figure in layout.figures:
            heads += [f"{layout.column(figure, temperature)}, {side}" for side in ("printed", "measured")]
    body = [[*label, *line] for label, line in zip(labels, lines, strict=True)]
    notes = [f"{held.where}: {held.caption}", *(f"{ours} stands for {theirs}" for theirs, ours in stands.items())]
    notes += ["a tree's depth: levels as read by the target, 0 of AR where the paper writes 1.00"]
    notes += [f"printed: {note}" for note in dict.fromkeys(held.rows["notes"]) if note]
    task = ", ".join(dict.fromkeys(cells["task"]))
    title = f"ADT-Tree, {held.where}: printed | measured on {', '.join(ours)}, {task}"
    return TextTable(title, columns(*heads), body, notes)


def _line(layout: Layout, row: Mapping[Any, Any], found: pd.DataFrame) -> list[str]:
    """Printed and measured, figure by figure."""
    line = []
    for temperature in layout.temperatures:
        cells = found[found["temperature"] == temperature]
        cell = None if cells.empty else cells.iloc[0]
        for figure in layout.figures:
            theirs = str(row.get(layout.column(figure, temperature), "")) or "-"
            line += [theirs, shown(cell, figure.keys, figure.digits)]
    return line
