"""The cells of engines in a run folder. A run that is killed resumes and repeats nothing.

    RUN/requests/CELL/PROMPT-HASH--REP.json  one finished request each
    RUN/engines/CELL/                        a sealed cell: requests.parquet and cell.json

Files and folders get their names when they are complete, as in `harness.record.store`, whose manifest and lock hold for
these cells too.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

import pandas as pd
import pyarrow as pa

from stridebench.harness.errors import RunIncomplete, StoreError, UnknownNameError
from stridebench.harness.record.entries import CellMeta, EngineBody, Manifest
from stridebench.harness.record.files import (
    PARTIAL,
    SCHEMA,
    DamagedError,
    drop,
    encode,
    is_abandoned,
    load,
    make,
    put,
    put_folder,
)
from stridebench.harness.record.requests import REQUESTS, Request, table
from stridebench.harness.record.rows import parquet, parquet_table

FILE = "requests.parquet"


@dataclass(frozen=True)
class SealedEngineCell:
    """A sealed cell of an engine: its facts, and its requests (columns ``REQUESTS``)."""

    name: str
    meta: CellMeta
    requests: pd.DataFrame


@dataclass(frozen=True)
class RequestStore:
    """The engines' cells of a run folder.

    Args:
        path: the run folder.
        planned: the facts of each cell, as the manifest has them.
    """

    path: Path
    planned: Mapping[str, CellMeta]

    @classmethod
    def of(cls, path: Path, manifest: Manifest) -> RequestStore:
        """The cells of a run that is open (`stridebench.harness.record.store.Store`)."""
        return cls(path, manifest.engines)

    def clear(self) -> None:
        """Remove unfinished files of a run that was killed."""
        for pattern in ("engines/*", "engines/*/*", "requests/*/*"):
            for path in filter(is_abandoned, self.path.glob(pattern + PARTIAL)):
                drop(path)
        for cell in self.cells():
            drop(self.path / "requests" / cell)

    def write(self, cell: str, request: Request) -> None:
        """Store one request; durable when this returns. A later one of the same key replaces it.

        Raises:
            StoreError: the cell is sealed.
            RunIncomplete: the disk is full or read-only, or the run folder was removed.
        """
        if self.sealed(cell):
            raise StoreError(f"the cell {cell!r} of {self.path} is sealed: it takes no more requests.")
        self._refuse_removed()
        folder = self.path / "requests" / cell
        try:
            make(folder)
            put(folder / _file_name(request), encode({"schema": SCHEMA, "payload": asdict(request)}))
        except OSError as error:
            raise RunIncomplete(
                f"{self.path} cannot be written: {error}. Finished requests are kept; make room and use --resume."
            ) from error

    def requests(self, cell: str) -> list[Request]:
        """The requests of a cell that is not sealed. One that is damaged is set aside, with a warning."""
        out = []
        for path in sorted((self.path / "requests" / cell).glob("*.json")):
            try:
                out.append(Request.of(load(path, "Run again with --resume.")["payload"]))
            except (DamagedError, KeyError, TypeError) as error:
                warnings.warn(f"{path} is set aside: {error}", stacklevel=2)
                os.replace(path, path.with_name(f"{path.name}.corrupt"))
        return out

    def seal(self, cell: str, meta: CellMeta) -> None:
        """Turn the cell's requests into its table, sorted by (warmup, prompt, repetition).

        Raises:
            StoreError: it is sealed already.
            RunIncomplete: the disk is full or read-only, or planned requests are missing.
        """
        if self.sealed(cell):
            raise StoreError(f"the cell {cell!r} of {self.path} is sealed already.")
        self._refuse_removed()
        rows = sorted(self.requests(cell), key=lambda row: (row.warmup, row.prompt, row.repetition))
        stored, expected = sum(not row.warmup for row in rows), self.planned[cell].expected or 0
        if stored < expected:
            raise RunIncomplete(
                f"the cell {cell!r} of {self.path} has {stored} of {expected} requests: something removed some while "
                f"the run made them. Leave the folder alone and run again with --resume, which makes those that miss."
            )
        data = parquet(table(rows))
        body = {
            "schema": SCHEMA,
            "cell": cell,
            "files": {FILE: hashlib.sha256(data).hexdigest()},
            "meta": self.planned[cell].merged(meta).stored(),
        }
        try:
            put_folder(self._folder(cell), {FILE: data, "cell.json": encode(body, indent=1)})
        except OSError as error:
            raise RunIncomplete(f"{self.path} cannot be written: {error}. Make room and use --resume.") from error
        drop(self.path / "requests" / cell)

    def _refuse_removed(self) -> None:
        if not (self.path / "manifest.json").is_file():
            raise RunIncomplete(
                f"{self.path} holds no run any more: it or its manifest.json was removed while the run made requests. "
                f"Start the run again, and leave its folder alone."
            )

    def sealed(self, cell: str) -> bool:
        """Return whether the cell is finished. UnknownNameError: the manifest lacks the cell."""
        return self._folder(cell).is_dir()

    def cells(self) -> list[str]:
        """All sealed cells, in the manifest's order."""
        return [cell for cell in self.planned if self.sealed(cell)]

    def cell(self, name: str) -> SealedEngineCell:
        """Read a sealed cell; every byte is checked.

        Raises:
            StoreError: it is not finished, or damaged. UnknownNameError: the manifest has no such cell.
        """
        body = self._body(name)
        path = self._folder(name) / FILE
        data = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(data).hexdigest() != body.files.get(FILE):
            raise DamagedError(f"{path} is damaged. {self._remedy(name)}")
        try:
            rows = parquet_table(data)
        except (pa.ArrowException, OSError) as error:
            raise DamagedError(f"{path} is no table: {error}. {self._remedy(name)}") from error
        if missing := [column for column in REQUESTS.names if column not in rows.column_names]:
            raise DamagedError(f"{path} lacks the columns {', '.join(missing)}. {self._remedy(name)}")
        frame: pd.DataFrame = rows.to_pandas(use_threads=False)
        return SealedEngineCell(name, body.meta, frame)

    def meta(self, name: str) -> CellMeta:
        """Return the facts about a sealed cell, without its requests. StoreError: it is not finished, or damaged."""
        return self._body(name).meta

    def update(self, name: str, changes: CellMeta) -> None:
        """Set facts of a sealed cell that depend on other cells."""
        sealed = self._body(name)
        body = sealed.stored() | {"meta": sealed.meta.merged(changes).stored()}
        del body["sha256"]
        put(self._folder(name) / "cell.json", encode(body, indent=1))

    def _body(self, name: str) -> EngineBody:
        if not self.sealed(name):
            raise StoreError(f"the cell {name!r} of {self.path} is not finished. Run again with --resume.")
        path = self._folder(name) / "cell.json"
        try:
            return EngineBody.read(load(path, self._remedy(name)))
        except ValueError as problem:
            raise DamagedError(f"{path} {problem}. {self._remedy(name)}") from None

    def _folder(self, cell: str) -> Path:
        if cell not in self.planned:
            raise UnknownNameError("engine's cell", cell, self.planned)
        return self.path / "engines" / cell

    def _remedy(self, cell: str) -> str:
        return f"Restore {self._folder(cell)} from a copy, or delete that folder and run again with --resume."


def _file_name(request: Request) -> str:
    digest = hashlib.sha256(request.prompt.encode()).hexdigest()[:16]
    warmup = "-warmup" if request.warmup else ""
    return f"{quote(request.prompt, safe='')[:80]}-{digest}--{request.repetition}{warmup}.json"
