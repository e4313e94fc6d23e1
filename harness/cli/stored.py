"""Runs and weights on this machine, as `stride list` shows them, their removal, and `stride fetch`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console

from stridebench.harness.backbones.checkpoints import sources
from stridebench.harness.cli.main import emit, json_option, say
from stridebench.harness.errors import StoreError, UsageError, did_you_mean, number_of, printable_line
from stridebench.harness.machine.surroundings import cache_folder
from stridebench.harness.plan import presets
from stridebench.harness.record.run_folders import RunFolder, folder_bytes, remove_run, run_folders, time_words
from stridebench.reports.text_table import Column, TextTable, print_table

RUNS = (
    Column("run", "run", rank=0),
    Column("created", "begun", rank=1),
    Column("took", "took", rank=2),
    Column("cells", "cells", rank=2),
    Column("verdicts", "verdicts", rank=1, whole=True),
    Column("best", "exact speed-up", rank=4, whole=True),
    Column("failed", "failed", rank=4),
    Column("size", "size", rank=0),
    Column("suite", "suite", rank=3),
)
WEIGHTS = (
    Column("folder", "folder", rank=0),
    Column("size", "size", rank=0),
    Column("names", "backbones", rank=1, whole=True),
)


def size_words(count: int) -> str:
    """Return a number of bytes in words."""
    for power, unit in ((9, "GB"), (6, "MB"), (3, "kB")):
        if count >= 10**power:
            return f"{count / 10**power:.1f} {unit}"
    return f"{count} bytes"


def list_stored(kind: str | None, folder: Path, as_json: bool, prune: bool, keep: int | None, yes: bool) -> None:
    """List runs or weights, or delete old runs; raise UsageError if the options do not fit together."""
    if kind != "runs" and (prune or keep is not None or yes):
        raise UsageError("--prune, --keep and --yes go with `stride list runs`")
    if prune != (keep is not None):
        raise UsageError("--prune deletes runs, and --keep says how many stay: give both, such as --prune --keep 30")
    if kind == "weights":
        list_weights(as_json)
    elif keep is not None:
        prune_runs(folder, keep, yes, as_json)
    else:
        list_runs(folder, as_json)


def list_runs(folder: Path, as_json: bool) -> None:
    """Print the runs of a folder."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; name one that holds runs")
    runs = run_folders(folder)
    if as_json:
        emit([{**asdict(run), "path": str(run.path)} for run in runs])
        return
    rows = [
        [
            run.path.resolve().name,
            run.created[:16].replace("T", " ") or "-",
            time_words(run.seconds),
            f"{run.finished} of {run.planned}",
            ", ".join(f"{count} {word}" for word, count in run.verdicts.items()) or "-",
            printable_line(run.best) or "-",
            "-" if run.failed is None else str(run.failed),
            size_words(run.bytes),
            run.suite or "-",
        ]
        for run in runs
    ]
    notes = [f"{run.path.name} cannot be read: {printable_line(run.problem)}" for run in runs if run.problem]
    total = f"{number_of(len(runs), 'run')} in {folder}, {size_words(sum(run.bytes for run in runs))}"
    print_table(TextTable(total, RUNS, rows, notes), Console())


def prune_runs(folder: Path, keep: int, yes: bool, as_json: bool) -> None:
    """Delete all runs of a folder but the newest ones, after a confirmation."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; name one that holds runs")
    runs = run_folders(folder)
    readable = [run for run in runs if not run.problem]
    old, deleted = readable[keep:], list[RunFolder]()
    for run in runs:
        if run.problem:
            say(f"kept {run.path}: it cannot be read as a run: {printable_line(run.problem)}", err=True)
    if old:
        for run in old:
            say(f"{run.path}  {run.created[:16].replace('T', ' ')}  {size_words(run.bytes)}", err=True)
        _confirm(f"delete {number_of(len(old), 'run')} ({size_words(sum(run.bytes for run in old))})", yes)
    for run in old:
        try:
            remove_run(run)
            deleted.append(run)
        except StoreError as error:
            say(f"kept {run.path}: {error}", err=True)
    freed = sum(run.bytes for run in deleted)
    if as_json:
        emit({"deleted": [str(run.path) for run in deleted], "bytes": freed, "kept": len(runs) - len(deleted)})
    else:
        kept = number_of(len(runs) - len(deleted), "run")
        say(f"deleted {number_of(len(deleted), 'run')} and kept {kept}; {size_words(freed)} freed")


def _confirm(what: str, yes: bool) -> None:
    """Ask before something is deleted."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"nothing is deleted: to {what} without a terminal, add --yes")
    click.confirm(f"{what}?", abort=True, err=True)


