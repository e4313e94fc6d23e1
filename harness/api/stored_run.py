"""A run folder as pandas frames."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pandas as pd

from stridebench.harness.errors import StoreError, printable_line
from stridebench.harness.machine.extras import optional
from stridebench.harness.record.cell_files import SealedCell
from stridebench.harness.record.outputs import Picture, load
from stridebench.harness.record.run_folders import match_name, named_runs
from stridebench.harness.record.store import Store
from stridebench.reports.query.schema import NamedRun
from stridebench.reports.run_report import RunReport

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from stridebench.reports.query.database import Answer


@dataclass(frozen=True)
class RunCell:
    """A finished cell of a run.

    Args:
        name: its id.
        row: its row of the table.
        samples: one row a decoded prompt, of an engine's cell empty.
        steps: one row a step of a decode.
        requests: one row a request, of an engine's cell.
        folder: of its run.
    """

    name: str
    row: pd.Series[Any]
    samples: pd.DataFrame
    steps: pd.DataFrame
    requests: pd.DataFrame
    folder: Path

    @property
    def outputs(self) -> pd.Series[Any]:
        """Return the outputs by (prompt, repetition): texts, pictures of PIL, or meshes.

        Samples that failed and warm-ups have none.

        Raises:
            StoreError: the file of an output is missing or damaged.
        """
        kept = self.samples[(self.samples["status"] == "ok") & ~self.samples["warmup"].astype(bool)]
        outputs = [self._output(row) for row in kept.to_dict("records")]
        return pd.Series(outputs, pd.MultiIndex.from_frame(kept[["prompt", "repetition"]]), dtype=object, name="output")

    def _output(self, sample: Mapping[Any, Any]) -> object:
        if not isinstance(sample.get("output"), str) or not sample["output"]:
            return sample["text"]
        path = self.folder / sample["output"]
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise StoreError(f"{sample['output']} lies outside the run")
        output = load(path)
        if not isinstance(output, Picture):
            return output
        from PIL import Image

        return Image.fromarray(output.pixels)

    def __repr__(self) -> str:
        return f"RunCell({self.name!r}): {self.row['verdict']}"


FACTS = ("cell", "label", "role", "backbone", "dtype", "task", "temperature", "verdict")
"""Columns of `StoredRun.tidy` that name a cell."""


@dataclass(frozen=True)
class RunPlots:
    """The plots of a run as figures of matplotlib, which a notebook shows.

    Args:
        table: `StoredRun.table`.
        title: the suite's name.
    """

    table: pd.DataFrame
    title: str

    def forest(self, *, column: bool = False) -> Figure | None:
        """Draw each method's speed-up with its interval, and its quality; None if no method has a speed-up.

        Args:
            column: 3.3 inches wide with the speed-ups alone, for a column of a paper.
        """
        from stridebench.reports import forest

        return forest.draw(self.table, self.title, column)

    def pareto(self) -> Figure | None:
        """Draw speed against quality of approximate methods that are swept; None if there are none."""
        from stridebench.reports import pareto

        return pareto.draw(self.table)


class StoredRun:
    """A run folder, read when a frame is first asked for.

    ``run["zipar window=2"]`` is a finished cell, named by its label as the table has it, its id, or parts of that;
    iterating yields all finished cells.

    Args:
        path: the folder, or a URL.

    Raises:
        StoreError: it holds no run, or a damaged one.
    """

    def __init__(self, path: str | Path) -> None:
        self._store = Store.open(path)
        self.path = self._store.path
        self.address = self._store.address

    @property
    def cells(self) -> list[str]:
        """Return the ids of the finished cells, in the order of the table."""
        return self._store.cells()

    @property
    def table(self) -> pd.DataFrame:
        """Return one row a cell, with all figures of the reports; skipped and unfinished cells say why in ``reason``.

        A figure ``x`` with an interval has the columns x, x_low, x_high and x_n (the number of prompts).
        """
        return self._report.frame

    @cached_property
    def samples(self) -> pd.DataFrame:
        """Return one row a decoded prompt; ``cell`` is the cell's id, and ``score.NAME`` are the task's scores.

        Warm-ups are marked in ``warmup``; no figure counts them.
        """
        return _joined([_samples(cell) for cell in self._cells])

    @cached_property
    def steps(self) -> pd.DataFrame:
        """Return one row a step of a decode; ``cell`` is the cell's id, and times are nanoseconds."""
        return _joined([cell.steps.assign(cell=cell.name) for cell in self._cells])

    @property
    def engines(self) -> pd.DataFrame:
        """Return one row a cell of an engine: speed, acceptance in both definitions, verdict and audit."""
        return self._report.engines

    @cached_property
    def requests(self) -> pd.DataFrame:
        """Return one row a request to an engine (columns: `harness.record.requests`); ``cell`` is the cell's id."""
        cells = self._store.engine_cells()
        return _joined([self._store.cell(name).requests.assign(cell=name) for name in cells])

    def __getitem__(self, name: str) -> RunCell:
        """Return the only finished cell that ``name`` fits.

        Raises:
            UnknownNameError: none fits. UsageError: several do; they are listed.
        """
        return self._cell(match_name([*self.cells, *self._store.engine_cells()], name))

    def __iter__(self) -> Iterator[RunCell]:
        return map(self._cell, [*self.cells, *self._store.engine_cells()])

    def __len__(self) -> int:
        return len(self.cells) + len(self._store.engine_cells())

    def __bool__(self) -> bool:
        return True  # a run without a finished cell is a run

    def _cell(self, name: str) -> RunCell:
        cell, frame = self._store.cell(name), self.table if name in self._store.manifest.cells else self.engines
        row = frame[frame["cell"] == name].iloc[0]
        return RunCell(name, row, _samples(cell), cell.steps, cell.requests, self.path)

    def tidy(self) -> pd.DataFrame:
        """Return one row a cell and figure, for plots of your own.

        Columns: cell, label, role, backbone, dtype, task, temperature and verdict of the cell; ``metric`` and its
        ``value``; ``low``, ``high`` and ``n`` of its interval, missing if it has none.
        """
        table = self.table[self.table["status"] == "done"]
        names = [str(name) for name in table.columns]
        intervals = [name.removesuffix("_low") for name in names if name.endswith("_low")]
        ends = {f"{name}_{end}" for name in intervals for end in ("low", "high", "n")}
        numbers = table.drop(columns=[*ends & set(names), *FACTS], errors="ignore").select_dtypes("number").columns
        parts = [
            table[list(FACTS)].assign(
                metric=name,
                value=table[name],
                **{end: table.get(f"{name}_{end}", float("nan")) for end in ("low", "high", "n")},
            )
            for name in map(str, numbers)
        ]
        columns = [*FACTS, "metric", "value", "low", "high", "n"]
        rows = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)
        return rows[rows["value"].notna()].reset_index(drop=True)

    @property
    def plot(self) -> RunPlots:
        """Return the plots of the run: ``run.plot.forest()`` and ``run.plot.pareto()``."""
        return RunPlots(self.table, self._store.manifest.suite.name or "")

    def to_latex(self, columns: Sequence[str] = (), label: str = "") -> str:
        """Return one table for a paper, as `stride report RUN --latex` writes it.

        Args:
            columns: keys or headings, such as "verdict" and "speedup". Default: those of a paper.
            label: for ``\\ref``.

        Raises:
            UsageError: a column is unknown, or no cell is finished.
        """
        return self._report.latex(columns, label)

    def to_html(self) -> str:
        """Return the tables of `stride report`, with every text escaped."""
        return self._report.html()

    def query(self, sql: str) -> pd.DataFrame:
        """Answer one SQL query over the views of this run; see `query`."""
        return query(sql, self)

    def report(self, folder: str | Path | None = None) -> list[Path]:
        """Write tables and plots, as `stride report` does.

        Args:
            folder: where the files go. Default: ``report`` in the run folder.

        Returns:
            The files that were written.
        """
        return self._report.write(Path(folder) if folder is not None else self.path / "report")

    @cached_property
    def _report(self) -> RunReport:
        return RunReport(self._store)

    @cached_property
    def _cells(self) -> list[SealedCell]:
        return [self._store.cell(name) for name in self.cells]

    def __repr__(self) -> str:
        return f"StoredRun({str(self.path)!r}): {len(self.cells)} of {len(self._store.manifest.cells)} cells finished"

    def _repr_html_(self) -> str:
        """Return the tables of `stride report`, which a notebook shows."""
        return self.to_html()


