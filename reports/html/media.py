"""Pictures, sounds and meshes of a page: files are copied beside it, meshes become numbers that its script draws."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd

from stridebench.harness.errors import StoreError
from stridebench.harness.record.outputs import Mesh, load

DECIMALS = 4
"""Of a vertex; the cube of a mesh is two units wide."""


def sound_of(source: Path, run: Path, folder: Path, prefix: str) -> dict[str, Any]:
    """What a speech model heard, copied beside the page, and the words that were spoken; nothing where none is kept.

    Args:
        source: `stridebench.harness.record.store.sound_file`.
        run, folder, prefix: as of ``media_of``.
    """
    if not source.is_file() or not source.resolve().is_relative_to(run.resolve()):
        return {}
    words = source.with_suffix(".txt")
    return {
        "sound": _copied(source, folder, prefix),
        "spoken": words.read_text("utf-8", "replace") if words.is_file() else "",
    }


def _copied(source: Path, folder: Path, prefix: str) -> str:
    copy = folder / prefix / source.name
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(source.read_bytes())
    return f"{prefix}/{source.name}"


def media_of(sample: pd.Series[Any] | dict[str, Any], run: Path, folder: Path, prefix: str) -> dict[str, Any]:
    """The picture or mesh of a sample for the page; nothing where its output is a text.

    Args:
        sample: a row of samples.parquet.
        run: the run's folder.
        folder: the page's, where a picture is copied to.
        prefix: folder of the pictures, below ``folder``.

    Returns:
        ``picture``: the address from the page's folder; or ``mesh``: vertices and faces, flat; or ``lost``: why
        the output cannot be shown.
    """
    name = sample.get("output")
    if not isinstance(name, str) or not name:
        return {}
    path = run / name
    inside = not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts
    try:
        if not inside:
            raise StoreError(f"{name} lies outside the run")
        output = load(path)
    except StoreError as error:
        return {"lost": str(error)}
    if isinstance(output, Mesh):
        corners = output.vertices.round(DECIMALS).ravel().tolist()
        return {"mesh": {"vertices": corners, "faces": output.faces.ravel().tolist()}}
    return {"picture": _copied(path, folder, prefix)}
