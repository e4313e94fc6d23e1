"""Run folders: those that a command line names, what each holds, how large it is, and their removal."""

from __future__ import annotations

import csv
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from stridebench.harness.errors import StoreError, StrideError, UnknownNameError, UsageError, printable
from stridebench.harness.record.files import lock, unlock
from stridebench.harness.record.remote import remote_run
from stridebench.harness.record.store import Store

TABLES = ("cells/*/samples.parquet", "engines/*/requests.parquet")
"""Files of a cell that are written when it is finished, and never again."""


@dataclass(frozen=True)
class RunFolder:
    """A run on this machine.

    Args:
        suite: or "" if the run cannot be read.
        created: in ISO 8601, or "".
        seconds: from its start to the end of its latest cell, pauses included; None if no cell is finished.
        planned: cells that are finished or will be.
        verdicts: number of cells by verdict; baselines are left out.
        problem: why it cannot be read, or "".
        best: the speed-up of the exact method with the highest lower bound, its interval and its label, as the run's
            report has them; "" without one.
        failed: samples that failed, as its report has them; None without a report.
    """

    path: Path
    bytes: int
    suite: str = ""
    created: str = ""
    seconds: float | None = None
    finished: int = 0
    planned: int = 0
    verdicts: Mapping[str, int] = field(default_factory=dict)
    problem: str = ""
    machine: str = ""
    best: str = ""
    failed: int | None = None

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name or "run"


def run_folders(folder: Path) -> list[RunFolder]:
    """Return the runs in a folder, or the run that it is, the newest first."""
    one = (folder / "manifest.json").is_file()
    paths = [folder] if one else [file.parent for file in sorted(folder.glob("*/manifest.json"))]
    return sorted(map(_run_folder, paths), key=lambda run: run.created, reverse=True)


def _run_folder(path: Path) -> RunFolder:
    taken = folder_bytes(path)
    try:
        store = Store.open(path)
        metas = [store.meta(name) for name in (*store.cells(), *store.engine_cells())]
    except StrideError as error:
        return RunFolder(path, taken, problem=str(error))
    manifest = store.manifest
    planned = sum(cell.status != "skipped" for cell in (*manifest.cells.values(), *manifest.engines.values()))
    ends = [file.stat().st_mtime for pattern in TABLES for file in path.glob(pattern)]
    begun = datetime.fromisoformat(manifest.created)
    seconds = (datetime.fromtimestamp(max(ends), UTC) - begun).total_seconds() if ends else None
    judged = [meta for meta in metas if meta.role in ("method", "speculative")]
    words = [meta.judged.verdict if meta.engine else meta.judged.word for meta in judged]
    return RunFolder(
        *(path, taken, manifest.suite.name, manifest.created, seconds, len(metas), max(planned, len(metas))),
        verdicts=dict(Counter(word for word in words if word)),
        machine=str(manifest.provenance.machine.get("cpu") or ""),
        **_reported(path / "report" / "summary.csv"),
    )


def _reported(table: Path) -> dict[str, Any]:
    """Return ``best`` and ``failed`` of `RunFolder` from the table of a run's report."""
    try:
        with table.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["status"] == "done"]
        exact = [row for row in rows if row["role"] == "method" and row["verdict"].startswith("exact")]
        bounds = {float(row["speedup_low"]): row for row in exact if row.get("speedup_low")}
        failed = sum(int(float(row["n_failed"] or 0)) for row in rows)
        best = bounds[max(bounds)] if bounds else None
        figures = [float(best[f"speedup{end}"]) for end in ("", "_low", "_high")] if best else []
    except (OSError, ValueError, KeyError, csv.Error):  # no report yet, or one that somebody changed
        return {}
    words = "{:.2f} [{:.2f}, {:.2f}] ".format(*figures) + best["label"] if best else ""
    return {"best": words, "failed": failed}


def folder_bytes(path: Path) -> int:
    """Return the bytes of all files below a folder; links are not followed."""
    return sum(file.lstat().st_size for file in _files(path))


