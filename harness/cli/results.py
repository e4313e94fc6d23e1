"""The reports of a run: tables, plots, sheets, and lines of a history."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
from rich.console import Console

from harness.cli.main import strict
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
    """One JSON line a cell."""
    stamp = {
        "run": str(store.path),
        "created": store.manifest["created"],
        "git": store.manifest["provenance"].get("git"),
    }
    rows = [json.dumps(strict({**stamp, **row}), allow_nan=False) for row in frame.to_dict("records")]
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(row + "\n" for row in rows))
