"""The reports of a run: tables, plots, sheets, and lines of a history."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from harness.cli.main import strict
from harness.record.files import put
from harness.record.store import Store
from reports import contact_sheets, pareto, tables
from reports.papers import report


def write(store: Store, frame: pd.DataFrame, folder: Path) -> list[Path]:
    """Write every report of a run; returns the files."""
    written = [*tables.write(store, folder, frame), *pareto.write(frame, folder)]
    return [*written, *contact_sheets.write(store, folder), *report.write(store, folder)]


def print_tables(store: Store, frame: pd.DataFrame) -> None:
    """The run's own table, then those of its paper."""
    tables.terminal(frame, Console())
    report.terminal(store, Console())


def append(path: Path, frame: pd.DataFrame, store: Store) -> None:
    """One JSON line a cell; a line that the file holds already, of a run that was resumed, is written anew."""
    stamp = {
        "run": str(store.path),
        "created": store.manifest["created"],
        "git": store.manifest["provenance"].get("git"),
    }
    rows = [json.dumps(strict({**stamp, **row}), allow_nan=False) for row in frame.to_dict("records")]
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    others = [line for line in lines if not _of_run(line, stamp)]
    put(path.absolute(), "".join(f"{line}\n" for line in (*others, *rows)).encode())


def _of_run(line: str, stamp: Mapping[str, Any]) -> bool:
    """Whether a line is of a run; one that is no JSON object is nobody's and stays."""
    try:
        entry = json.loads(line)
    except ValueError:
        return False
    return isinstance(entry, dict) and all(entry.get(key) == stamp[key] for key in ("run", "created"))
