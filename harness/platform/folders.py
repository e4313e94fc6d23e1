"""The folder of downloads and measurements."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$STRIDE_CACHE, or ~/.cache/stridebench."""
    return Path(os.environ.get("STRIDE_CACHE") or Path.home() / ".cache" / "stridebench")


def remedy(path: Path) -> str:
    """What to do about damaged weights: only what was downloaded may be deleted."""
    if path.resolve().is_relative_to(cache_folder().resolve()):
        return "Delete it and fetch it again"
    return "Compare it with the source that you have it from"