@dataclass(frozen=True)
class StoredWeights:
    """A file or folder of weights in the cache, and the backbones that are read from it."""

    folder: Path
    bytes: int
    names: tuple[str, ...]


def stored_weights() -> list[StoredWeights]:
    """Return all weights in the cache, the largest first; those of earlier versions have no names."""
    users: dict[Path, list[str]] = {}
    for spec in presets.by_name().values():
        if "source" in spec.params:
            for path in sources.in_cache(sources.parse(spec.name, spec.params["source"])):
                users.setdefault(path, []).append(spec.name)
    homes = (cache_folder() / room for room in ("weights", "downloads", "files"))
    paths = [path for home in homes if home.is_dir() for path in home.iterdir() if not path.name.startswith(".")]
    weights = [StoredWeights(path, _bytes(path), tuple(users.get(path, ()))) for path in paths]
    return sorted(weights, key=lambda one: (-one.bytes, one.folder))


def _bytes(path: Path) -> int:
    return folder_bytes(path) if path.is_dir() and not path.is_symlink() else path.lstat().st_size


def list_weights(as_json: bool) -> None:
    """Print the weights in the cache."""
    weights = stored_weights()
    if as_json:
        emit([{**asdict(one), "folder": str(one.folder)} for one in weights])
        return
    place = cache_folder()
    rows = [[str(one.folder.relative_to(place)), size_words(one.bytes), ", ".join(one.names) or "-"] for one in weights]
    total = f"{size_words(sum(one.bytes for one in weights))} of weights in {place}"
    notes = ["models of the hub lie in its own cache: `hf cache ls`"]
    print_table(TextTable(total, WEIGHTS, rows, notes), Console())


def remove_weights(names: Sequence[str], yes: bool, as_json: bool) -> None:
    """Delete the weights of backbones from the cache; a name may also be that of a folder of `stride list weights`."""
    weights = stored_weights()
    chosen: dict[Path, StoredWeights] = {}
    for name in names:
        own = {one.folder: one for one in weights if name in (*one.names, one.folder.name)}
        if not own:
            known = [word for one in weights for word in one.names or (one.folder.name,)]
            hint = did_you_mean(name, known) or "; `stride list weights` lists what is there"
            raise UsageError(f"{name} has no weights in {cache_folder()}{hint}")
        chosen |= own
    for one in chosen.values():
        others = [other for other in one.names if other not in names]
        say(f"{one.folder}  {size_words(one.bytes)}{'  also of ' + ', '.join(others) if others else ''}", err=True)
    freed = sum(one.bytes for one in chosen.values())
    _confirm(f"delete these weights ({size_words(freed)})", yes)
    for path in chosen:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    if as_json:
        emit({"deleted": [str(path) for path in chosen], "bytes": freed})
    else:
        say(f"deleted {len(chosen)} of {len(weights)}, {size_words(freed)} freed; `stride fetch` brings them back")


@click.command(name="fetch")
@click.argument("names", nargs=-1, required=True)
@click.option("--remove", is_flag=True, help="Delete them from the cache instead; `stride list weights` lists all.")
@click.option("--yes", is_flag=True, help="With --remove: do not ask.")
@json_option("[{name, folder}]; of --remove {deleted, bytes}")
def fetch(names: tuple[str, ...], remove: bool, yes: bool, as_json: bool) -> None:
    """Download pinned weights, check their hashes, convert them once to safetensors.

    They are stored in $STRIDE_CACHE, by default ~/.cache/stridebench.

    \b
    stride fetch smollm2-135m
    stride list backbones        all names, and which are ready
    stride fetch --remove smollm2-135m
    """
    if remove or yes:
        if not remove:
            raise UsageError("--yes goes with --remove")
        remove_weights(names, yes, as_json)
        return
    rows = []
    for name in names:
        spec = presets.resolve(name)
        folder = presets.fetch(name, lambda text: say(text, err=True))
        rows.append({"name": name, "folder": None if folder is None else str(folder)})
        if not {"source", "parts"} & set(spec.params):
            say(f"{name}: needs no weights", err=True)
        elif not as_json:
            say(f"{name}: {folder or 'ready'}")
    if as_json:
        emit(rows)
