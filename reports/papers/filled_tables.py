"""Fills the papers' tables from a run: every value as printed and as measured, side by side.

Rows have the paper's order and names; other cells of the run follow them. A table is filled from the paper's
benchmark, or from a task of no paper (emoji_scenes) that stands in for it; the heading names the task. What a paper's
YAML file cannot express is in its ``PaperFacts``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from stridebench.reports.papers.measured import CELL, CellGroup, MeasuredRun, fits, over_seeds, scorer_notes
from stridebench.reports.papers.paper_files import Printed, Quantity, TableLayout, printed
from stridebench.reports.text_table import UNMEASURED, Column, TextTable, measured_text

Row = Mapping[str, Any]


@dataclass(frozen=True)
class SheetLine:
    """A row of a sheet.

    Args:
        selection: the cells that it is measured on (``measured.fits``), or None if no cell of this sheet is one.
        printed: values by the title of the quantity.
        key: of the summary, for the measure ``tokens``.
        model: the preset of the printed row; "" if it is not known.
    """

    labels: tuple[str, ...]
    selection: Mapping[str, Any] | None
    printed: Mapping[str, str] = field(default_factory=dict)
    key: str = "scr"
    model: str = ""


@dataclass(frozen=True)
class SheetScene:
    """What one sheet shows: a printed table and cells of a run."""

    table: Printed
    run: MeasuredRun
    lines: Sequence[SheetLine]
    cells: pd.DataFrame
    every: pd.DataFrame

    @property
    def layout(self) -> TableLayout:
        """Return the layout of the table."""
        return self.table.layout

    @property
    def group(self) -> CellGroup:
        """Return the cells as one group, which has a title."""
        first = self.cells.iloc[0]
        backbone, task = (", ".join(dict.fromkeys(self.cells[key])) for key in ("backbone", "task"))
        return CellGroup(backbone, str(first["dtype"]), float(first["temperature"]), task, self.cells)

    def heading(self, **more: str) -> str:
        """Fill the fields of the layout's heading; ``more`` are the paper's fields."""
        group = self.group
        fields = {
            "title": self.table.paper.title,
            "where": self.layout.where,
            "of_model": f" of {self.layout.model}" if self.layout.model else "",
            "cells": group.title,
            "backbones": group.backbone,
            "tasks": group.task,
            "dtype": group.dtype,
            **more,
        }
        return (self.layout.heading or self.table.paper.heading).format_map(fields)


Measure = Callable[["pd.Series[Any] | None", SheetLine], str]


@dataclass(frozen=True)
class PaperFacts:
    """Code that a paper's tables need beyond their YAML.

    Args:
        options: maps the options of a cell's method to those that the layouts use.
    """

    options: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    applies: Callable[[SheetScene], bool] = lambda _: True
    lines: Callable[[SheetScene], Iterable[SheetLine]] = lambda scene: scene.lines
    fields: Callable[[SheetScene], Mapping[str, str]] = lambda _: {}
    notes: Callable[[SheetScene], Iterable[str]] = lambda _: ()
    measures: Mapping[str, Measure] = field(default_factory=dict)


def fill(name: str, run: MeasuredRun, facts: PaperFacts) -> list[TextTable]:
    """Fill a printed table from each part of the run that can fill it."""
    table = printed(name)
    return [_sheet(scene, facts) for scene in scenes(table, run, facts)]


def scenes(table: Printed, run: MeasuredRun, facts: PaperFacts) -> Iterator[SheetScene]:
    """Yield the parts of the run that can fill a table."""
    if not run.groups:
        return
    cells, lines = cells_of(run, facts), lines_of(table)
    cells = cells[_fitting(table, lines, cells)]
    by = list(table.layout.sheet_by)
    if not by:
        cells = cells[cells["method"].isin({line.selection["method"] for line in lines if line.selection})]
    parts = [part for _, part in cells.groupby(by, sort=False)] if by else [cells]
    for part in parts:
        scene = SheetScene(table, run, lines, part, cells)
        if len(part) and facts.applies(scene):
            yield scene


def cells_of(run: MeasuredRun, facts: PaperFacts) -> pd.DataFrame:
    """Return the rows of all groups, with the options that the layouts use."""
    cells = pd.concat([group.rows for group in run.groups])
    return cells if facts.options is None else with_options(cells, facts.options)


def with_options(cells: pd.DataFrame, convert: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> pd.DataFrame:
    """Return the cells with converted options."""
    return cells.assign(options=pd.Series([convert(params) for params in cells["options"]], cells.index, dtype=object))


def _fitting(table: Printed, lines: Sequence[SheetLine], cells: pd.DataFrame) -> pd.Series[bool]:
    """Select the cells of the table's benchmarks, or of tasks that stand in for them."""
    layout, paper = table.layout, table.paper
    tasks = set(layout.tasks) or {line.selection.get("task", "") for line in lines if line.selection} - {""}
    fitting = pd.Series(True, cells.index)
    if tasks:
        fitting = cells["task"].isin(tasks) | (~cells["task"].isin(paper.benchmarks) & layout.stand_in)
    if paper.alone:
        fitting &= cells["task"].isin(paper.alone) == bool(tasks & set(paper.alone))
    if layout.temperatures:
        fitting &= cells["temperature"].isin(layout.temperatures)
    if layout.model in paper.models and not layout.reference:
        fitting &= _of_model(table, cells["backbone"][fitting]).reindex(cells.index, fill_value=False)
    return fitting


