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

import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from stridebench.harness.errors import RunIncomplete, StoreError, UnknownNameError
from stridebench.harness.record import provenance
from stridebench.harness.record.cell_files import (
    CELL_NAME,
    SealedCell,
    SealedFolder,
    check_record,
    files_of_cell,
    read_record,
    record_name,
    refuse_bad_names,
)
from stridebench.harness.record.columns import Record, Sample
from stridebench.harness.record.entries import CellMeta, Manifest, Provenance
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
from stridebench.harness.record.requests import Request
from stridebench.harness.record.requests import table as requests_table
from stridebench.harness.record.rows import SAMPLE_KEY, samples_table, steps_table
from stridebench.harness.record.run_notes import RunNotes, read_entries, refuse_removed, room


class SealedError(StoreError):
    """A cell takes no more records: it is sealed, maybe just now by another worker."""


@dataclass(frozen=True)
class Store:
    """A run folder. One process and the workers of its pool write to it at a time; any number may read.

    A reader sees all records of a cell or its tables, also while a worker seals it. Of a cell that the manifest lacks
    every function raises UnknownNameError. Reading raises StoreError if a file is missing, damaged or of another
    version, or the cell not finished. Writing raises SealedError if the cell is sealed, ContractError if a record
    breaks an identity of `columns.check`, and RunIncomplete if the disk is full or read-only or the folder was removed;
    all that was finished before is kept.

    Args:
        path: the folder; of a run at a URL, the working copy on this machine (`stridebench.harness.record.files`).
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
        refuse_bad_names(manifest["cells"])
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
        if wrong := [name for name in named if not CELL_NAME.fullmatch(name)]:
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
        """Store one finished decode; durable when this returns."""
        self._refuse_sealed(cell)
        check_record(cell, record)
        folder = self.path / "records" / cell
        with room(self.path):
            try:
                make(folder)
                put(folder / record_name(record.sample), encode({"schema": SCHEMA, "payload": record.plain()}))
            except FileNotFoundError:  # another worker, which was thought lost, has sealed the cell
                self._refuse_sealed(cell)
                raise

    def write_request(self, cell: str, request: Request) -> None:
        """Store one request of an engine's cell; durable when this returns. A later one of the same key replaces it."""
        self._refuse_sealed(cell)
        folder = self.path / "requests" / cell
        with room(self.path):
            make(folder)
            put(folder / record_name(request), encode({"schema": SCHEMA, "payload": asdict(request)}))

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
        """Return the key of each stored decode, failed ones included; a damaged record is set aside, with a warning."""
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
        """The counted samples of a cell that is not sealed yet, in the order of its table."""
        samples = (record.sample for record in self._unsealed(cell) or self._refuse_sealed(cell))
        return sorted((s for s in samples if not s.warmup), key=lambda s: (s.prompt, s.repetition))

    def refuse_missing(self, cell: str, stored: int | None = None) -> None:
        """Check that a cell that is not sealed has every decode that was planned; ``stored`` of them are known."""
        refuse_removed(self.path)
        stored = self.stored(cell) if stored is None else stored
        expected = self._planned(cell).expected or 0
        if stored < expected and not self.sealed(cell):
            raise RunIncomplete(
                f"the cell {cell!r} of {self.path} has {stored} of {expected} decodes: something removed records while "
                f"the run decoded. Leave the folder alone and run again with --resume, which decodes what is missing."
            )

    def seal(self, cell: str, meta: CellMeta) -> None:
        """Turn the cell's records or requests, if any, into its tables, sorted by (warmup, prompt, repetition)."""
        is_engine = cell in self.manifest.engines
        tables = self._tables_of_engine(cell) if is_engine else self._tables_of_method(cell, meta.status != "skipped")
        files = files_of_cell(cell, tables, meta)
        with room(self.path):
            put_folder(self._folder(cell).path, files)
            self._send(cell)
            drop(self.path / ("requests" if is_engine else "records") / cell)
            self.notes.unmark_started(cell)

    def _tables_of_method(self, cell: str, complete: bool) -> dict[str, pa.Table]:
        records = list(self._unsealed(cell) or self._refuse_sealed(cell))
        if complete:
            self.refuse_missing(cell, sum(not record.sample.warmup for record in records))
        records.sort(key=lambda r: (r.sample.warmup, r.sample.prompt, r.sample.repetition))
        for record in records:
            check_record(cell, record)
        return {"samples.parquet": samples_table(records), "steps.parquet": steps_table(records)}

    def _tables_of_engine(self, cell: str) -> dict[str, pa.Table]:
        self._refuse_sealed(cell)
        rows = sorted(self.requests(cell), key=lambda row: (row.warmup, row.prompt, row.repetition))
        self.refuse_missing(cell, sum(not row.warmup for row in rows))
        return {"requests.parquet": requests_table(rows)}

    def _send(self, cell: str) -> None:
        if self.remote is not None and cell in self.manifest.engines:
            self.remote.publish(self.path, f"engines/{cell}")
        elif self.remote is not None:
            self.remote.send(self.path, cell)

    def fetch(self, cells: Iterable[str]) -> None:
        """Bring cells that others sealed to the working copy of a run at a URL; a run folder has them already."""
        if self.remote is not None:
            self.remote.fetch(self.path, [cell for cell in cells if not self.sealed(cell)])

    def send_missing(self) -> None:
        """Send sealed cells of the working copy to the URL of the run that a kill kept from it."""
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
                drop_folder(self._folder(cell).path)
                if self.remote is not None:
                    self.remote.forget(cell)

    def sealed(self, cell: str) -> bool:
        """Return whether the cell is finished. UnknownNameError: the manifest lacks the cell."""
        return self._folder(cell).path.is_dir()

    def cells(self) -> list[str]:
        """Return the sealed cells of methods, in the manifest's order."""
        return [cell for cell in self.manifest.cells if self.sealed(cell)]

    def engine_cells(self) -> list[str]:
        """Return the sealed cells of engines, in the manifest's order."""
        return [cell for cell in self.manifest.engines if self.sealed(cell)]

    def cell(self, name: str) -> SealedCell:
        """Read a sealed cell; every byte is checked."""
        return self._sealed(name).cell()

    def arrow(self, name: str, file: str) -> pa.Table | None:
        """A table of a sealed cell as it is stored, such as steps.parquet, or None if the cell lacks it."""
        return self._sealed(name).arrow(file)

    def meta(self, name: str) -> CellMeta:
        """The facts about a sealed cell; its tables are not read."""
        return self._sealed(name).body().meta

    def update(self, cell: str, changes: CellMeta) -> None:
        """Set facts of a sealed cell that depend on other cells."""
        data = self._sealed(cell).changed(changes)
        with room(self.path):
            put(self._folder(cell).path / "cell.json", data)
            self._send(cell)

    def _folder(self, cell: str) -> SealedFolder:
        self._planned(cell)
        return SealedFolder(self.path / ("engines" if cell in self.manifest.engines else "cells") / cell)

    def _sealed(self, cell: str) -> SealedFolder:
        if not self.sealed(cell):
            raise StoreError(f"the cell {cell!r} of {self.path} is not finished. Run again with --resume.")
        return self._folder(cell)

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
        """Return the records of a cell, or None if it is sealed, maybe just now; ``damaged`` takes bad ones."""
        if self.sealed(cell):
            return None
        records = []
        for path in self._records(cell):
            try:
                records.append(read_record(path))
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
        """Return no record if the cell is not sealed, or raise SealedError if it is."""
        if self.sealed(cell):
            raise SealedError(f"the cell {cell!r} of {self.path} is sealed already: it takes no more records.")
        return ()

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
