"""Files of weights here: their sha256, noted in the cache folder, and the cache of the hub."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stridebench.harness.errors import WeightsError
from stridebench.harness.machine.surroundings import cache_folder

CHUNK = 1 << 22
"""Bytes read at once."""


def of_file(path: Path) -> str:
    """Return the hex sha256 of a file."""
    sha256 = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            sha256.update(chunk)
    return sha256.hexdigest()


def of_folder(folder: Path) -> str:
    """Return the hex sha256 over the configuration and the weight files of a folder of transformers."""
    sha256 = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.name == "config.json" or path.suffix in (".safetensors", ".bin"):
            sha256.update(f"{path.name} {remembered(path)}\n".encode())
    return sha256.hexdigest()


def of_tensors(model: Any) -> str:
    """Return the hex sha256 over configuration and tensors of a model, for weights without a file."""
    sha256 = hashlib.sha256(str(model.config.to_json_string()).encode())
    for name, tensor in sorted(model.state_dict().items()):
        sha256.update(name.encode() + tensor.detach().cpu().numpy().tobytes())
    return sha256.hexdigest()


def remembered(path: Path) -> str:
    """Return `of_file`, noted in the cache folder by inode, size and time of change, because hashing takes seconds."""
    path, stat = path.resolve(), path.stat()
    mark = [stat.st_ino, stat.st_size, stat.st_mtime_ns]
    note = cache_folder() / "digests" / f"{stat.st_dev}-{stat.st_ino}.json"
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


def from_hub(repository: str, revision: str | None, local: bool, what: str | list[str]) -> Path | None:
    """Return a file of a repository of the hub, or a folder with the files of some patterns.

    A ``local`` one is None if it is not here. Raises WeightsError if it cannot be had.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    if local and not (Path(HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}").is_dir():
        return None
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        if isinstance(what, str):
            return Path(str(hf_hub_download(repository, what, revision=revision, local_files_only=local)))
        return Path(str(snapshot_download(repository, revision=revision, local_files_only=local, allow_patterns=what)))
    except (OSError, ValueError, RuntimeError) as error:
        if local and isinstance(error, LocalEntryNotFoundError):
            return None
        file = f"{what} of " if isinstance(what, str) else ""
        raise WeightsError(
            f"{file}{repository} at revision {revision or 'main'} cannot be had from the hub ({error}). Check the "
            f"name, the network, your token and whether its licence was accepted there, or give files on this machine"
        ) from error


Progress = Callable[[str], None]
"""Takes a line about the progress of a fetch."""
