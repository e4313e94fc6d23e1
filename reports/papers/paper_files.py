"""What papers print and how a run fills it, as data: a CSV a table, and a YAML a paper.

To add a table, add its CSV to ``reports/data/papers`` and an entry of the same name to the paper's YAML there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict

from harness.errors import UnknownNameError

FOLDER = Path(__file__).parents[1] / "data" / "papers"


def _flat(values: Any) -> Any:
    """A list without the lists in it, which YAML's anchors leave."""
    if not isinstance(values, list):
        return values
    return [inner for value in values for inner in (_flat(value) if isinstance(value, list) else [value])]


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Quantity(_Data):
    """A column of a table, printed and measured.

    Args:
        title: as printed.
        keys: of the summary; the first that was measured is shown.
        digits: decimals.
        measure: name of a function that writes it, in place of keys; see ``engine.MEASURES``.
        sides: "printed" and "measured", or one of them.
        temperature: of the cell that it is measured on. None: any.
    """

    title: str
    keys: tuple[str, ...] = ()
    digits: int = 2
    measure: str = ""
    sides: tuple[Literal["printed", "measured"], ...] = ("printed", "measured")
    temperature: float | None = None

    def heading(self, side: str) -> str:
        """Of one of its sides."""
        return f"{self.title}, {side}" if len(self.sides) > 1 else self.title


class More(_Data):
    """A row that the paper does not print."""

    labels: tuple[str, ...]
    rows: dict[str, Any]


class Others(_Data):
    """Cells that stand in no row.

    Args:
        rows: what they have to be.
        also: labels of a line before theirs, by the key (of the summary) that it shows.
    """

    rows: dict[str, Any] = {}
    also: dict[str, tuple[str, ...]] = {}


def _others(values: Any) -> Any:
    return [value if "rows" in value else {"rows": value} for value in _flat(values)]


Names = Annotated[tuple[str, ...], BeforeValidator(_flat)]
Quantities = Annotated[tuple[Quantity, ...], BeforeValidator(_flat)]
Selections = Annotated[tuple[dict[str, Any], ...], BeforeValidator(_flat)]


class Layout(_Data):
    """How a printed table is filled.

    A text with ``{Column}`` stands for the value of a printed row, ``{Column:g}`` for the number in it.

    Args:
        where: "Table 1".
        caption: shortened.
        model: that all rows are of. "": they name their own.
        heading: of a sheet; see ``engine.Scene.heading``.
        tasks: the paper's benchmark; none: those of the rows, or any.
        stand_in: whether a task that is none of the paper's benchmarks stands in for it.
        sheet_by: columns of the summary; a sheet for each of their values.
        reference: the preset beside whose rows a backbone stands that the paper has not. "": rows name models.
        labels: columns that name a row, printed ones unless there are ``texts``.
        texts: of the labels.
        rows: what a printed row is measured on: columns of the summary, options of the method, and ``named`` (a column
            whose value ``Paper.names`` explains), ``role`` (of the suite) or ``of`` (a model, as printed).
        lines: where a printed row becomes several, what each adds: values for ``texts``, the printed column of each
            quantity, ``rows``, and ``key`` (of the summary) for the measure ``tokens``.
        columns: quantities.
        if_measured: quantities of tasks that no paper has, shown where the run has them.
        temperatures: of which every quantity is printed, side by side.
        more: rows that follow.
        others: labels of cells that stand in no row, from columns of the summary; none: these cells are left out.
        other_rows: what such a cell has to be.
        keep: titles in the order in which a narrow terminal keeps them. None: measured ones first.
        drop_first: labels that it does without.
        first_notes, notes, last_notes: below the table.
    """

    where: str
    caption: str
    model: str = ""
    heading: str = ""
    tasks: tuple[str, ...] = ()
    stand_in: bool = True
    sheet_by: tuple[str, ...] = ("backbone", "dtype", "temperature", "task")
    reference: str = ""
    labels: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    rows: dict[str, Any] = {}
    lines: Selections = ({},)
    columns: Quantities = ()
    if_measured: Quantities = ()
    temperatures: tuple[float, ...] = ()
    more: tuple[More, ...] = ()
    others: tuple[str, ...] = ()
    other_rows: Annotated[tuple[Others, ...], BeforeValidator(_others)] = (Others(),)
    keep: tuple[str, ...] | Literal["in order"] | None = None
    drop_first: tuple[str, ...] = ()
    first_notes: tuple[str, ...] = ()
    last_notes: tuple[str, ...] = ()

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """Of all temperatures; the titles of several name theirs."""
        if not self.temperatures:
            return self.columns
        return tuple(
            column.model_copy(
                update={
                    "title": f"T={temperature:g} {column.title}" if len(self.temperatures) > 1 else column.title,
                    "temperature": temperature,
                }
            )
            for temperature in self.temperatures
            for column in self.columns
        )


