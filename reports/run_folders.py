"""Which runs a command line names: run folders, URLs, or folders that hold runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from stridebench.harness.errors import StoreError, UsageError
from stridebench.harness.record.remote import remote_run

DEFAULT = "runs"
"""Where `stride run` puts runs."""


def run_folders(paths: Iterable[str | Path]) -> list[str | Path]:
    """Return the run folders and URLs that these paths name, each once.

    Args:
        paths: run folders, URLs of runs, or folders that hold some; ``runs`` if there are none.

    Raises:
        StoreError: a folder neither is nor holds a run. UsageError: the folder does not exist.
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
