"""The reports of a run: tables, plots, sheets, and lines of a history."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from rich.console import Console

from stridebench.harness.record.entries import json_values
from stridebench.harness.record.files import put
from stridebench.harness.record.store import Store
from stridebench.reports import contact_sheets, pareto, tables
from stridebench.reports.papers.report import PaperReport
from stridebench.reports.summary import reader, summarise


class RunReport:
    """The reports of one run; each of its cells is read once.

    Args:
        store: the run.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._read = reader(store)
        self.frame = summarise(store, self._read)
        self._paper = PaperReport.of(store, self._read, self.frame)

    def write(self, folder: Path) -> list[Path]:
        """Write every report; returns the files."""
        return [
            *tables.write(self.store, folder, self.frame, self._read),
            *pareto.write(self.frame, folder),
            *contact_sheets.write(self.store, folder),
            *self._paper.write(folder),
        ]

    def print(self) -> None:
        """Print the table of the run, then those of its paper."""
        tables.terminal(self.frame, Console())
        self._paper.print(Console())

    def html(self) -> str:
        """Return the tables of the run for a notebook; every text of them is escaped."""
        return "".join(tables.html(self.frame))


def append(path: Path, cells: Sequence[Mapping[Any, Any]], store: Store) -> None:
    """One JSON line a cell; a line that the file holds already, of a run that was resumed, is written anew."""
    stamp = {
        "run": str(store.path),
        "created": store.manifest["created"],
        "git": (store.manifest.get("provenance") or {}).get("git"),
    }
    more = {
        "suite": (store.manifest.get("suite") or {}).get("name"),
        "machine": (store.manifest.get("provenance") or {}).get("fingerprint"),
    }
    rows = [json.dumps(json_values({**stamp, **more, **row}), allow_nan=False) for row in cells]
    lines = path.read_bytes().splitlines() if path.exists() else []
    ids = {str(row.get("cell")) for row in cells}
    others = [line for line in lines if not _of_run(line, stamp, ids)]
    put(path.absolute(), b"".join(line + b"\n" for line in (*others, *(row.encode() for row in rows))))


def _of_run(line: bytes, stamp: Mapping[str, Any], cells: Set[str]) -> bool:
    """Whether a line is of a run, or of the same cell of it before its folder was moved.

    A file that is not a JSON object stays.
    """
    try:
        entry = json.loads(line.decode())
    except (ValueError, RecursionError):
        return False
    if not isinstance(entry, dict) or entry.get("created") != stamp["created"]:
        return False
    return entry.get("run") == stamp["run"] or entry.get("cell") in cells
