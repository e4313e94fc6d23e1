"""The reports of a run: tables, plots, sheets, and lines of a history.

What the papers print is added through the registry `REPORTS`, as another package's report would be.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pandas as pd
from rich.console import Console

from stridebench.harness.errors import UsageError, printable_line
from stridebench.harness.record.files import put
from stridebench.harness.record.outputs import json_values
from stridebench.harness.record.store import Store
from stridebench.harness.registry import REPORTS
from stridebench.reports import crossover, tables
from stridebench.reports.engine_rows import summarise_engines
from stridebench.reports.finished_cell import FinishedCell, Row, reader
from stridebench.reports.ranked import conclusions
from stridebench.reports.summary import by_category, summarise
from stridebench.reports.text_table import TextTable, html_tables, paper_table, print_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPERS = "stridebench.reports.papers"
if find_spec(PAPERS):
    REPORTS.declare({"papers": f"{PAPERS}.report"})
PAPER = ("verdict", "speedup", "tau", "tv", "audit")
"""Columns of a table for a paper."""
CAPTION = "speed-up over plain decoding; [low, high]: 95 % interval over prompts."
PLOTS = ".plots"
"""Names the plots of a folder, below a digest of the figures that they show."""


def name_of(store: Store) -> str:
    """Return the suite's name, or the name of the folder of a run of options alone."""
    name = store.manifest.suite.name or "run"
    return store.address.rstrip("/").rpartition("/")[2] or name if name == "adhoc" else name


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
    """The reports of one run; each of its cells is read once."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._read = reader(store)
        self.frame = summarise(store, self._read)

    @cached_property
    def engines(self) -> pd.DataFrame:
        """Return one row a cell of an engine."""
        return summarise_engines(self.store)

    @property
    def rows(self) -> list[Row]:
        """Return the rows of methods, then those of engines, as JSON values."""
        methods = json_values(self.frame.to_dict("records")) if self._of_methods else []
        return [*methods, *self.rows_of_engines]

    @property
    def rows_of_engines(self) -> list[Row]:
        """Return the rows of engines as JSON values."""
        rows = self.engines.drop(columns=list(tables.NESTED), errors="ignore").to_dict("records")
        return [json_values(row) for row in rows]

    @cached_property
    def _more(self) -> list[AddedReport]:
        """Return what other packages add to the report of methods, if the suite names a report."""
        named = self._of_methods and self.store.manifest.suite.report
        return [report.of(self.store, self._read, self.frame) for report in additions()] if named else []

    @property
    def _of_methods(self) -> bool:
        return bool(self.store.manifest.cells) or not self.store.manifest.engines

    @cached_property
    def _decoders(self) -> pd.DataFrame:
        """Return engines and methods side by side; empty if the run has no engines."""
        if not self.store.manifest.engines:
            return pd.DataFrame()
        return crossover.side_by_side(self.store, self.engines, self.frame, self._read)

    @cached_property
    def _crossovers(self) -> dict[str, crossover.CrossoverComparison]:
        return crossover.compared(self.store, self.engines)

    @property
    def beside(self) -> TextTable:
        """Return the table of engines and methods, one request at a time."""
        return crossover.beside_table(self._decoders)

    @property
    def speed_ups(self) -> list[TextTable]:
        """Return the speed-up of each entry over its plain decode, by concurrency."""
        return [crossover.speed_up_table(title, one) for title, one in self._crossovers.items()]

    def write(self, folder: Path, draw: bool = False) -> list[Path]:
        """Write the tables, and the plots if the folder does not hold plots of these figures; return the written files.

        Args:
            draw: draw the plots even if they are there.
        """
        more = [*([self.beside] if len(self._decoders) else []), *self.speed_ups]
        categories = by_category(self.store, self._read)
        files = tables.write(folder, self.frame, categories, self.engines, more, conclusions(self.frame))
        if len(self._decoders):
            files.append(folder / "side_by_side.csv")
            self._decoders.to_csv(files[-1], index=False)
        shown = self.frame.to_csv() + self.engines.to_csv()
        digest, stamp = hashlib.sha256(shown.encode("utf-8", "backslashreplace")).hexdigest(), folder / PLOTS
        there, *names = stamp.read_text("utf-8").splitlines() if stamp.is_file() else [""]
        if draw or there != digest or not all((folder / name).is_file() for name in names):
            plots = self._draw(folder)
            put(stamp.absolute(), "\n".join([digest, *(path.name for path in plots)]).encode())
            files += plots
        return files

    def _draw(self, folder: Path) -> list[Path]:
        """Draw the plots and sheets, and return the files."""
        from stridebench.reports import contact_sheets, forest, pareto  # they import matplotlib, and tables need none

        files = []
        if self._of_methods:
            files += forest.write(self.frame, folder, printable_line(name_of(self.store)))
            files += [*pareto.write(self.frame, folder), *contact_sheets.write(self.store, folder)]
        files += [path for report in self._more for path in report.write(folder)]
        return [*files, *crossover.write(self._crossovers, self._decoders, folder)]

    def tables(self, names: Sequence[str] = ()) -> list[TextTable]:
        """Return the tables of methods and engines.

        Args:
            names: keys or headings of columns. Default: all that hold a figure.
        """
        tables.check_columns(names, self.frame, self.engines)
        return [*tables.text_tables(self.frame, names), *tables.text_tables(self.engines, names)]

    def latex(self, names: Sequence[str] = (), label: str = "") -> str:
        """Return one table for a paper.

        Args:
            names: keys or headings of its columns. Default: those of a paper.
            label: for ``\\ref``.
        """
        frames = (self.frame, self.engines)
        shown = self.tables(names) if names else [one for frame in frames for one in tables.text_tables(frame, PAPER)]
        if not any(one.rows for one in shown):
            raise UsageError(f"no cell of {self.store.address} is finished, so there is no table")
        return paper_table(shown, f"{self.store.manifest.suite.name or 'run'}: {CAPTION}", label)

    def print(self, names: Sequence[str] = ()) -> None:
        """Print the tables of the run's methods, its paper and its engines, and what it shows in three sentences.

        Args:
            names: keys or headings of the columns of methods and engines. Default: those that fit.
        """
        tables.terminal(self.frame, names=names)
        for report in self._more:
            report.print(Console())
        tables.terminal(self.engines, names=names)
        beside = [self.beside] if len(self._decoders) and self.store.manifest.cells else []
        for table in (*beside, *self.speed_ups):
            print_table(table, Console())
        for sentence in conclusions(self.frame):
            Console().print(printable_line(sentence), style="bold", markup=False, highlight=False)

    def html(self) -> str:
        """Return the tables of the run for a notebook; every text of them is escaped."""
        return "".join(html_tables([*tables.text_tables(self.frame), *tables.text_tables(self.engines)]))


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
