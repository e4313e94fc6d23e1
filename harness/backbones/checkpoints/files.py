"""Files of weights here: their sha256, noted in the cache folder, and the cache of the hub."""

from __future__ import annotations

import hashlib
import json
import os
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
    """Return `of_file`, noted in a folder by inode, size and time of change: hashing half a gigabyte takes a second."""
    path, stat = path.resolve(), path.stat()
    mark = [stat.st_ino, stat.st_size, stat.st_mtime_ns]
    note = notes / f"{stat.st_dev}-{stat.st_ino}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):  # no note, or half of one
        noted = json.loads(note.read_text())
        if noted["mark"] == mark:
            return str(noted["sha256"])
    sha256 = of_file(path)
    new = note.with_name(f"{note.name}.{os.getpid()}")
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps({"mark": mark, "sha256": sha256}))
        new.replace(note)
    return sha256


def in_cache(repository: str) -> bool:
    """Return whether the hub's cache has a folder for ORG/NAME."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return (Path(HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}").is_dir()


Progress = Callable[[str], None]
"""Takes a line about the progress of a fetch."""