def _of_model(table: Printed, backbones: pd.Series[str]) -> pd.Series[bool]:
    """Select the backbones that a table of one model shows.

    These are no other models of the paper, and on sheets by backbone the model alone if the run has it.
    """
    layout, paper = table.layout, table.paper
    models = backbones.map(lambda backbone: paper.model_of(str(backbone)))
    itself = models == layout.model
    return itself if itself.any() and "backbone" in layout.sheet_by else itself | models.isna()


def lines_of(table: Printed) -> list[SheetLine]:
    """Return the printed rows of a table, then the additional ones."""
    layout = table.layout
    texts = layout.texts or tuple(f"{{{label}}}" for label in layout.labels)
    lines = []
    for row in _rows(table):
        for values in layout.lines:
            context = {**row, **values}
            selection = _selection(table, {**layout.rows, **values.get("rows", {})}, context)
            line = SheetLine(
                labels=tuple(_text(text, context).strip() for text in texts),
                selection=selection,
                printed={q.title: row.get(values.get(q.title, q.title), "") for q in layout.quantities},
                key=values.get("key", "scr"),
                model=str(selection.pop("of", "")),
            )
            lines.append(line)
    return lines + [SheetLine(more.labels, _selection(table, more.rows, {})) for more in layout.more]


def _rows(table: Printed) -> Iterator[dict[str, str]]:
    """Yield the rows as printed; rows with equal labels (ten pictures, for instance) become their mean."""
    labels = [] if table.layout.texts else list(table.layout.labels)
    groups = [rows for _, rows in table.rows.groupby(labels, sort=False)] if labels else [table.rows]
    for rows in groups:
        if not labels:
            yield from ({str(key): str(value) for key, value in row.items()} for row in rows.to_dict("records"))
            continue
        row = {str(key): str(value) for key, value in rows.iloc[0].items()}
        if len(rows) > 1:
            titles = [quantity.title for quantity in table.layout.quantities]
            row |= {title: f"{rows[title].astype(float).mean():.2f}" for title in titles}
        yield row


def _selection(table: Printed, rows: Mapping[str, Any], context: Row) -> dict[str, object]:
    """Resolve the selection of a row: explain names, add a method's published options, convert numbers."""
    stated = dict(rows)
    if "named" in stated:
        stated = {**table.paper.named(str(context[stated.pop("named")])), **stated}
    stated = {**table.paper.published.get(str(stated.get("method", "")), {}), **stated}
    selection = {key: _value(key, value, context) for key, value in stated.items()}
    if "of" in selection:
        selection["of"] = table.paper.preset(str(selection["of"]))
    return selection


def _value(key: str, value: Any, context: Row) -> Any:
    if not isinstance(value, str) or "{" not in value:
        return value
    text = _text(value, context)
    if key in CELL and key not in ("method", "backbone", "task"):
        return _number(text)
    try:
        return float(text)
    except ValueError:
        return text


def _text(text: str, context: Row) -> str:
    """Replace ``{Column}`` by the row's text and ``{Column:g}`` by the number in it."""

    def written(match: re.Match[str]) -> str:
        value = context[match[1]]
        return f"{_number(str(value)):g}" if match[2] else f"{value:g}" if isinstance(value, float) else str(value)

    return re.sub(r"\{([^}:]+)(:g)?\}", written, text)


