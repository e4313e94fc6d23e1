"""The run folder: atomic, versioned, checksummed. A run killed at any moment resumes and repeats nothing.

    RUN/manifest.json                       written first, once: suite, key and planned cells
    RUN/records/CELL/PROMPT-HASH--REP.json  one finished decode each (``-warmup`` before the dot)
    RUN/cells/CELL/                         a sealed cell: samples.parquet, steps.parquet, cell.json
    RUN/conditions/CELL/PROMPT-HASH-0.npy   the points that a baseline's meshes were made from
    RUN/conditions/CELL/PROMPT-HASH-0.wav   the sound of a baseline's first prompts; .txt: its words
    RUN/started/CELL.json                   the decode that a worker process began in a cell
    RUN/passes/BACKBONE-DTYPE.json          what passes of a backbone took, and the threads chosen by that
    RUN/workers/BACKBONE-DTYPE-N.log        output of the N-th worker process of a backbone
    RUN/requests/CELL/PROMPT-HASH--REP.json one finished request to an engine each
    RUN/engines/CELL/                       a sealed cell of an engine: requests.parquet, cell.json

A file gets its name by a rename, after its bytes are on the disk. So does the folder of a sealed cell; its records are
removed after that. Whatever a kill leaves behind ends in ``~partial``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
import pyarrow as pa

from stridebench.harness.errors import ContractError, RunIncomplete, StoreError, UnknownNameError
from stridebench.harness.record import provenance
from stridebench.harness.record.columns import Record, Sample, check
from stridebench.harness.record.entries import CellMeta, Manifest, Provenance, SealedBody
from stridebench.harness.record.files import (
    PARTIAL,
    SCHEMA,
    DamagedError,
    drop,
    drop_folder,
    encode,
    is_abandoned,
    load,
    lock,
    make,
    put,
    put_folder,
    unlock,
)
from stridebench.harness.record.remote import RemoteRun, remote_run
from stridebench.harness.record.requests import REQUESTS, Request
from stridebench.harness.record.requests import table as requests_table
from stridebench.harness.record.rows import (
    SAMPLE_KEY,
    SAMPLES,
    STEPS,
    TABLES,
    parquet,
    parquet_table,
    problem_of_rows,
    samples_table,
    steps_table,
)
from stridebench.harness.record.run_notes import RunNotes, read_entries, refuse_removed, room

_CELL_NAME = re.compile(r"[\w=+,@-][\w=+,@.-]{0,199}", re.ASCII)


class SealedError(StoreError):
    """A cell takes no more records: it is sealed, maybe just now by another worker."""


@dataclass(frozen=True)
class SealedCell:
    """A sealed cell: the facts about it, and its tables; those of the other kind of cells are empty.

    Args:
        name: its id.
        meta: its facts.
        samples: of a method (columns ``SAMPLES``).
        steps: of a method (columns ``STEPS``).
        requests: of an engine (columns ``REQUESTS``).
    """

    name: str
    meta: CellMeta
    samples: pd.DataFrame
    steps: pd.DataFrame
    requests: pd.DataFrame


@dataclass(frozen=True)
class Store:
    """A run folder. One process and the workers of its pool write to it at a time; any number may read.

    A reader sees all records of a cell or its tables, also while a worker seals it.

    Args:
        path: the folder; of a run at a URL, the working copy on this machine (`stridebench.harness.record.files`).
        manifest: as stored.
        remote: where sealed cells are sent to and fetched from, or None if there is only the folder.
    """

    path: Path
    manifest: Manifest
    remote: RemoteRun | None = None

    @property
    def notes(self) -> RunNotes:
        """Return what the run keeps beside its records."""
        return RunNotes(self.path)

    @property
    def address(self) -> str:
        """Return the URL of the run, or its path from the root."""
        return str(self.path.absolute()) if self.remote is None else self.remote.url

    @classmethod
    def create(cls, path: str | Path, manifest: Mapping[str, Any]) -> Store:
        """Start a run in a folder that holds none; ``manifest`` needs ``key`` and ``cells``, by cell id.

        Raises:
            StoreError: the folder holds a run, or cannot be written.
            ContractError: a cell id does not serve as a folder's name.
        """
        _refuse_bad_names(manifest["cells"])
        data = encode({"schema": SCHEMA, "created": datetime.now(UTC).isoformat(), **manifest}, indent=1)
        remote = remote_run(path)
        if remote is not None:
            return cls(remote.create(data), Manifest.read(json.loads(data)), remote)
        run = Path(path)
        try:
            make(run)
            lock(run)
            if any((run / name).exists() for name in ("manifest.json", "cells", "records")):
                raise StoreError(f"{run} already holds a run. Go on with it (--resume), or name another folder.")
            for partial in run.glob(f"manifest.json*{PARTIAL}"):
                drop(partial)  # of a process that was killed here
            put(run / "manifest.json", data)
        except OSError as error:
            raise StoreError(
                f"no run can be started in {run}: {error}. Make room there, or name another folder."
            ) from error
        return cls.open(run)

    @classmethod
    def open(cls, path: str | Path) -> Store:
        """Read a run; changes nothing in the folder.

        Raises:
            StoreError: the manifest is missing, damaged, or of another schema version.
        """
        remote = remote_run(path)
        run = Path(path) if remote is None else remote.working_copy()
        file = run / "manifest.json"
        if not file.exists():
            raise StoreError(f"{run} holds no run (no manifest.json). Check the path, or start a run there.")
        remedy = "Restore it from a copy, or run again in another folder."
        body = read_entries(Manifest, file, remedy)
        named = (*body.cells, *body.engines)
        if wrong := [name for name in named if not _CELL_NAME.fullmatch(name)]:
            raise DamagedError(f"{file} has a cell {wrong[0]!r:.80}, which is none of a run. {remedy}")
        store = cls(run, body, remote)
        if remote is not None:
            for engine in body.engines:
                remote.restore(run, f"engines/{engine}", ("requests.parquet", "cell.json"))
            store.fetch(body.cells)
        return store

    @classmethod
    def resume(cls, path: str | Path, manifest: Mapping[str, Any]) -> Store:
        """Open a run to continue it, and remove files that a killed run did not finish.

        Raises:
            StoreError: as ``open``; or the keys differ (each is named), another process writes there,
                or a cell whose records are still there is damaged.
            RunIncomplete: the folder cannot be written.
        """
        store = cls.open(path)
        unlike = list(provenance.differences(store.manifest.key.stored(), json.loads(json.dumps(manifest["key"]))))
        if unlike:
            unlike += provenance.machine_differences(
                store.manifest.provenance, Provenance.read(manifest.get("provenance") or {})
            )
            raise StoreError(
                f"{store.path} holds another run, which cannot be mixed with this one: {'; '.join(unlike)}. "
                f"Ask for the same, or name another folder."
            )
        with room(store.path):
            lock(store.path)
            store._clear()
        store.send_missing()
        return store

    def release(self) -> None:
        """Let other processes continue the run."""
        unlock(self.path)

    def write(self, cell: str, record: Record) -> None:
        """Store one finished decode; durable when this returns.

        Raises:
            ContractError: the record breaks an identity of `columns.check`.
            RunIncomplete: the disk is full or read-only; all that was finished before is kept.
            SealedError: the cell is sealed. UnknownNameError: the manifest lacks the cell.
        """
        self._refuse_sealed(cell)
        _check(cell, record)
        folder = self.path / "records" / cell
        with room(self.path):
            try:
                make(folder)
                put(folder / _file_name(record.sample), encode({"schema": SCHEMA, "payload": record.plain()}))
            except FileNotFoundError:  # another worker, which was thought lost, has sealed the cell
                self._refuse_sealed(cell)
                raise

    def write_request(self, cell: str, request: Request) -> None:
        """Store one request of an engine's cell; durable when this returns. A later one of the same key replaces it.

        Raises:
            RunIncomplete: the disk is full or read-only, or the run folder was removed.
            SealedError: the cell is sealed. UnknownNameError: the manifest lacks the cell.
        """
        self._refuse_sealed(cell)
        folder = self.path / "requests" / cell
        with room(self.path):
            make(folder)
            put(folder / _file_name(request), encode({"schema": SCHEMA, "payload": asdict(request)}))

    def requests(self, cell: str) -> list[Request]:
        """Return the requests of a cell that is not sealed. One that is damaged is set aside, with a warning."""
        requests = []
        for path in sorted((self.path / "requests" / cell).glob("*.json")):
            try:
                payload: Any = load(path, "Run again with --resume.")["payload"]
                requests.append(Request.of(payload))
            except (DamagedError, KeyError, TypeError) as error:
                self._set_aside(path, error)
        return requests

    def done(self, cell: str) -> frozenset[tuple[str, int, bool]]:
        """(prompt, repetition, warmup) of each decode that is stored, failed ones included.

        A record that fails its checksum is set aside as ``*.corrupt``, with a warning, and is not done.

        Raises:
            StoreError: the sealed cell is damaged, or a record is of another version.
        """
        records = self._unsealed(cell, self._set_aside)
        if records is None:
            frame = self.cell(cell).samples
            return frozenset(zip(*(frame[name].tolist() for name in SAMPLE_KEY), strict=True))
        return frozenset((r.sample.prompt, r.sample.repetition, r.sample.warmup) for r in records)

    def stored(self, cell: str) -> int:
        """How many counted decodes of a cell that is not sealed are stored; they are not read."""
        return sum("-warmup" not in path.name for path in self._records(cell))

    def outputs(self, cell: str) -> dict[tuple[str, int], tuple[int, ...]]:
        """Output ids of every finished, counted sample, sealed or not; failed ones are left out."""
        records = self._unsealed(cell)
        if records is None:
            frame = self.cell(cell).samples
            counted = frame[(frame["status"] == "ok") & ~frame["warmup"]]
            return {
                (p, int(r)): tuple(t)
                for p, r, t in zip(counted["prompt"], counted["repetition"], counted["tokens"], strict=True)
            }
        samples = (record.sample for record in records)
        return {(s.prompt, s.repetition): s.tokens for s in samples if s.status == "ok" and not s.warmup}

    def pending(self, cell: str) -> list[Sample]:
        """The counted samples of a cell that is not sealed yet, in the order of its table.

        Raises:
            SealedError: the cell is sealed. StoreError: a record is damaged.
        """
        samples = (record.sample for record in self._unsealed(cell) or self._refuse_sealed(cell))
        return sorted((s for s in samples if not s.warmup), key=lambda s: (s.prompt, s.repetition))

    def refuse_missing(self, cell: str) -> None:
        """Check that a cell that is not sealed has every decode that was planned.

        Raises:
            RunIncomplete: records, or the whole folder, were removed while the run decoded.
        """
        self._refuse_missing(cell, self.stored(cell))

    def _refuse_missing(self, cell: str, stored: int) -> None:
        refuse_removed(self.path)
        expected = self._planned(cell).expected or 0
        if stored < expected and not self.sealed(cell):
            raise RunIncomplete(
                f"the cell {cell!r} of {self.path} has {stored} of {expected} decodes: something removed records while "
                f"the run decoded. Leave the folder alone and run again with --resume, which decodes what is missing."
            )

    def seal(self, cell: str, meta: CellMeta) -> None:
        """Turn the cell's records or requests, if any, into its tables, sorted by (warmup, prompt, repetition).

        Raises:
            SealedError: the cell is sealed already. StoreError: a record is damaged.
            ContractError: a record breaks an identity of `columns.check`.
            RunIncomplete: the disk is full or read-only, and every record is kept; or a planned decode is missing.
        """
        is_engine = cell in self.manifest.engines
        tables = self._tables_of_engine(cell) if is_engine else self._tables_of_method(cell, meta.status != "skipped")
        files = {name: parquet(table) for name, table in tables.items()}
        body = {
            "schema": SCHEMA,
            "cell": cell,
            "counts": {name.partition(".")[0]: table.num_rows for name, table in tables.items()},
            "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
            "meta": meta.stored(),
        }
        with room(self.path):
            put_folder(self._folder(cell), {**files, "cell.json": encode(body, indent=1)})
            self._send(cell)
            drop(self.path / ("requests" if is_engine else "records") / cell)
            self.notes.unmark_started(cell)

    def _tables_of_method(self, cell: str, complete: bool) -> dict[str, pa.Table]:
        records = list(self._unsealed(cell) or self._refuse_sealed(cell))
        if complete:
            self._refuse_missing(cell, sum(not record.sample.warmup for record in records))
        records.sort(key=lambda r: (r.sample.warmup, r.sample.prompt, r.sample.repetition))
        for record in records:
            _check(cell, record)
        return {"samples.parquet": samples_table(records), "steps.parquet": steps_table(records)}

    def _tables_of_engine(self, cell: str) -> dict[str, pa.Table]:
        self._refuse_sealed(cell)
        rows = sorted(self.requests(cell), key=lambda row: (row.warmup, row.prompt, row.repetition))
        self._refuse_missing(cell, sum(not row.warmup for row in rows))
        return {"requests.parquet": requests_table(rows)}

    def _send(self, cell: str) -> None:
        if self.remote is not None and cell in self.manifest.engines:
            self.remote.publish(self.path, f"engines/{cell}")
        elif self.remote is not None:
            self.remote.send(self.path, cell)

    def fetch(self, cells: Iterable[str]) -> None:
        """Bring cells that others sealed to the working copy of a run at a URL; a run folder has them already.

        Raises:
            StoreError: one is damaged there, or the URL cannot be read.
        """
        if self.remote is not None:
            self.remote.fetch(self.path, [cell for cell in cells if not self.sealed(cell)])

    def send_missing(self) -> None:
        """Send sealed cells of the working copy to the URL of the run that a kill kept from it.

        Raises:
            StoreError: the URL cannot be written.
        """
        if self.remote is not None:
            self.remote.send_missing(self.path, self.cells())

    def publish(self, folder: str) -> None:
        """Send a folder of the working copy to the URL of the run, such as its reports."""
        if self.remote is not None:
            self.remote.publish(self.path, folder)

    def reopen(self, cell: str) -> None:
        """Remove the seal of a skipped cell, which holds no sample, so that it can run."""
        if self.sealed(cell) and self.meta(cell).status == "skipped":
            with room(self.path):
                drop_folder(self._folder(cell))
                if self.remote is not None:
                    self.remote.forget(cell)

    def sealed(self, cell: str) -> bool:
        """Return whether the cell is finished. UnknownNameError: the manifest lacks the cell."""
        return self._folder(cell).is_dir()

    def cells(self) -> list[str]:
        """Return the sealed cells of methods, in the manifest's order."""
        return [cell for cell in self.manifest.cells if self.sealed(cell)]

    def engine_cells(self) -> list[str]:
        """Return the sealed cells of engines, in the manifest's order."""
        return [cell for cell in self.manifest.engines if self.sealed(cell)]

    def cell(self, name: str) -> SealedCell:
        """Read a sealed cell; every byte is checked.

        Raises:
            StoreError: it is not finished, or a file is missing, damaged or of another version.
            UnknownNameError: the manifest lacks the cell.
        """
        body = self._body(name)
        tables = {file: self._table(name, file, digest) for file, digest in body.files.items()}
        samples, steps, requests = (
            tables.get(f"{kind}.parquet", schema.empty_table()).to_pandas(use_threads=False)
            for kind, schema in (("samples", SAMPLES), ("steps", STEPS), ("requests", REQUESTS))
        )
        samples["diverged_at"] = samples["diverged_at"].astype("Int64")
        return SealedCell(name, body.meta, samples, steps, requests)

    def arrow(self, name: str, file: str) -> pa.Table | None:
        """A table of a sealed cell as it is stored, such as steps.parquet, or None if the cell lacks it.

        Raises:
            StoreError: the cell is not finished, or the table is damaged. UnknownNameError: there is none of that name.
        """
        digest = self._body(name).files.get(file)
        return None if digest is None else self._table(name, file, digest)

    def meta(self, name: str) -> CellMeta:
        """The facts about a sealed cell; its tables are not read.

        Raises:
            StoreError: it is not finished, or its cell.json is missing, damaged or of another version.
            UnknownNameError: the manifest lacks the cell.
        """
        return self._body(name).meta

    def update(self, cell: str, changes: CellMeta) -> None:
        """Set facts of a sealed cell that depend on other cells.

        Raises:
            StoreError: it is not finished, or damaged. RunIncomplete: the folder cannot be written.
        """
        sealed = self._body(cell)
        body = sealed.stored() | {"meta": CellMeta.merged(sealed.meta, changes).stored()}
        del body["sha256"]
        with room(self.path):
            put(self._folder(cell) / "cell.json", encode(body, indent=1))
            self._send(cell)

    def _folder(self, cell: str) -> Path:
        self._planned(cell)
        return self.path / ("engines" if cell in self.manifest.engines else "cells") / cell

    def _planned(self, cell: str) -> CellMeta:
        planned = {**self.manifest.cells, **self.manifest.engines}
        if cell not in planned:
            raise UnknownNameError("cell", cell, planned)
        return planned[cell]

    def _records(self, cell: str) -> list[Path]:
        folder = self.path / "records" / cell
        try:
            return sorted(folder / name for name in os.listdir(folder) if name.endswith(".json"))
        except FileNotFoundError:  # no decode is stored yet, or the cell was sealed just now
            return []

    def _unsealed(self, cell: str, damaged: Callable[[Path, DamagedError], None] | None = None) -> list[Record] | None:
        """Return the records of a cell, or None if it is sealed (maybe while they were read): its tables hold them all.

        Args:
            damaged: called with a damaged record and its error; None raises the error.
        """
        if self.sealed(cell):
            return None
        records = []
        for path in self._records(cell):
            try:
                records.append(_record(path))
            except DamagedError as error:
                if self.sealed(cell):
                    return None
                if damaged is None:
                    raise
                damaged(path, error)
        return None if self.sealed(cell) else records

    def _set_aside(self, path: Path, error: Exception) -> None:
        warnings.warn(str(error), stacklevel=4)
        with room(self.path), suppress(FileNotFoundError):  # another process has done so
            os.replace(path, path.with_name(f"{path.name}.corrupt"))

    def _refuse_sealed(self, cell: str) -> tuple[()]:
        """Return no record if the cell is not sealed.

        Raises:
            SealedError: it is.
        """
        if self.sealed(cell):
            raise SealedError(f"the cell {cell!r} of {self.path} is sealed already: it takes no more records.")
        return ()

    def _body(self, cell: str) -> SealedBody:
        if not self.sealed(cell):
            raise StoreError(f"the cell {cell!r} of {self.path} is not finished. Run again with --resume.")
        path = self._folder(cell) / "cell.json"
        body = read_entries(SealedBody, path, self._remedy(cell))
        if set(body.files) != set(TABLES[path.parent.parent.name]):
            raise DamagedError(f"{path} names the files {body.files!r:.80}. {self._remedy(cell)}")
        return body

    def _table(self, cell: str, file: str, digest: str) -> pa.Table:
        path = self._folder(cell) / file
        data = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(data).hexdigest() != digest:
            raise DamagedError(f"{path} is damaged: its sha256 is not the one in cell.json. {self._remedy(cell)}")
        try:
            table = parquet_table(data)
        except (pa.ArrowException, OSError) as error:
            raise DamagedError(f"{path} is no table: {error}. {self._remedy(cell)}") from error
        if problem := problem_of_rows(table, file, TABLES[path.parent.parent.name][file]):
            raise DamagedError(f"{path} {problem}. {self._remedy(cell)}")
        return table

    def _remedy(self, cell: str) -> str:
        return f"Restore {self._folder(cell)} from a copy, or delete that folder and run again with --resume."

    def _clear(self) -> None:
        places = "* cells/* cells/*/* records/*/* conditions/*/* started/* engines/* engines/*/* requests/*/*"
        for pattern in places.split():
            for path in filter(is_abandoned, self.path.glob(pattern + PARTIAL)):
                drop(path)
        for cell in self.cells():
            if (self.path / "records" / cell).exists():
                self.cell(cell)  # the records go only if what replaces them is whole
                drop(self.path / "records" / cell)
        for cell in self.engine_cells():
            drop(self.path / "requests" / cell)


