"""Reads the papers' files in ``reports/data/papers``: one CSV a printed table, and one YAML file a paper.

The classes are the schema of a YAML file: `Paper` is the file, `TableLayout` an entry of its ``tables``, `PaperChart`
one of its ``charts``, `Contents` one of its ``reports``. To add a table, add its CSV and an entry of the same name to
the paper's file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict

from stridebench.harness.errors import UnknownNameError
from stridebench.harness.plan.yaml_lines import load as load_yaml

if TYPE_CHECKING:
    import pandas as pd

STAND_IN = "tiny:"
"""Before the name of a model that a stand-in of random weights plays."""
SAME_MODEL = ("attn", "chat", "device_map", "forward", "template")
"""Parameters of a backbone's name that leave its weights and its guidance as they are."""


def model_name(backbone: str) -> str:
    """Return the name of the model that a backbone is, or that it stands for: ``tiny:m:chat=true`` is ``m``."""
    name, _, tail = backbone.removeprefix(STAND_IN).rpartition(":")
    if not name or "=" not in tail:
        return backbone.removeprefix(STAND_IN)
    kept = [pair for pair in tail.split(",") if pair.partition("=")[0] not in SAME_MODEL]
    return ":".join([name, ",".join(kept)] if kept else [name])


FOLDER = Path(__file__).parents[1] / "data" / "papers"


def _flat(values: Any) -> Any:
    """Flatten a list; YAML's anchors leave lists in lists."""
    if not isinstance(values, list):
        return values
    return [inner for value in values for inner in (_flat(value) if isinstance(value, list) else [value])]


class PaperData(BaseModel):
    """A part of a paper's files; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Quantity(PaperData):
    """A column of a table, printed and measured.

    Args:
        keys: of the summary; the first measured one is shown.
        measure: name of a function that formats it, in place of keys; see ``engine.MEASURES``.
        sides: "printed" and "measured", or one of them.
        factor: from the measured figure's scale to the printed one's.
    """

    title: str
    keys: tuple[str, ...] = ()
    digits: int = 2
    measure: str = ""
    sides: tuple[Literal["printed", "measured"], ...] = ("printed", "measured")
    temperature: float | None = None
    factor: float = 1.0

    def heading(self, side: str) -> str:
        """Return the heading of a side."""
        return f"{self.title}, {side}" if len(self.sides) > 1 else self.title


class ExtraRow(PaperData):
    """An additional row, which the paper does not print."""

    labels: tuple[str, ...]
    rows: dict[str, Any]


class Others(PaperData):
    """Cells that match no printed row.

    Args:
        also: labels of a line before theirs, by the key (of the summary) that it shows.
    """

    rows: dict[str, Any] = {}
    also: dict[str, tuple[str, ...]] = {}


def _others(values: Any) -> Any:
    return [value if "rows" in value else {"rows": value} for value in _flat(values)]


Names = Annotated[tuple[str, ...], BeforeValidator(_flat)]
Quantities = Annotated[tuple[Quantity, ...], BeforeValidator(_flat)]
Selections = Annotated[tuple[dict[str, Any], ...], BeforeValidator(_flat)]


class TableLayout(PaperData):
    """How a printed table is filled.

    ``{Column}`` in a text is replaced by the value of a printed row, ``{Column:g}`` by the number in it.

    Args:
        model: the model of all rows. "": rows name their models.
        heading: of a sheet; see ``engine.Scene.heading``.
        tasks: the paper's benchmark; none: those of the rows, or any.
        stand_in: whether a task of no paper stands in for the benchmark.
        sheet_by: columns of the summary; one sheet for each of their values.
        reference: preset whose rows are shown next to a backbone that the paper lacks. "": rows name models.
        labels: columns that name a row, printed ones unless there are ``texts``.
        rows: selection of a printed row: columns of the summary, options of the method, and ``named`` (a column whose
            value ``Paper.names`` explains), ``role`` (of the suite) or ``of`` (a model, as printed).
        lines: one entry for each line of a printed row. An entry has values for ``texts``, the printed column of each
            quantity, ``rows``, and ``key`` (of the summary) for the measure ``tokens``.
        if_measured: quantities of tasks of no paper, shown if the run has them.
        temperatures: every quantity has a column for each of them.
        others: labels of cells that match no row, from columns of the summary; none: these cells are left out.
        keep: titles in the order in which a narrow terminal keeps them; measured ones first if None.
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
    more: tuple[ExtraRow, ...] = ()
    others: tuple[str, ...] = ()
    other_rows: Annotated[tuple[Others, ...], BeforeValidator(_others)] = (Others(),)
    keep: tuple[str, ...] | Literal["in order"] | None = None
    drop_first: tuple[str, ...] = ()
    first_notes: tuple[str, ...] = ()
    last_notes: tuple[str, ...] = ()

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """Return the quantities of all temperatures; with several temperatures, titles name them."""
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


class XAxis(PaperData):
    """The x axis of a chart.

    Args:
        key: a column of the source, or of the summary, or an option of the chart's method.
        scale: "places" puts equal distances between the numbers, "names" between texts.
        zero: text of the value 0, which is drawn last; only for places.
    """

    key: str
    label: str = ""
    scale: Literal["linear", "whole", "log", "log2", "places", "names"] = "linear"
    zero: str = ""
    factor: float = 1.0
    ticks: bool = False
    rotate: int = 0


