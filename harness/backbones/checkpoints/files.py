"""Files of weights here: their sha256, noted in the cache folder, and the hub's cache, read without its slow client."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

CHUNK = 1 << 22
"""Bytes read at once."""


def of_file(path: Path) -> str:
    """Return the hex sha256 of a file."""
    sha256 = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            sha256.update(chunk)
    return sha256.hexdigest()


def of_folder(folder: Path, notes: Path) -> str:
    """Return the hex sha256 over the configuration and the weight files of a folder of transformers."""
    sha256 = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.name == "config.json" or path.suffix in (".safetensors", ".bin"):
            sha256.update(f"{path.name} {remembered(path, notes)}\n".encode())
    return sha256.hexdigest()


def of_tensors(model: Any) -> str:
    """Return the hex sha256 over configuration and tensors of a model, for weights without a file."""
    sha256 = hashlib.sha256(str(model.config.to_json_string()).encode())
    for name, tensor in sorted(model.state_dict().items()):
        sha256.update(name.encode() + tensor.detach().cpu().numpy().tobytes())
    return sha256.hexdigest()


def remembered(path: Path, notes: Path) -> str:
    """Return `of_file`, noted by inode, size and time of change, because hashing half a gigabyte takes a second.

    Args:
        notes: the folder of notes; if it cannot be written, each load hashes the file.
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
        noted = json.loads(note.read_text())
        return str(noted["sha256"]) if noted["mark"] == mark else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # no note, or half of one


def _write(note: Path, text: str) -> None:
    new = note.with_name(f"{note.name}.{os.getpid()}")
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(text)
        new.replace(note)


# Whether a repository of the hub was ever downloaded here, without an import of the hub's client.


def in_cache(repository: str) -> bool:
    """Return whether the hub's cache has a folder for ORG/NAME."""
    return (_cache() / f"models--{repository.replace('/', '--')}").is_dir()


def _cache() -> Path:
    """Return the folder that huggingface_hub reads, from the same variables in the same order."""
    if client := sys.modules.get("huggingface_hub.constants"):
        return Path(client.HF_HUB_CACHE)
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if folder := os.environ.get(variable):
            return Path(folder).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{caches}/huggingface"
    return Path(os.path.expandvars(home)).expanduser() / "hub"


# Progress of a download.


Progress = Callable[[str], None]
"""Takes a line about the progress of a fetch."""
