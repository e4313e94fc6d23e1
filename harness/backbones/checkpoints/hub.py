"""Whether a repository of the hub was ever downloaded here, without an import of the hub's client."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path


def in_cache(repository: str) -> bool:
    """Whether the hub's cache has a folder for ORG/NAME."""
    return (_cache() / f"models--{repository.replace('/', '--')}").is_dir()


def _cache() -> Path:
    """The folder that huggingface_hub reads, from the same variables in the same order."""
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
"""Takes a line about what a fetch does."""
