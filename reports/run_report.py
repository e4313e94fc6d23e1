"""The reports of a run: tables, plots, sheets, and lines of a history.

What the papers print is added through the registry `REPORTS`, as another package's report would be.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pandas as pd
from rich.console import Console

from stridebench.harness.errors import printable_line
from stridebench.harness.record.files import put
from stridebench.harness.record.outputs import json_values
from stridebench.harness.record.store import Store
from stridebench.harness.registry import REPORTS
from stridebench.reports import contact_sheets, forest, pareto, tables
from stridebench.reports.conclusions import conclusions
from stridebench.reports.summary import FinishedCell, reader, summarise

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPERS = "stridebench.reports.papers"
if find_spec(PAPERS):
    REPORTS.declare({"papers": f"{PAPERS}.report"})


class AddedReport(Protocol):
    """A report that is added to that of every run; the classes are registered in `REPORTS`."""

    @staticmethod
    def of(store: Store, read: Callable[[str], FinishedCell], frame: pd.DataFrame) -> AddedReport:
        """Read a run, whose cells ``read`` reads once, and whose summary is ``frame``."""

    @staticmethod
    def figure_names() -> Iterable[str]:
        """Return the names of figures that can be drawn alone."""

    @staticmethod
    def draw(store: Store, name: str, cells: Collection[str]) -> Iterable[Figure]:
        """Draw a figure of these cells."""

    def write(self, outdir: Path) -> list[Path]:
        """Write tables and figures, and return their paths; none if there is nothing to report."""

    def print(self, console: Console) -> None:
        """Print the tables."""


def additions() -> list[type[AddedReport]]:
    """Return the registered reports."""
    return [REPORTS.get(name) for name in REPORTS]


class RunReport:
    """The reports of one run; each of its cells is read once.

    Args:
        store: the run.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._read = reader(store)
        self.frame = summarise(store, self._read)
        self._more = [report.of(store, self._read, self.frame) for report in additions()]

    def write(self, folder: Path) -> list[Path]:
        """Write every report, and return the files."""
        return [
            *tables.write(self.store, folder, self.frame, self._read),
            *forest.write(self.frame, folder, self.store.manifest.suite.name or ""),
            *pareto.write(self.frame, folder),
            *contact_sheets.write(self.store, folder),
            *(path for report in self._more for path in report.write(folder)),
        ]

    def print(self) -> None:
        """Print the table of the run, those of its paper, and what it shows in three sentences."""
        console = Console()
        tables.terminal(self.frame, console)
        for report in self._more:
            report.print(console)
        for sentence in conclusions(self.frame):
            console.print(printable_line(sentence), style="bold", markup=False, highlight=False)

    def html(self) -> str:
        """Return the tables of the run for a notebook; every text of them is escaped."""
        return "".join(tables.html(self.frame))


def append(path: Path, cells: Sequence[Mapping[Any, Any]], store: Store) -> None:
    """One JSON line a cell; a line that the file holds already, of a run that was resumed, is written anew."""
    stamp = {
        "run": str(store.path),
        "created": store.manifest.created,
        "git": store.manifest.provenance.git,
    }
    more = {
        "suite": store.manifest.suite.name,
        "machine": store.manifest.provenance.fingerprint,
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