def _files(path: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(path):
        yield from (Path(parent) / name for name in names)


def remove_run(run: RunFolder) -> None:
    """Delete a run folder.

    Raises:
        StoreError: it is a link, cannot be read as a run, or is being written. Nothing is deleted.
    """
    if run.path.is_symlink():
        raise StoreError(f"{run.path} is a link; delete the run where it lies")
    if run.problem:
        raise StoreError(f"{run.path} is not deleted, since it cannot be read as a run: {run.problem}")
    lock(run.path)
    try:
        shutil.rmtree(run.path)
    finally:
        unlock(run.path)


def time_words(seconds: float | None) -> str:
    """Return a duration in its largest unit."""
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


# What a command line names: runs, and cells and prompts of one.


LISTED = 12
"""A message lists at most so many cells or prompts."""
DEFAULT = "runs"
"""Where `stride run` puts runs."""


def named_runs(paths: Iterable[str | Path]) -> list[str | Path]:
    """Return the run folders and URLs that these paths name, each once.

    Args:
        paths: run folders, URLs of runs, or folders that hold some; ``runs`` if there are none.
    """
    folders: dict[str | Path, str | Path] = {}
    for name in list(paths) or [DEFAULT]:
        path = Path(name)
        if remote_run(name) is not None:
            folders[str(name)] = name
            continue
        if not path.is_dir():
            raise UsageError(f"the folder {path} does not exist; name a run folder, or a folder that holds some")
        below = sorted(file.parent for file in path.glob("*/manifest.json"))
        runs = [path] if (path / "manifest.json").exists() else below
        if not runs:
            raise StoreError(f"{path} holds no run (no manifest.json in it or in its folders); check the path")
        folders |= {run.resolve(): run for run in runs if run.resolve() not in folders}
    return list(folders.values())


def match_name(ids: list[str], text: str) -> str:
    """Return the only cell whose id is ``text``, begins with it, contains it, or contains its parts in their order.

    A label of the run's table, such as ``sjdpp tau=0.25`` or ``sjdpp tau=0.25 T=1``, is read as the beginning of an
    id. If other labels begin with it, they are named on standard error.
    """
    words, _, temperature = text.partition(" T=")
    label, at = (re.sub(r"[^\w=+-]+", "-", one, flags=re.ASCII).strip("-") for one in (words, f"T{temperature}"))
    parts = re.compile(".*".join(map(re.escape, text.split("."))))
    rules: list[Callable[[str], object]] = [
        lambda name: name.startswith(f"{text}."),
        lambda name: label and name.startswith(f"{label}.") and (not temperature or f".{at}." in name),
        lambda name: name.startswith(f"{text}-"),
        lambda name: text in name,
        parts.search,
    ]
    found = _only_one("cell", ids, text, rules)
    longer = [name.split(".")[0] for name in ids if name.startswith(f"{label}-")]
    if label and found.startswith(f"{label}.") and longer:
        others = ", ".join(dict.fromkeys(longer))
        click.echo(printable(f"{text!r} is {found}; its other settings: {others}"), err=True)
    return found


def _only_one(kind: str, ids: list[str], text: str, rules: Sequence[Callable[[str], object]]) -> str:
    """Return ``text`` if it is an id, or the only id that meets the first of the rules that any meets."""
    if text in ids:
        return text
    for rule in rules:
        matches = [name for name in ids if rule(name)]
        if len(matches) == 1:
            return matches[0]
        if matches and text:
            listed = "".join(f"\n  {name}" for name in matches[:LISTED])
            more = f"\n  and {len(matches) - LISTED} more" if len(matches) > LISTED else ""
            raise UsageError(f"{text!r} fits {len(matches)} {kind}s; write more of one's id:{listed}{more}")
    raise UnknownNameError(kind if kind == "cell" else f"{kind} of this cell", text, ids)


def match_prompt(ids: list[str], text: str) -> str:
    """Return the only prompt whose id is ``text``, ends with it after a slash, or begins with it."""
    return _only_one("prompt", ids, text, [lambda name: name.endswith(f"/{text}"), lambda name: name.startswith(text)])
