"""The views that a query reads, with every column and its meaning.

Columns of samples and steps are those of the stored tables. Their meaning is the docstring of `Sample` and of `Step`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import getdoc
from typing import Any

import pandas as pd
import pyarrow as pa

from stridebench.harness.errors import printable_line
from stridebench.harness.record.columns import Sample, Step
from stridebench.harness.record.entries import CellMeta
from stridebench.harness.record.metrics import METRICS
from stridebench.harness.record.requests import REQUESTS, Request
from stridebench.harness.record.rows import SAMPLES, STEPS
from stridebench.harness.record.store import Store
from stridebench.reports.finished_cell import reader
from stridebench.reports.summary import INTERVALS, PLAIN, summarise
from stridebench.reports.text_table import column_texts

SQL_TYPES = {pa.string(): "VARCHAR", pa.int64(): "BIGINT", pa.float64(): "DOUBLE", pa.bool_(): "BOOLEAN"}
ARROW = {sql: kind for kind, sql in SQL_TYPES.items()}


@dataclass(frozen=True)
class ViewColumn:
    """A column of a view: its name, its type in Arrow, and its meaning with its unit."""

    name: str
    kind: pa.DataType
    meaning: str

    @property
    def sql_type(self) -> str:
        """The type as SQL writes it."""
        if pa.types.is_list(self.kind):
            return f"{SQL_TYPES[self.kind.value_type]}[]"
        return SQL_TYPES[self.kind]


@dataclass(frozen=True)
class View:
    """A view: its name, the meaning of a row, and its columns."""

    name: str
    row: str
    columns: tuple[ViewColumn, ...]


def _columns(view: str) -> Iterator[ViewColumn]:
    """Yield the columns of a section of `data/columns.yaml`."""
    for name, (kind, meaning) in column_texts()[view].items():
        if kind == "METRICS":
            yield from (column for metric in INTERVALS for column in _estimate(metric, _metric(metric)))
            yield from (ViewColumn(metric, ARROW["DOUBLE"], _metric(metric)) for metric in PLAIN)
        elif kind == "ESTIMATE":
            yield from _estimate(name, meaning)
        else:
            yield ViewColumn(name, ARROW[kind], meaning)


def _estimate(name: str, meaning: str) -> Iterator[ViewColumn]:
    yield ViewColumn(name, ARROW["DOUBLE"], meaning)
    low = f"lower bound of the 95 % interval of {name}; null: too few prompts"
    yield ViewColumn(f"{name}_low", ARROW["DOUBLE"], low)
    yield ViewColumn(f"{name}_high", ARROW["DOUBLE"], f"upper bound of the 95 % interval of {name}")
    yield ViewColumn(f"{name}_n", ARROW["BIGINT"], f"prompts behind {name}")


def _metric(name: str) -> str:
    metric = METRICS[name]
    return f"{metric.formula}, {metric.unit}" if metric.unit else metric.formula


FACTS = tuple(_columns("facts"))
"""Columns with which every view but ``runs`` begins."""


def _meanings(kind: type) -> dict[str, str]:
    """Return the docstring of each field of a record, in one line each."""
    arguments = (getdoc(kind) or "").partition("Args:\n")[2]
    entries = re.findall(r"^    (\w+): (.*(?:\n     +.*)*)", arguments, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def _stored(schema: pa.Schema, kind: type, **more: str) -> Iterator[ViewColumn]:
    meanings = _meanings(kind) | more
    known = {column.name for column in FACTS}
    return (
        ViewColumn(field.name, field.type, meanings.get(field.name, "")) for field in schema if field.name not in known
    )


_OF_SAMPLE = _meanings(Sample)
_KEY = {name: _OF_SAMPLE.get(name, "") for name in ("prompt", "repetition", "warmup")}
VIEWS = {
    view.name: view
    for view in (
        View("runs", "a run", (FACTS[0], *_columns("runs"))),
        View("cells", "a planned cell of a run, with the figures of `stride report`", (*FACTS, *_columns("cells"))),
        View("cell_scores", "a score of a finished cell", (*FACTS, *_columns("cell_scores"))),
        View(
            "samples",
            "a decoded prompt of a finished cell",
            (*FACTS, *_stored(SAMPLES, Sample, sha256="SHA-256 of the output ids")),
        ),
        View("scores", "a score of one output, warm-ups left out", (*FACTS, *_columns("scores"))),
        View(
            "steps",
            "a step of a decode",
            (*FACTS, *_stored(STEPS, Step, **_KEY, step="number of the step in its decode, from 0")),
        ),
        View(
            "requests",
            "a request to an engine; empty if no cell of the runs is an engine's",
            (*FACTS, *_stored(REQUESTS, Request)),
        ),
    )
}
"""All views, by name."""


# The rows of the views, as Arrow tables made from runs.
# Rows of samples, steps and requests carry the number of their cell, which `cell_facts` has once. So a million steps
# hold no text of their cell.


CELL_NUMBER = "cell_number"
"""The column that joins rows to the facts of their cell."""


@dataclass(frozen=True)
class NamedRun:
    """A run and the name by which it was asked for."""

    name: str
    store: Store

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row a planned cell, as `stride report` shows it."""
        return summarise(self.store, reader(self.store))