def open_run(path: str | Path) -> StoredRun:
    """Open a finished or half-finished run.

    Args:
        path: its folder, or its URL.

    Raises:
        StoreError: it holds no run, or a damaged one.
    """
    return StoredRun(path)


def open_runs(*paths: str | Path) -> list[StoredRun]:
    """Open finished or half-finished runs.

    Args:
        paths: run folders, URLs of runs, or folders that hold some. Default: ``runs``.

    Returns:
        The runs. Those of one folder are sorted by name, so by time if the names are the default ones.

    Raises:
        StoreError: a folder neither is nor holds a run. UsageError: the folder does not exist.
    """
    return [StoredRun(folder) for folder in named_runs(paths)]


def query(sql: str, *paths: str | Path | StoredRun) -> pd.DataFrame:
    """Answer one SQL query over the views of runs, as `stride query` does.

    Args:
        sql: one SELECT of DuckDB's SQL; `stride query --schema` prints the views.
        paths: runs, run folders, URLs, or folders that hold runs. Default: ``runs``.

    Returns:
        One row a row of the answer. Runs with unfinished cells are named on standard error.

    Raises:
        UsageError: DuckDB is not installed, or refuses the query. StoreError: a run is damaged.
    """
    answer = answer_of(sql, [path.address if isinstance(path, StoredRun) else path for path in paths])
    return pd.DataFrame.from_records(answer.rows, columns=answer.names)


