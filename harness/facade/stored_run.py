"""A run folder as pandas frames."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path

import pandas as pd

from harness.cli.results import RunReport
from harness.errors import StoreError, UsageError
from harness.record.remote import remote_run
from harness.record.store import Cell, Store


class StoredRun:
    """A run folder, read when a frame is first asked for.

    Args:
        path: the folder, or a URL.

    Raises:
        StoreError: it holds no run, or a damaged one.
    """

    def __init__(self, path: str | Path) -> None:
        self._store = Store.open(path)
        self.path = self._store.path

    @property
    def cells(self) -> list[str]:
        """The ids of the finished cells, in the order of the table."""
        return self._store.cells()

    @property
    def table(self) -> pd.DataFrame:
        """One row a cell, with all figures of the reports; skipped and unfinished cells say why in ``reason``.

        A figure ``x`` with an interval has the columns x, x_low, x_high and x_n (the number of prompts).
        """
        return self._report.frame

    @cached_property
    def samples(self) -> pd.DataFrame:
        """One row a decoded prompt; ``cell`` is the cell's id, and ``score.NAME`` are the task's scores.

        Warm-ups are marked in ``warmup`` and count nowhere.
        """
        return _joined([_samples(cell) for cell in self._cells])

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row a step of a decode; ``cell`` is the cell's id, and times are nanoseconds."""
        return _joined([cell.steps.assign(cell=cell.name) for cell in self._cells])

    def report(self, folder: str | Path | None = None) -> list[Path]:
        """Write tables and plots, as `stride report` does.

        Args:
            folder: of the files; None: ``report`` in the run folder.

        Returns:
            The files.
        """
        return self._report.write(Path(folder) if folder is not None else self.path / "report")

    @cached_property
    def _report(self) -> RunReport:
        return RunReport(self._store)

    @cached_property
    def _cells(self) -> list[Cell]:
        return [self._store.cell(name) for name in self.cells]

    def __repr__(self) -> str:
        return (
            f"StoredRun({str(self.path)!r}): {len(self.cells)} of {len(self._store.manifest['cells'])} cells finished"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows: the tables of `stride report`."""
        return self._report.html()


def open_runs(*paths: str | Path) -> list[StoredRun]:
    """Open finished or half-finished runs.

    Args:
        paths: run folders, URLs of runs, or folders that hold some; none: ``runs``.

    Returns:
        The runs, those of one folder by name, which is the order in time where the names are ours.

    Raises:
        StoreError: a folder neither is nor holds a run. UsageError: there is no such folder.
    """
    runs: list[StoredRun] = []
    for name in paths or ("runs",):
        path = Path(name)
        if remote_run(name) is not None:
            runs.append(StoredRun(name))
            continue
        if not path.is_dir():
            raise UsageError(f"there is no folder {path}; name a run folder, or a folder that holds some")
        folders = [path] if (path / "manifest.json").exists() else sorted(file.parent for file in _manifests(path))
        if not folders:
            raise StoreError(f"{path} holds no run (no manifest.json in it or in its folders); check the path")
        runs += map(StoredRun, folders)
    return runs


def _manifests(path: Path) -> list[Path]:
    return list(path.glob("*/manifest.json"))


def _samples(cell: Cell) -> pd.DataFrame:
    scores = [json.loads(text) if text else {} for text in cell.samples["scores"]]
    columns = pd.DataFrame(scores, index=cell.samples.index).add_prefix("score.")
    return cell.samples.drop(columns="scores").join(columns).assign(cell=cell.name)


def _joined(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """The rows of all cells that hold any, with the cell's id in the first column."""
    rows = [frame for frame in frames if len(frame)] or frames[:1]
    joined = pd.concat(rows, ignore_index=True) if rows else pd.DataFrame({"cell": []})
    return joined[["cell", *joined.columns.drop("cell")]]