def _refuse_bad_names(cells: Iterable[str]) -> None:
    ids: dict[str, str] = {}
    for cell in cells:
        if not _CELL_NAME.fullmatch(cell) or ids.setdefault(cell.casefold(), cell) != cell:
            raise ContractError(
                f"the cell id {cell!r} does not serve as a folder's name: use at most 200 of the characters "
                f"A-Z a-z 0-9 _ = + , @ . - with no dot in front, unlike every other id in more than case."
            )


def _file_name(sample: Sample | Request) -> str:
    """A readable prefix and a hash, which is unique also where case, length or Unicode forms are not distinguished."""
    prompt_hash = hashlib.sha256(sample.prompt.encode()).hexdigest()[:16]
    warmup = "-warmup" if sample.warmup else ""
    return f"{quote(sample.prompt, safe='')[:80]}-{prompt_hash}--{sample.repetition}{warmup}.json"


def _check(cell: str, record: Record) -> None:
    sample = record.sample
    if sample.status != "ok":
        return
    try:
        check(record.steps, len(sample.tokens))
    except ContractError as error:
        raise ContractError(
            f"cell {cell!r}, prompt {sample.prompt!r}, repetition {sample.repetition}: {error}"
        ) from error


def _record(path: Path) -> Record:
    body = load(path, "Run again with --resume: it is set aside, and that decode is done again.")
    try:
        payload: Any = body["payload"]
        return Record.of(payload)
    except (KeyError, TypeError) as error:
        raise StoreError(
            f"{path} was written by another version: {error}. Use that version, or run in another folder."
        ) from error
