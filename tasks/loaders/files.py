"""Finds and reads files of public benchmarks. Every error names the line."""

from __future__ import annotations

import csv
import importlib
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stridebench.harness.errors import DataMissing, UsageError

Row = Mapping[str, Any]
PACKED = (".gz", ".zst")
LONGEST_FIELD = 2**26
"""Characters of a field of a comma-separated table: prompts are longer than the 131,072 that Python allows at first."""


@dataclass(frozen=True)
class Where:
    """A place in a file: the number of a line, row or entry (``unit``), counted from 1."""

    path: Path
    number: int
    unit: str = "line"

    def fault(self, what: str) -> UsageError:
        """Return the error of a malformed line. Lines are written FILE:LINE, as editors expect."""
        place = f"{self.path}:{self.number}" if self.unit == "line" else f"{self.path}, {self.unit} {self.number}"
        return UsageError(f"{place}: {what}. Mend that {self.unit}, or replace the file by the published one")


def locate(path: str, name: str) -> Path:
    """Return the given path of a data file or folder, else ``name`` in the data folder ($STRIDE_CACHE/data)."""
    if path:
        return Path(path).expanduser()
    return Path(os.environ.get("STRIDE_CACHE") or Path.home() / ".cache" / "stridebench") / "data" / name


def read(path: Path, what: str, origin: str) -> str:
    """Read the text of a file, which may end in .gz or .zst, in UTF-8 or, with a byte order mark, UTF-16.

    Raises:
        UsageError: the file is missing, empty or not UTF-8; the message says who publishes it and its place.
    """
    try:
        raw = path.read_bytes() if path.suffix not in PACKED else _unpacked(path)
        text = raw.decode("utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UsageError(f"{what}: {path} is not UTF-8 (line {line}: {error}); save it as UTF-8") from error
    except OSError as error:
        raise missing(path, what, origin, error) from error
    if not text.strip():
        raise UsageError(f"{path} is empty. It should be {what}, from {origin}")
    return text


def _unpacked(path: Path) -> bytes:
    from pyarrow import input_stream

    with input_stream(str(path), compression="detect") as stream:
        content: bytes = stream.read()
    return content


def missing(path: Path, what: str, origin: str, error: Exception | None = None) -> UsageError:
    """Return the error of data that cannot be read."""
    absent = error is None or isinstance(error, FileNotFoundError)
    why = "is not there" if absent else f"cannot be read ({error})"
    return (DataMissing if absent else UsageError)(
        f"{what}: {path} {why}. It comes from {origin}; put it there, or give its place as a parameter of the task"
    )


def lines(path: Path, what: str, origin: str) -> list[tuple[Where, str]]:
    """Read the lines that are not blank, stripped, each with its place."""
    numbered = enumerate(read(path, what, origin).split("\n"), 1)
    return [(Where(path, number), line.strip()) for number, line in numbered if line.strip()]


def json_lines(path: Path, what: str, origin: str, kinds: tuple[type, ...] = (dict,)) -> list[tuple[Where, Any]]:
    """Read the objects of a JSON-lines file, each with its place; or values of other ``kinds``."""
    return [(where, _object(line, where, kinds)) for where, line in lines(path, what, origin)]


def json_file(path: Path, what: str, origin: str) -> Any:
    """Read the content of a JSON file."""
    try:
        return json.loads(read(path, what, origin))
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
        raise Where(path, line).fault(f"not JSON: {_first(error)}") from error


def table(path: Path, what: str, origin: str, delimiter: str) -> list[tuple[Where, Row]]:
    """Read the rows of a table with a header as dictionaries, each with the line that it begins on.

    Quotation marks are read in a comma-separated table only.

    Raises:
        UsageError: see `read`; or the header names a field twice, a row has more or fewer fields than the header, or
            a quotation mark is never closed.
    """
    text = io.StringIO(read(path, what, origin))
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_FIELD))
    if delimiter == "\t":
        reader = csv.reader(text, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(text, delimiter=delimiter, strict=True)
    out: list[tuple[Where, Row]] = []
    begin = 1
    try:
        header = next(reader)
        if twice := sorted({name for name in header if header.count(name) > 1}):
            raise Where(path, begin).fault(f"the header names {twice[0]!r} twice")
        while True:
            begin = reader.line_num + 1
            row = next(reader, None)
            if row is None:
                return out
            if row:
                where = Where(path, begin)
                if len(row) != len(header):
                    raise where.fault(
                        f"{len(row)} field{'' if len(row) == 1 else 's'}, and the header has {len(header)}"
                    )
                out.append((where, dict(zip(header, row, strict=True))))
    except csv.Error as error:
        unclosed = "a quotation mark is opened and never closed" if "end of data" in str(error) else str(error)
        raise Where(path, begin).fault(f"not a table: {unclosed}") from error


def parquet(path: Path, what: str, origin: str) -> list[tuple[Where, Row]]:
    """Read the rows of a parquet file, or raise UsageError if the file is missing or not parquet."""
    from pyarrow import ArrowException
    from pyarrow.parquet import read_table

    try:
        rows = read_table(path, use_threads=False, pre_buffer=False).to_pylist()
    except (OSError, ArrowException) as error:
        raise missing(path, what, origin, error) from error
    return [(Where(path, number, "row"), row) for number, row in enumerate(rows, 1)]


def hub_rows(identity: str, split: str, **options: Any) -> list[tuple[Where, Row]]:
    """Read the rows of a data set of the hub, with the library `datasets`.

    Args:
        identity: ID or ID@REVISION.

    Raises:
        UsageError: the library is not installed, or the data set cannot be loaded.
    """
    try:
        library: Any = importlib.import_module("datasets")
    except ImportError as error:
        raise UsageError(
            f"hub is {identity!r}, and the library datasets cannot be imported ({error}). "
            f"Install it (pip install datasets), or give a local file instead"
        ) from error
    try:
        name, _, revision = identity.partition("@")
        arguments = {key: value for key, value in {**options, "revision": revision}.items() if value}
        rows = library.load_dataset(name, split=split, **arguments)
    except Exception as error:  # the library raises many kinds: no network, no such name, no such split
        raise UsageError(f"the hub data set {identity!r}, split {split!r}, cannot be had: {error}") from error
    return [(Where(Path(identity), number, "row"), row) for number, row in enumerate(rows, 1)]


def text_of(row: Row, key: str, where: Where) -> str:
    """Return a field that must be a text which is not blank, stripped."""
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise where.fault(f"{key} is {value!r}, not a text; found the fields {field_names(row)}")
    return value.strip()


def _unique(pairs: list[tuple[str, Any]]) -> Row:
    """Return a JSON object; raise ValueError if it has a key twice."""
    entry = dict(pairs)
    if len(entry) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} is there twice")
    return entry


def _object(line: str, where: Where, kinds: tuple[type, ...] = (dict,)) -> Any:
    try:
        entry = json.loads(line, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise where.fault(f"not JSON: {_first(error)}") from error
    if not isinstance(entry, kinds):
        raise where.fault(f"a JSON object is expected; found {type(entry).__name__}")
    return entry


def _first(error: Exception) -> str:
    """Return the fault without its place, which in a file of one line says nothing."""
    return error.msg if isinstance(error, json.JSONDecodeError) else str(error).split(";")[0]


def field_names(row: Iterable[str]) -> str:
    """Return the first names of the fields of a row, for messages."""
    names: Sequence[str] = sorted(map(str, row))
    return ", ".join(names[:8]) or "none"
