"""The rows of the views, as Arrow tables made from runs.

Rows of samples, steps and requests carry the number of their cell, which `cell_facts` has once. So a million steps hold
no text of their cell.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa

from stridebench.harness.errors import printable_line
from stridebench.harness.record.request_store import RequestStore
from stridebench.reports.query.schema import FACTS, VIEWS, ViewColumn
from stridebench.reports.summary import reader, summarise

if TYPE_CHECKING:
    from stridebench.harness.record.store import Store

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

    def facts(self) -> dict[str, Any]:
        """The values of ``FACTS``."""
        planned = self.run.store.manifest["cells"][self.name]
        return facts_of(self.run, self.name, self.run.store.meta(self.name) if self.sealed else planned)


def facts_of(run: NamedRun, name: str, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of ``FACTS`` of a cell of a method, or of an engine, whose name is its method."""
    texts = ("role", "backbone", "dtype", "task")
    method = meta.get("method") or meta.get("engine")
    return {
        "run": run.name,
        "cell": name,
        "label": printable_line(str(meta.get("label") or method or name)),
        "method": None if method is None else printable_line(str(method)),
        **{word: None if meta.get(word) is None else printable_line(str(meta[word])) for word in texts},
        "temperature": float((meta.get("sampling") or {}).get("temperature") or meta.get("temperature") or 0.0),
    }


def cells_of(runs: Iterable[NamedRun]) -> list[CellOfRun]:
    """Return the planned cells of all runs, numbered."""
    pairs = [(run, name) for run in runs for name in run.store.manifest["cells"]]
    return [CellOfRun(number, run, name) for number, (run, name) in enumerate(pairs)]


def cell_facts(cells: Sequence[CellOfRun]) -> pa.Table:
    """Return one row a cell: its number and ``FACTS``."""
    facts = [cell.facts() for cell in cells]
    columns = {CELL_NUMBER: pa.array([cell.number for cell in cells], pa.int32())}
    return pa.table(columns | {column.name: _array((row[column.name] for row in facts), column) for column in FACTS})


def runs_rows(runs: Sequence[NamedRun]) -> pa.Table:
    """Return the rows of the view ``runs``."""
    return _table("runs", [_run_row(run) for run in runs])


def _run_row(run: NamedRun) -> dict[str, Any]:
    store, manifest = run.store, run.store.manifest
    provenance = manifest.get("provenance") or {}
    sealed = store.cells()
    skipped = sum(store.meta(name).get("status") == "skipped" for name in sealed)
    skipped += sum(
        meta.get("status") == "skipped" for name, meta in manifest["cells"].items() if name not in set(sealed)
    )
    planned = len(manifest["cells"])
    done = sum(store.meta(name).get("status") == "done" for name in sealed)
    return {
        "run": run.name,
        "created": manifest["created"],
        "suite": (manifest.get("suite") or {}).get("name"),
        "machine": provenance.get("fingerprint"),
        "commit": (provenance.get("git") or {}).get("commit"),
        "schema": int(manifest["schema"]),
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


def _scores_of_cells(run: NamedRun) -> Iterator[dict[str, Any]]:
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
        cells: planned cells; those that are not finished have no rows.
        file: of a cell, such as steps.parquet.
        columns: of the view, without those of ``FACTS``.

    Raises:
        StoreError: a table is damaged.
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
    """Return the rows of the view ``requests``: those of finished cells of engines.

    Raises:
        StoreError: a table is damaged.
    """
    rows = []
    for run in runs:
        store = RequestStore.of(run.store.path, run.store.manifest)
        for name in store.cells():
            cell = store.cell(name)
            facts = facts_of(run, name, cell.meta)
            for request in cell.requests.to_dict("records"):
                rows.append({**{str(key): value for key, value in request.items()}, **facts})
    return _table("requests", rows)


def scores_rows(samples: pa.Table) -> pa.Table:
    """Return one row a score of an output.

    Args:
        samples: ``stored_rows`` of samples.parquet.
    """
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
    """Return the rows as the view's columns; what a row lacks is null."""
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