def _number(text: str) -> float:
    number = re.search(r"(?<!\w)-?\d+(\.\d+)?", text)
    return float(number[0]) if number else float("nan")


def _sheet(scene: SheetScene, facts: PaperFacts) -> TextTable:
    lines = list(facts.lines(scene))
    matches = [_matches(scene, line) for line in lines]
    stood_in = {str(cell) for match in matches for cell in match.index}
    for line, match in _others(scene, stood_in):
        lines.append(line)
        matches.append(match)
    joined = pd.concat(matches)
    shown = pd.concat([scene.cells, joined])
    measured_too = [
        q for q in scene.layout.if_measured if any(key in shown and shown[key].notna().any() for key in q.keys)
    ]
    quantities = (*scene.layout.quantities, *measured_too)
    measures = {**MEASURES, **facts.measures}
    body = [
        [*line.labels, *(text for q in quantities for text in _texts(q, line, match, measures))]
        for line, match in zip(lines, matches, strict=True)
    ]
    title = scene.heading(**facts.fields(scene))
    layout, paper, remarks = scene.layout, scene.table.paper, _remarks_of_rows(scene.table)
    networks = scorer_notes(scene.run.store, shown, [key for quantity in quantities for key in quantity.keys])
    notes = [f"{layout.where}: {layout.caption}", *networks, *facts.notes(scene), *layout.first_notes, *paper.notes]
    return TextTable(title, _columns(layout, quantities, body), body, [*notes, *remarks, *layout.last_notes])


def _matches(scene: SheetScene, line: SheetLine) -> pd.DataFrame:
    """Return the cell of a line, or one of each temperature. A named backbone's cell may be anywhere in the run."""
    if line.selection is None:
        return scene.cells.iloc[:0]
    elsewhere = scene.layout.reference and line.selection.get("backbone")
    cells = fits(scene.every if elsewhere else scene.cells, **line.selection)
    return cells[~cells["temperature"].duplicated()] if scene.layout.temperatures else cells.iloc[:1]


def _others(scene: SheetScene, stood_in: set[str]) -> Iterator[tuple[SheetLine, pd.DataFrame]]:
    """Yield lines for cells that match no printed row; cells that differ in temperature alone share a line."""
    left = scene.cells[~scene.cells.index.isin(stood_in)]
    if not scene.layout.others:
        return
    for other in scene.layout.other_rows:
        chosen = fits(left, **other.rows)
        shared = ["backbone", "label"] if scene.layout.temperatures else [chosen.index]
        for _, cells in chosen.groupby(shared, sort=False):
            context = {str(key): value for key, value in cells.iloc[0].items()}
            for key, texts in {**other.also, "scr": scene.layout.others}.items():
                yield SheetLine(tuple(_text(text, context) for text in texts), None, key=key), cells


def _texts(quantity: Quantity, line: SheetLine, cells: pd.DataFrame, measures: Mapping[str, Measure]) -> Iterator[str]:
    """Format the sides of a quantity on one line."""
    if quantity.temperature is not None:
        cells = cells[cells["temperature"] == quantity.temperature]
    cell = None if cells.empty else cells.iloc[0]
    if "printed" in quantity.sides:
        yield line.printed.get(quantity.title) or "-"
    if quantity.measure:
        yield measures[quantity.measure](cell, line)
    else:
        if cell is not None and quantity.factor != 1:
            cell = scaled(cell, quantity.keys, quantity.factor)
        yield measured_text(cell, *quantity.keys, digits=quantity.digits)


def scaled(row: pd.Series[Any], keys: Sequence[str], factor: float) -> pd.Series[Any]:
    """Return the row with these figures and their intervals in another unit."""
    names = [name for key in keys for name in (key, f"{key}_low", f"{key}_high") if name in row.index]
    rescaled: pd.Series[Any] = pd.concat([row.drop(names), row[names].astype(float) * factor])
    return rescaled


MEASURES: Mapping[str, Measure] = {
    "failed": lambda cell, _: UNMEASURED if cell is None else f"{cell['n_failed']:.0f}/{cell['n_run']:.0f}",
    "n": lambda cell, _: "0" if cell is None else f"{cell['n_ok']:.0f}",
    "verdict": lambda cell, _: "-" if cell is None else str(cell["verdict"] or "-"),
    "tokens": lambda cell, line: measured_text(cell, line.key) if line.key else "-",
}
"""Functions that format quantities which are not in the summary."""