class Contents(_Data):
    """What the report of a suite holds.

    Args:
        sheets: names of printed tables and of functions (``registry.sheet``).
        figures: names of functions (``registry.figure``).
        roles: what a role's cells are, where the suite does not say.
    """

    sheets: Names = ()
    figures: Names = ()
    roles: dict[str, dict[str, Any]] = {}


class Paper(_Data):
    """A paper's tables.

    Args:
        title, source: of the paper.
        heading: of its sheets.
        benchmarks: its tasks, which stand in for no other.
        alone: tasks that only tables of one of them show.
        published: options of a method as the paper runs it.
        models: presets by their printed names.
        names: what a printed name stands for, as in ``Layout.rows``.
        notes: of every table.
        remarks: whether a remark on printed rows names them.
        columns, decodings: shared parts, for YAML's anchors.
        reports: by name.
    """

    title: str
    source: str
    heading: str = ""
    benchmarks: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    published: dict[str, dict[str, Any]] = {}
    models: dict[str, str] = {}
    names: dict[str, dict[str, Any]] = {}
    notes: tuple[str, ...] = ()
    remarks: Literal["", "of rows"] = ""
    columns: Any = None
    decodings: Any = None
    tables: dict[str, Layout] = {}
    reports: dict[str, Contents] = {}

    def preset(self, model: str) -> str:
        """What is registered here for a model by any of its printed names.

        Raises:
            KeyError: the paper has no such model.
        """
        return {_plain(name): preset for name, preset in self.models.items()}[_plain(model)]

    def model_of(self, preset: str) -> str | None:
        """What the paper calls a preset; None: it does not have it."""
        return next((model for model, name in self.models.items() if name == preset), None)

    def named(self, name: str) -> dict[str, Any]:
        """What a printed name stands for, whatever its case.

        Raises:
            UnknownNameError: the paper's YAML does not explain it.
        """
        names = {key.lower(): values for key, values in self.names.items()}
        if name.lower() not in names:
            raise UnknownNameError("printed name", name, self.names)
        return names[name.lower()]


def _plain(model: str) -> str:
    return re.sub(r"[- ]|chat", "", model.lower())


@dataclass(frozen=True)
class Printed:
    """A table of a paper.

    Args:
        name: of its file.
        key: of the paper, the name of its YAML.
        rows: as printed, every value a text, "" where there is none.
    """

    name: str
    key: str
    paper: Paper
    layout: Layout
    rows: pd.DataFrame


@cache
def papers() -> Mapping[str, Paper]:
    """All papers, by the names of their files."""
    files = sorted(FOLDER.glob("*.yaml"))
    return {path.stem: Paper.model_validate(yaml.safe_load(path.read_text(encoding="utf-8"))) for path in files}


def printed(name: str) -> Printed:
    """A table by the name of its file.

    Raises:
        UnknownNameError: there is no such table.
    """
    for key, paper in papers().items():
        if name in paper.tables:
            rows = pd.read_csv(FOLDER / f"{name}.csv", dtype=str, keep_default_na=False)
            return Printed(name, key, paper, paper.tables[name], rows)
    raise UnknownNameError("printed table", name, names())


def names() -> list[str]:
    """All tables."""
    return [name for paper in papers().values() for name in paper.tables]


def reports() -> dict[str, Contents]:
    """All reports, by the names that suites give in ``report:``."""
    return {name: contents for paper in papers().values() for name, contents in paper.reports.items()}
