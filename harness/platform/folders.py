"""The folder of downloads and measurements."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$STRIDE_CACHE, or ~/.cache/stridebench."""
    return Path(os.environ.get("STRIDE_CACHE") or Path.home() / ".cache" / "stridebench")
