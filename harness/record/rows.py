"""The tables of a cell: their columns in Arrow's types, and checks of their rows when they are read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import ConfigDict, TypeAdapter, ValidationError

from stridebench.harness.record.columns import CONSUMPTION, STARTS, Record, Sample, Step
from stridebench.harness.record.requests import REQUESTS, Request

_TEXT, _INT, _REAL = pa.string(), pa.int64(), pa.float64()
SAMPLE_KEY = {"prompt": _TEXT, "repetition": _INT, "warmup": pa.bool_()}
SAMPLES = pa.schema(
    SAMPLE_KEY
    | {
        "status": _TEXT,
        "error": _TEXT,
        "category": _TEXT,
        "cluster": _TEXT,
        "prompt_tokens": _INT,
        "tokens": pa.list_(_INT),
    }
    | {
        "text": _TEXT,
        "prefill_ns": _INT,
        "logprobs": pa.list_(_REAL),
        "agreement": _REAL,
        "diverged_at": _INT,
    }
    | {"margin": _REAL, "scores": _TEXT, "open_ns": _INT, "output": _TEXT, "regions": pa.list_(_TEXT)}
    | {
        "stages": _TEXT,
        "leading": pa.list_(_REAL),
        "prompt_text": _TEXT,
        "pieces": pa.list_(_TEXT),
        "unread": _TEXT,
        "audit": _TEXT,
        "drafter": _TEXT,
        "sha256": _TEXT,
    }
    | dict.fromkeys((*STARTS, "completion", *CONSUMPTION), _INT)
)
_KINDS = {
    "float": _REAL,
    "float | None": _REAL,
    "tuple[int, ...]": pa.list_(_INT),
    "tuple[float, ...]": pa.list_(_REAL),
}
_STEP = {f.name: _KINDS.get(str(f.type), _INT) for f in fields(Step)}
STEPS = pa.schema(SAMPLE_KEY | {"step": _INT} | _STEP)


TABLES: Mapping[str, Mapping[str, pa.Schema]] = {
    "cells": {"samples.parquet": SAMPLES, "steps.parquet": STEPS},
    "engines": {"requests.parquet": REQUESTS},
}
"""The tables of a cell of a method, and of an engine, by the folder of such cells."""
_NULLABLE = {
    file: frozenset(field.name for field in fields(kind) if "None" in str(field.type))
    for file, kind in {"samples.parquet": Sample, "steps.parquet": Step, "requests.parquet": Request}.items()
}
"""Columns of each table that may hold nothing in a row."""
LATER = ("loss",)
"""Columns that older stores lack; nothing is known of them there."""
_UNIQUE = ("prompt", "repetition", "warmup", "step")
"""Columns that no two rows of a table share."""
_WORDS = {"status": pa.array(["ok", "failed"])}
"""Columns of a few words."""
_MOST = {"accepted": 100_000}
"""Counts that no run reaches; acceptance is told at each depth up to the largest."""
_JSON = ("scores", "stages")
"""Columns whose texts are JSON objects of numbers."""


_NUMBERS: TypeAdapter[Any] = TypeAdapter(dict[str, float | None], config=ConfigDict(strict=True))


def _utf8(text: str | None) -> str | None:
    """Escape lone surrogates: a file's name in an error may hold one, and a table cannot."""
    return text if text is None else text.encode("utf-8", "backslashreplace").decode()


def samples_table(records: Sequence[Record]) -> pa.Table:
    """Return a row a decode (columns ``SAMPLES``)."""
    rows = []
    for sample in (record.sample for record in records):
        row = asdict(sample)
        row |= {name: _utf8(row[name]) for name in ("text", "error", "prompt_text")}
        row["pieces"] = [_utf8(piece) for piece in sample.pieces]
        for name in ("scores", "stages", "audit", "drafter"):
            row[name] = json.dumps(row[name], sort_keys=True)
        row["sha256"] = hashlib.sha256(",".join(map(str, sample.tokens)).encode()).hexdigest()
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=SAMPLES)


def steps_table(records: Sequence[Record]) -> pa.Table:
    """Return a row a step (columns ``STEPS``)."""
    rows = [
        {name: getattr(record.sample, name) for name in SAMPLE_KEY} | {"step": index} | vars(step)
        for record in records
        for index, step in enumerate(record.steps)
    ]
    return pa.Table.from_pylist(rows, schema=STEPS)


def parquet(table: pa.Table) -> bytes:
    """Return a table as a parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def parquet_table(data: bytes) -> pa.Table:
    """Return the table of a parquet file.

    It is read by this thread alone, from Arrow's memory: a thread of Arrow's pool that releases bytes of Python while
    the interpreter ends aborts the process.

    Raises:
        ArrowException: the bytes are not a parquet file.
    """
    copy = pa.BufferOutputStream()
    copy.write(data)
    return pq.ParquetFile(pa.BufferReader(copy.getvalue())).read(use_threads=False)


def problem_of_rows(table: pa.Table, file: str, schema: pa.Schema) -> str | None:
    """Return the first problem of the columns of a cell's table, or None if they are valid.

    Args:
        schema: the types of its columns; a column that holds nothing may be of the type null.
    """
    columns = dict(zip(table.column_names, table.columns, strict=True))
    for name, kind in zip(schema.names, schema.types, strict=True):
        if name not in columns and name in LATER:
            continue
        if name not in columns:
            return f"lacks the column {name}"
        column = columns[name]
        if column.type != kind and not (pa.types.is_null(column.type) and (name in _NULLABLE[file] or not len(column))):
            return f"has the column {name} in the type {column.type} instead of {kind}"
        if name not in _NULLABLE[file] and column.null_count:
            return f"has a row without {name}"
        if fault := _problem_of_values(column, name):
            return f"has a row whose {name} {fault}"
    key = [name for name in _UNIQUE if name in columns]
    if table.num_rows > table.group_by(key).aggregate([]).num_rows:
        return f"has two rows of one {', '.join(key)}"
    return None


def _problem_of_values(column: pa.ChunkedArray, name: str) -> str | None:
    """Return the problem of the values of a column whose type is right, or None."""
    if pa.types.is_list(column.type) and pc.list_flatten(column).null_count:
        return "has a gap"
    if name in _WORDS and not pc.all(pc.is_in(column, _WORDS[name]), min_count=0).as_py():
        return f"is none of {', '.join(_WORDS[name].to_pylist())}"
    if pa.types.is_integer(column.type) and (pc.min(column).as_py() or 0) < 0:
        return "is negative"
    if name in _MOST and (pc.max(column).as_py() or 0) > _MOST[name]:
        return f"is over {_MOST[name]:,}"
    for text in pc.unique(column).to_pylist() if name in _JSON else ():
        try:
            _NUMBERS.validate_json(text or "{}")
        except ValidationError:
            return f"is {text!r:.80}, no JSON object of numbers"
    return None