class ChartPanel(PaperData):
    """A panel of a chart.

    Args:
        keys: of the summary, of which the first measured one is drawn; "quality": the first of ``drawing.QUALITIES``;
            "qualities" is a panel for each measured one.
    """

    keys: tuple[str, ...]
    label: str = ""
    note: str = ""
    x: XAxis | None = None
    scale: Literal["linear", "log"] = "linear"
    limits: tuple[float | None, float | None] | None = None
    level: float | None = None
    ends: bool = False


def _panels(values: Any) -> Any:
    return [{"keys": [value]} if isinstance(value, str) else value for value in values]


class PrintedCurve(PaperData):
    """A paper's values on a chart.

    Args:
        key: the figure of the panel that they are drawn on.
        tables: names of printed tables by task; "default" is for the others.
        x: a column of the table; none: ``at``.
        label: ``{model}`` is the table's, ``{by}`` the value that the rows share.
    """

    key: str
    tables: dict[str, str]
    y: str
    label: str
    x: str = ""
    at: float = 0.0
    rows: dict[str, str] = {}
    by: str = ""


class PaperChart(PaperData):
    """A figure that ``charts.draw_chart`` draws for each group of cells.

    Args:
        panels: side by side; a text is the key of a panel.
        mark: how values are drawn; a key of ``charts.MARKS``.
        facets: a column of the source; one panel for each of its values.
        method: whose cells are drawn; for an ``x`` that is an option.
        published: whether its other options are as published, which gives one curve.
        lines: options that name a curve; without any, labels of cells do.
        missing: what an unmeasured panel leaves out: its content, the panel, or the figure.
    """

    title: str
    panels: Annotated[tuple[ChartPanel, ...], BeforeValidator(_panels)]
    x: XAxis = XAxis(key="line", scale="names")
    source: str = ""
    rows: dict[str, str] = {}
    mark: Literal["curves", "bands", "points", "bars", "ranges", "dots"] = "curves"
    facets: str = ""
    legend: Literal["below", "inside", "none"] = "below"
    method: str = ""
    published: bool = False
    line: str = "measured"
    lines: tuple[str, ...] = ()
    others: bool = False
    printed: tuple[PrintedCurve, ...] = ()
    least: int = 1
    missing: Literal["content", "panel", "figure"] = "content"


class SheetColumn(PaperData):
    """A column of a sheet: a figure of its source with its interval, a text, or a number in a format.

    One that is ``optional`` is left out if the source has no such figure.
    """

    title: str = ""
    key: str
    digits: int = 2
    format: str = ""
    optional: bool = False


class PaperSheet(PaperData):
    """A table without printed values, which ``charts.fill_sheet`` fills for each figure of its source.

    Args:
        title: of the table; ``{cells}`` are those of the figure.
        columns: one a figure; the key "qualities" is a column for each measured one.
    """

    title: str
    source: str
    columns: tuple[SheetColumn, ...]
    notes: tuple[str, ...] = ()
    labels: int = 1


class Contents(PaperData):
    """The contents of a suite's report.

    Args:
        sheets, figures: names of functions that make them, or of printed tables.
    """

    sheets: Names = ()
    figures: Names = ()
    roles: dict[str, dict[str, Any]] = {}


class Paper(PaperData):
    """A paper's tables.

    Args:
        benchmarks: its tasks, which stand in for no other task.
        names: selections by printed name, as in ``TableLayout.rows``.
        columns, decodings: shared parts, for YAML's anchors.
        tables, charts, sheets: by the name of their CSV, or those that reports give.
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
    columns: Any = None
    decodings: Any = None
    tables: dict[str, TableLayout] = {}
    charts: dict[str, PaperChart] = {}
    sheets: dict[str, PaperSheet] = {}
    reports: dict[str, Contents] = {}

    def preset(self, model: str) -> str:
        """Return the preset of a model by one of its printed names, or raise KeyError if the paper lacks the model."""
        return {_plain(name): preset for name, preset in self.models.items()}[_plain(model)]

    def model_of(self, preset: str) -> str | None:
        """Return the paper's name of a preset, or None if the paper lacks it."""
        return next((model for model, name in self.models.items() if name == model_name(preset)), None)

    def named(self, name: str) -> dict[str, object]:
        """Return the selection of a printed name; case is ignored."""
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
        rows: as printed; every value is a text, or "" if there is none.
    """

    name: str
    key: str
    paper: Paper
    layout: TableLayout
    rows: pd.DataFrame


@cache
def papers() -> Mapping[str, Paper]:
    """Read all papers, by the names of their files."""
    files = sorted(FOLDER.glob("*.yaml"))
    return {path.stem: Paper.model_validate(load_yaml(path.read_text(encoding="utf-8"))) for path in files}


def printed(name: str) -> Printed:
    """Read a table by the name of its file, or raise UnknownNameError if the table is unknown."""
    for key, paper in papers().items():
        if name in paper.tables:
            import pandas as pd  # `stride paper list` does not need it

            rows = pd.read_csv(FOLDER / f"{name}.csv", dtype=str, keep_default_na=False)
            return Printed(name, key, paper, paper.tables[name], rows)
    raise UnknownNameError("printed table", name, names())


def published(method: str) -> dict[str, object]:
    """Return the options of a method in its paper."""
    options = {name: options for paper in papers().values() for name, options in paper.published.items()}
    if method not in options:
        raise UnknownNameError("published method", method, options)
    return options[method]


def names() -> list[str]:
    """Return the names of all tables."""
    return [name for paper in papers().values() for name in paper.tables]


def reports() -> dict[str, Contents]:
    """Return all reports by the names that suites give in ``report:``."""
    return {name: contents for paper in papers().values() for name, contents in paper.reports.items()}
