"""Types of the entries in a store's JSON files and tables, checked when they are read.

A checksum shows that a file was not altered. These checks show that it holds a run.
Entries that are not named here are free.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal, NotRequired

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from stridebench.harness.record.columns import Sample, Step

STRICT = ConfigDict(strict=True, extra="allow")
Count = Annotated[int, Field(ge=0, lt=2**63)]
Finite = Annotated[float, Field(allow_inf_nan=False)]

_NULLABLE = frozenset(field.name for kind in (Sample, Step) for field in fields(kind) if "None" in str(field.type))
"""Columns that may hold nothing in a row."""
_KEY = ("prompt", "repetition", "warmup", "step")
"""Columns that no two rows of a table share."""
_WORDS = {"status": pa.array(["ok", "failed"])}
"""Columns of a few words."""
_JSON = ("scores", "stages")
"""Columns whose texts are JSON objects of numbers."""


@with_config(STRICT)
class StoredSampling(TypedDict, total=False):
    """How a cell draws."""

    temperature: Annotated[Finite, Field(ge=0)]
    top_k: Count
    top_p: Finite


@with_config(STRICT)
class VerdictEntry(TypedDict, total=False):
    """The verdict of a cell's claim."""

    word: str | None
    total_variation: float | None
    note: str | None
    error: str | None


@with_config(STRICT)
class StoredSetScore(TypedDict):
    """A score of all outputs together."""

    value: float | None
    low: float | None
    high: float | None
    n: Count
    reason: str


@with_config(STRICT)
class GridEntry(TypedDict):
    """The grid of a backbone of pictures."""

    rows: Annotated[Count, Field(ge=1)]
    columns: Annotated[Count, Field(ge=1)]
    stride: Annotated[Count, Field(ge=1)]


@with_config(STRICT)
class Facts(TypedDict, total=False):
    """Facts about any cell."""

    method: str
    role: str
    baseline: str | None
    floor: str | None
    reason: str | None
    modality: str
    fingerprint: str | None
    params: dict[str, Any]
    sampling: StoredSampling
    verdict: VerdictEntry | None
    set_scores: dict[str, StoredSetScore] | None
    grid: GridEntry | None
    expected: Count
    batch: Annotated[Count, Field(ge=1)]
    branches: Annotated[Count, Field(ge=1)]
    max_new_tokens: Count
    vocabulary: Count | None


@with_config(STRICT)
class PlannedMeta(Facts, total=False):
    """A cell of the manifest."""

    status: str
    label: str
    backbone: str
    dtype: str
    task: str


@with_config(STRICT)
class SealedMeta(Facts):
    """A finished or skipped cell, with its label and setting."""

    status: Literal["done", "skipped"]
    label: str
    backbone: str
    dtype: str
    task: str


@with_config(STRICT)
class ReportEntry(TypedDict):
    """The report that a run ends with."""

    name: str
    roles: NotRequired[dict[str, dict[str, Any]] | None]


@with_config(STRICT)
class StoredSuite(TypedDict, total=False):
    """The suite of a run."""

    name: str
    report: ReportEntry | str | None


@with_config(STRICT)
class RunKey(TypedDict, total=False):
    """What two runs must share to be mixed."""

    tasks: list[dict[str, Any]]


@with_config(STRICT)
class Provenance(TypedDict, total=False):
    """The machine and versions of a run."""

    fingerprint: str | None


@with_config(STRICT)
class Manifest(TypedDict):
    """The manifest of a run: its cells, and the key that two runs must share."""

    created: str
    key: RunKey
    cells: dict[str, PlannedMeta]
    suite: NotRequired[StoredSuite | None]
    provenance: NotRequired[Provenance | None]
    vocabularies: NotRequired[dict[str, Count] | None]
    sizes: NotRequired[dict[str, Any] | None]


@with_config(STRICT)
class SealedBody(TypedDict):
    """The file of a sealed cell."""

    files: dict[str, str]
    meta: SealedMeta


@with_config(STRICT)
class Mark(TypedDict):
    """Why a cell that a worker process began is not started again."""

    reason: str
    runs: NotRequired[Annotated[Count, Field(ge=1)]]


MANIFEST: TypeAdapter[Any] = TypeAdapter(Manifest)
SEALED: TypeAdapter[Any] = TypeAdapter(SealedBody)
MARK: TypeAdapter[Any] = TypeAdapter(Mark)
_NUMBERS: TypeAdapter[Any] = TypeAdapter(dict[str, float | None], config=ConfigDict(strict=True))


def problem(body: Any, kind: TypeAdapter[Any]) -> str | None:
    """Return the first problem of a JSON body, or None if it is valid. ``kind``: MANIFEST, SEALED or MARK."""
    try:
        kind.validate_python(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        if first["type"] == "missing":
            return f"lacks the entry {where:.120}"
        return f"has {where:.120} {first['input']!r:.80}: {first['msg']}"
    except RecursionError:
        return "is nested too deep"
    return None


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


def problem_of_rows(table: pa.Table, schema: pa.Schema) -> str | None:
    """Return the first problem of the columns of a cell's table, or None if they are valid.

    Args:
        table: as read.
        schema: the types of its columns; a column that holds nothing may be of the type null.
    """
    for name in schema.names:
        if name not in table.column_names:
            return f"lacks the column {name}"
        column, kind = table.column(name), schema.field(name).type
        if column.type != kind and not (pa.types.is_null(column.type) and (name in _NULLABLE or not len(column))):
            return f"has the column {name} in the type {column.type} instead of {kind}"
        if name not in _NULLABLE and column.null_count:
            return f"has a row without {name}"
        if fault := _problem_of_values(column, name):
            return f"has a row whose {name} {fault}"
    key = [name for name in _KEY if name in table.column_names]
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
    for text in pc.unique(column).to_pylist() if name in _JSON else ():
        try:
            _NUMBERS.validate_json(text or "{}")
        except ValidationError:
            return f"is {text!r:.80}, no JSON object of numbers"
    return None
