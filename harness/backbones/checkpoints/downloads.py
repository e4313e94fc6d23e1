"""Progress of a download, and the folder that downloads are kept in."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

Progress = Callable[[str], None]
"""Told what a fetch is doing, a line at a time."""


def cache_folder() -> Path:
    """$STRIDE_CACHE, or ~/.cache/stridebench."""
    return Path(os.environ.get("STRIDE_CACHE") or Path.home() / ".cache" / "stridebench")
