"""sha256 of weights: each file is read once, and its digest is noted in the cache folder."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

CHUNK = 1 << 22
"""Bytes read at once."""


def of_file(path: Path) -> str:
    """Hex sha256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def of_folder(folder: Path, notes: Path) -> str:
    """Hex sha256 over the configuration and the weight files of a folder of transformers."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.name == "config.json" or path.suffix in (".safetensors", ".bin"):
            digest.update(f"{path.name} {remembered(path, notes)}\n".encode())
    return digest.hexdigest()


def of_tensors(model: Any) -> str:
    """Hex sha256 over configuration and tensors of a model, for weights that lie in no file."""
    digest = hashlib.sha256(str(model.config.to_json_string()).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def remembered(path: Path, notes: Path) -> str:
    """As `of_file`, noted by inode, size and time of change: half a gigabyte would take a second a load.

    Args:
        notes: the folder of notes; one that cannot be written costs that second, and nothing else.
    """
    path, stat = path.resolve(), path.stat()
    mark = [stat.st_ino, stat.st_size, stat.st_mtime_ns]
    note = notes / f"{stat.st_dev}-{stat.st_ino}.json"
    sha256 = _noted(note, mark)
    if sha256 is None:
        sha256 = of_file(path)
        _write(note, json.dumps({"mark": mark, "sha256": sha256}))
    return sha256


def _noted(note: Path, mark: list[int]) -> str | None:
    try:
        note_body = json.loads(note.read_text())
        return str(note_body["sha256"]) if note_body["mark"] == mark else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # no note, or half of one


def _write(note: Path, text: str) -> None:
    new = note.with_name(f"{note.name}.{os.getpid()}")
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(text)
        new.replace(note)
