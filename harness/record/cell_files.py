"""The files of a cell: one record a decode while it runs, and the folder with its tables once it is sealed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
import pyarrow as pa

from stridebench.harness.errors import ContractError, StoreError
from stridebench.harness.record.columns import Record, Sample, check
from stridebench.harness.record.entries import CellMeta, SealedBody
from stridebench.harness.record.files import SCHEMA, DamagedError, encode, load
from stridebench.harness.record.requests import REQUESTS, Request
from stridebench.harness.record.rows import SAMPLES, STEPS, TABLES, parquet, parquet_table, problem_of_rows
from stridebench.harness.record.run_notes import read_entries

CELL_NAME = re.compile(r"[\w=+,@-][\w=+,@.-]{0,199}", re.ASCII)


@dataclass(frozen=True)
class SealedCell:
    """A sealed cell: the facts about it, and its tables; those of the other kind of cells are empty.

    Args:
        samples: of a method (columns ``SAMPLES``).
        steps: of a method (columns ``STEPS``).
        requests: of an engine (columns ``REQUESTS``).
    """

    name: str
    meta: CellMeta
    samples: pd.DataFrame
    steps: pd.DataFrame
    requests: pd.DataFrame


def files_of_cell(cell: str, tables: Mapping[str, pa.Table], meta: CellMeta) -> dict[str, bytes]:
    """Return the files of a sealed cell: its tables, and cell.json with their hashes."""
    files = {name: parquet(table) for name, table in tables.items()}
    body = {
        "schema": SCHEMA,
        "cell": cell,
        "counts": {name.partition(".")[0]: table.num_rows for name, table in tables.items()},
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
        "meta": meta.stored(),
    }
    return {**files, "cell.json": encode(body, indent=1)}


@dataclass(frozen=True)
class SealedFolder:
    """Reads the folder of a sealed cell, which has its id as name; whatever is damaged raises DamagedError."""

    path: Path

    def body(self) -> SealedBody:
        """Return the content of cell.json."""
        path = self.path / "cell.json"
        body = read_entries(SealedBody, path, self._remedy)
        if set(body.files) != set(TABLES[self.path.parent.name]):
            raise DamagedError(f"{path} names the files {body.files!r:.80}. {self._remedy}")
        return body

    def cell(self) -> SealedCell:
        """Read all tables; every byte is checked."""
        body = self.body()
        tables = {file: self._table(file, digest) for file, digest in body.files.items()}
        samples, steps, requests = (
            tables.get(f"{kind}.parquet", schema.empty_table()).to_pandas(use_threads=False)
            for kind, schema in (("samples", SAMPLES), ("steps", STEPS), ("requests", REQUESTS))
        )
        samples["diverged_at"] = samples["diverged_at"].astype("Int64")
        return SealedCell(self.path.name, body.meta, samples, steps, requests)

    def arrow(self, file: str) -> pa.Table | None:
        """Return a table as it is stored, or None if the cell lacks it."""
        digest = self.body().files.get(file)
        return None if digest is None else self._table(file, digest)

    def changed(self, changes: CellMeta) -> bytes:
        """Return cell.json with these facts set."""
        sealed = self.body()
        body = sealed.stored() | {"meta": CellMeta.merged(sealed.meta, changes).stored()}
        del body["sha256"]
        return encode(body, indent=1)

    def _table(self, file: str, digest: str) -> pa.Table:
        path = self.path / file
        data = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(data).hexdigest() != digest:
            raise DamagedError(f"{path} is damaged: its sha256 is not the one in cell.json. {self._remedy}")
        try:
            table = parquet_table(data)
        except (pa.ArrowException, OSError) as error:
            raise DamagedError(f"{path} is no table: {error}. {self._remedy}") from error
        if problem := problem_of_rows(table, file, TABLES[self.path.parent.name][file]):
            raise DamagedError(f"{path} {problem}. {self._remedy}")
        return table

    @property
    def _remedy(self) -> str:
        return f"Restore {self.path} from a copy, or delete that folder and run again with --resume."


def refuse_bad_names(cells: Iterable[str]) -> None:
    """Raise ContractError for ids that do not serve as folders' names on every file system."""
    ids: dict[str, str] = {}
    for cell in cells:
        if not CELL_NAME.fullmatch(cell) or ids.setdefault(cell.casefold(), cell) != cell:
            raise ContractError(
                f"the cell id {cell!r} does not serve as a folder's name: use at most 200 of the characters "
                f"A-Z a-z 0-9 _ = + , @ . - with no dot in front, unlike every other id in more than case."
            )


def record_name(sample: Sample | Request) -> str:
    """A readable prefix and a hash, which is unique also where case, length or Unicode forms are not distinguished."""
    prompt_hash = hashlib.sha256(sample.prompt.encode()).hexdigest()[:16]
    warmup = "-warmup" if sample.warmup else ""
    return f"{quote(sample.prompt, safe='')[:80]}-{prompt_hash}--{sample.repetition}{warmup}.json"


def check_record(cell: str, record: Record) -> None:
    """Raise ContractError if a decode that ended well breaks an identity of `columns.check`."""
    sample = record.sample
    if sample.status != "ok":
        return
    try:
        check(record.steps, len(sample.tokens))
    except ContractError as error:
        raise ContractError(
            f"cell {cell!r}, prompt {sample.prompt!r}, repetition {sample.repetition}: {error}"
        ) from error


def read_record(path: Path) -> Record:
    """Return a stored decode; raise DamagedError if it is damaged, StoreError if it is of another version."""
    body = load(path, "Run again with --resume: it is set aside, and that decode is done again.")
    try:
        payload: Any = body["payload"]
        return Record.of(payload)
    except (KeyError, TypeError) as error:
        raise StoreError(
            f"{path} was written by another version: {error}. Use that version, or run in another folder."
        ) from error