@dataclass(frozen=True)
class CellOfRun:
    """A planned cell; its ``number`` is its place among the cells of all runs."""

    number: int
    run: NamedRun
    name: str

    @property
    def sealed(self) -> bool:
        """Whether the cell has tables."""
        return self.run.store.sealed(self.name)

    def facts(self) -> dict[str, object]:
        """The values of ``FACTS``."""
        planned = self.run.store.manifest.cells[self.name]
        return facts_of(self.run, self.name, self.run.store.meta(self.name) if self.sealed else planned)


def facts_of(run: NamedRun, name: str, meta: CellMeta) -> dict[str, object]:
    """Return the values of ``FACTS`` of a cell of a method, or of an engine, whose name is its method."""
    texts = ("role", "backbone", "dtype", "task")
    method = meta.method or meta.engine
    return {
        "run": run.name,
        "cell": name,
        "label": printable_line(meta.label or method or name),
        "method": printable_line(method) if method else None,
        **{word: printable_line(getattr(meta, word)) or None for word in texts},
        "temperature": meta.sampling.temperature,
    }


def cells_of(runs: Iterable[NamedRun]) -> list[CellOfRun]:
    """Return the planned cells of all runs, numbered."""
    pairs = [(run, name) for run in runs for name in run.store.manifest.cells]
    return [CellOfRun(number, run, name) for number, (run, name) in enumerate(pairs)]


def cell_facts(cells: Sequence[CellOfRun]) -> pa.Table:
    """Return one row a cell: its number and ``FACTS``."""
    facts = [cell.facts() for cell in cells]
    columns = {CELL_NUMBER: pa.array([cell.number for cell in cells], pa.int32())}
    return pa.table(columns | {column.name: _array((row[column.name] for row in facts), column) for column in FACTS})


def runs_rows(runs: Sequence[NamedRun]) -> pa.Table:
    """Return the rows of the view ``runs``."""
    return _table("runs", [_run_row(run) for run in runs])


def _run_row(run: NamedRun) -> dict[str, object]:
    store, manifest = run.store, run.store.manifest
    provenance = manifest.provenance
    sealed = store.cells()
    skipped = sum(store.meta(name).status == "skipped" for name in sealed)
    skipped += sum(meta.status == "skipped" for name, meta in manifest.cells.items() if name not in set(sealed))
    planned = len(manifest.cells)
    done = sum(store.meta(name).status == "done" for name in sealed)
    return {
        "run": run.name,
        "created": manifest.created,
        "suite": manifest.suite.name,
        "machine": provenance.fingerprint,
        "commit": (provenance.git or {}).get("commit"),
        "schema": manifest.version,
        "cells": planned,
        "done": done,
        "skipped": skipped,
        "unfinished": planned - done - skipped,
    }


def cells_rows(runs: Sequence[NamedRun]) -> pa.Table:
    """Return the rows of the view ``cells``."""
    rows = [{**row, "run": run.name} for run in runs for row in run.summary.to_dict("records")]
    return _table("cells", [{str(key): value for key, value in row.items()} for row in rows])


