"""Which version of a plugin a run decodes with: its distribution and a digest of its source."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

from stridebench.harness.registry import METHODS


def plugin_identity(name: str) -> dict[str, str] | None:
    """Distribution, version and entry point of a method of another package, and the sha256 of its Python files.

    Files of other kinds, weights among them, are not read. None: the method is one of ours.
    """
    if not METHODS.from_plugin(name):
        return None
    top = sys.modules[METHODS.get(name).__module__.partition(".")[0]]
    digest = hashlib.sha256()
    for relative, path in _sources(top.__name__, [*getattr(top, "__path__", ())], getattr(top, "__file__", None)):
        digest.update(f"{relative}\0".encode())
        digest.update(path.read_bytes())
    return {"source": METHODS.source(name), "sha256": digest.hexdigest()}


def _sources(name: str, folders: list[str], file: str | None) -> Iterator[tuple[str, Path]]:
    """Python files of a package, or the one file of a module, by their path in it."""
    if not folders:
        yield from [(f"{name}.py", Path(file))] if file is not None else []
    for folder in map(Path, folders):
        for path in sorted(folder.rglob("*.py")):
            yield path.relative_to(folder).as_posix(), path