def answer_of(sql: str, runs: Sequence[str | Path], seconds: float | None = None) -> Answer:
    """Answer a query over runs that are named by their folders or URLs, with the types of its columns.

    Args:
        seconds: time limit of the query. Default: that of `ask`.

    Raises:
        UsageError: DuckDB is not installed, or refuses the query. StoreError: a run is damaged.
    """
    optional("duckdb", "stride query", "query")
    from stridebench.reports.query.database import SECONDS, ask

    # a table holds UTF-8 only, and the name of a folder may hold any byte
    names = [(str(folder).encode("utf-8", "backslashreplace").decode(), folder) for folder in named_runs(runs)]
    named = [NamedRun(name, Store.open(folder)) for name, folder in names]
    answer = ask(sql, named, SECONDS if seconds is None else seconds)
    for run in named:
        planned, sealed = len(run.store.manifest.cells), len(run.store.cells())
        if sealed < planned:
            left = f"{planned - sealed} of {planned} cells are not finished; their outputs are in no view yet"
            click.echo(f"{printable_line(run.name)}: {left}", err=True)
    return answer


def _samples(cell: SealedCell) -> pd.DataFrame:
    scores = [json.loads(text) if text else {} for text in cell.samples["scores"]]
    columns = pd.DataFrame(scores, index=cell.samples.index).add_prefix("score.")
    return cell.samples.drop(columns="scores").join(columns).assign(cell=cell.name)


def _joined(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of all cells, with the cell's id in the first column."""
    rows = [frame for frame in frames if len(frame)] or frames[:1]
    joined = pd.concat(rows, ignore_index=True) if rows else pd.DataFrame({"cell": []})
    return joined[["cell", *joined.columns.drop("cell")]]