def cell_scores_rows(runs: Sequence[NamedRun]) -> pa.Table:
    """Return the rows of the view ``cell_scores``."""
    return _table("cell_scores", [score for run in runs for score in _scores_of_cells(run)])


def _scores_of_cells(run: NamedRun) -> Iterator[dict[str, object]]:
    frame = run.summary
    names = [str(name) for name in frame if str(name).startswith(("score.", "set.")) and f"{name}_low" in frame]
    for row in frame.to_dict("records"):
        for column in (name for name in names if pd.notna(row[name])):
            kind, _, name = column.partition(".")
            figures = {"value": row[column], **{end: row[f"{column}_{end}"] for end in ("low", "high", "n")}}
            yield (
                {**{str(key): value for key, value in row.items()}, "run": run.name}
                | {"kind": kind, "name": name}
                | figures
            )


def stored_rows(cells: Sequence[CellOfRun], file: str, columns: Sequence[ViewColumn]) -> pa.Table:
    """Return the rows of a table of all cells, with the number of their cell; absent columns are null.

    Args:
        cells: planned cells; those that are not finished give none.
        columns: of the view, without those of ``FACTS``.
    """
    schema = pa.schema([(CELL_NUMBER, pa.int32()), *((column.name, column.kind) for column in columns)])
    tables = [schema.empty_table()]
    for cell in cells:
        table = cell.run.store.arrow(cell.name, file) if cell.sealed else None
        if table is not None and table.num_rows:
            tables.append(_numbered(table, cell.number, schema))
    return pa.concat_tables(tables)


def _numbered(table: pa.Table, number: int, schema: pa.Schema) -> pa.Table:
    rows = table.num_rows
    arrays = [pa.repeat(pa.scalar(number, pa.int32()), rows)]
    for field in list(schema)[1:]:
        stored = field.name in table.column_names
        arrays.append(table.column(field.name).cast(field.type) if stored else pa.nulls(rows, field.type))
    return pa.table(arrays, schema=schema)


def requests_rows(runs: Sequence[NamedRun]) -> pa.Table:
    """Return the rows of the view ``requests``: those of finished cells of engines."""
    rows = []
    for run in runs:
        for name in run.store.engine_cells():
            cell = run.store.cell(name)
            facts = facts_of(run, name, cell.meta)
            for request in cell.requests.to_dict("records"):
                rows.append({**{str(key): value for key, value in request.items()}, **facts})
    return _table("requests", rows)


def scores_rows(samples: pa.Table) -> pa.Table:
    """Return one row a score of an output."""
    names = (CELL_NUMBER, "prompt", "repetition", "warmup", "scores")
    rows = []
    for number, prompt, repetition, warmup, text in zip(*(samples[name].to_pylist() for name in names), strict=True):
        for name, value in (json.loads(text) if text and not warmup else {}).items():
            rows.append((number, prompt, repetition, name, value))
    kinds = (pa.int32(), pa.string(), pa.int64(), pa.string(), pa.float64())
    titles = (CELL_NUMBER, "prompt", "repetition", "name", "value")
    columns = zip(*rows, strict=True) if rows else [()] * len(titles)
    return pa.table({title: pa.array(values, kind) for title, values, kind in zip(titles, columns, kinds, strict=True)})


def _table(view: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return the rows as the view's columns; a value that a row lacks is null."""
    columns = VIEWS[view].columns
    arrays = [_array((row.get(column.name) for row in rows), column) for column in columns]
    return pa.table(arrays, schema=pa.schema([(column.name, column.kind) for column in columns]))


def _array(values: Iterable[Any], column: ViewColumn) -> pa.Array:
    if pa.types.is_list(column.kind):
        return pa.array([None if value is None else list(value) for value in values], column.kind)
    convert: Callable[[Any], Any] = {
        pa.string(): str,
        pa.int64(): int,
        pa.float64(): float,
        pa.bool_(): bool,
    }[column.kind]
    plain = [
        None if value is None or (not isinstance(value, str) and pd.isna(value)) else convert(value) for value in values
    ]
    return pa.array(plain, column.kind)