def _columns(layout: TableLayout, quantities: Sequence[Quantity], body: Sequence[Sequence[str]]) -> tuple[Column, ...]:
    """Return the columns of labels and quantities, ranked as the layout says."""
    headed = [(quantity.title, side, quantity.heading(side)) for quantity in quantities for side in quantity.sides]
    if layout.keep == "in order":
        titles = [*layout.labels, *(heading for _, _, heading in headed)]
        return tuple(Column(title, title, rank=rank) for rank, title in enumerate(titles))
    order = list(layout.keep or _measured_first(headed, body, len(layout.labels)))
    order += [title for title, _, _ in headed if title not in order]
    labels = [
        Column(label, label, rank=2 * len(order) + 2 if label in layout.drop_first else 0) for label in layout.labels
    ]
    ranks = [2 + 2 * order.index(title) + (side == "printed") for title, side, _ in headed]
    return (
        *labels,
        *(Column(title, heading, rank=rank) for (title, _, heading), rank in zip(headed, ranks, strict=True)),
    )


def _measured_first(
    headed: Sequence[tuple[str, str, str]], body: Sequence[Sequence[str]], labels: int
) -> Iterator[str]:
    """Yield the titles of quantities that some line measured."""
    for i, (title, side, _) in enumerate(headed):
        if side == "measured" and any(line[labels + i] != UNMEASURED for line in body):
            yield title


def _remarks_of_rows(table: Printed) -> list[str]:
    """Format the remarks on printed rows; rows with the same remark share a note."""
    rows_of: dict[str, list[str]] = {}
    for row in table.rows.to_dict("records"):
        columns = [label for label in table.layout.labels if label in row] or list(row)[:3]
        labels = " ".join(str(row[column]) for column in columns if column != "notes")
        for note in filter(None, str(row.get("notes", "")).split("; ")):
            rows_of.setdefault(note, []).append(labels)
    return [
        f"printed ({', '.join(rows) if len(rows) <= 4 else f'{len(rows)} rows'}): {note}"
        for note, rows in rows_of.items()
    ]


# Facts of pictures: SJD++ and MuLo-SD


def pair(printed_values: Sequence[float], measured_values: Sequence[float]) -> dict[float, float]:
    """Return the measured value for each printed one: the equal one; else the next, if equally many are left."""
    pairs = {value: value for value in printed_values if value in measured_values}
    left, right = ([v for v in values if v not in pairs] for values in (printed_values, measured_values))
    return pairs | (dict(zip(left, right, strict=True)) if len(left) == len(right) else {})


def _top_ks(scene: SheetScene) -> dict[float, float]:
    """Return the measured top-k for each printed one."""
    printed_values = sorted(
        {line.selection["top_k"] for line in scene.lines if line.selection and "top_k" in line.selection}
    )
    return pair(printed_values, sorted(set(scene.cells["top_k"]))) if printed_values else {}


def _picture_lines(scene: SheetScene) -> Iterator[SheetLine]:
    """Match a model of the paper with its rows; if rows name models, another backbone gets rows with its name."""
    model = scene.table.paper.model_of(scene.group.backbone)
    top_ks = _top_ks(scene)
    for line in scene.lines:
        if "Model" in scene.layout.labels and line.labels[0] != model:
            yield replace(line, selection=None)
        elif line.selection and line.selection.get("top_k") in top_ks:
            yield replace(line, selection={**line.selection, "top_k": top_ks[line.selection["top_k"]]})
        else:
            yield line


def _picture_notes(scene: SheetScene) -> Iterator[str]:
    group, layout = scene.group, scene.layout
    if note := over_seeds(scene.cells):
        yield note
    others = [q.title for q in layout.quantities if q.keys and not group.has(q.keys[0]) and group.has(*q.keys)]
    if others:
        yield f"measured {', '.join(others)}: of {group.task} by a detector of its own, not the benchmark's"
    for printed_k, measured_k in _top_ks(scene).items():
        if printed_k != measured_k:
            yield f"the paper's Top-{printed_k:g} stands beside top-k {measured_k:g} here"


PICTURES = PaperFacts(lines=_picture_lines, notes=_picture_notes)
"""Facts of SJD++ and of MuLo-SD."""
