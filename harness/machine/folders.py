"""The folder of downloads and measurements."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path


def cache_folder() -> Path:
    """Return $STRIDE_CACHE, or ~/.cache/stridebench."""
    return Path(os.environ.get("STRIDE_CACHE") or Path.home() / ".cache" / "stridebench")


def plain_name(name: str) -> str:
    """Return a backbone's name as the name of a folder."""
    return re.sub(r"[^\w.=+-]", "-", name)


def remedy(path: Path) -> str:
    """Say how to repair damaged weights: only downloaded files may be deleted."""
    if path.resolve().is_relative_to(cache_folder().resolve()):
        return "Delete it and fetch it again"
    return "Compare it with the source that you have it from"


def reason(error: Exception) -> str:
    """Return why weights cannot be read, in one line. A reader's advice to run the code of pickles is not repeated."""
    if isinstance(error, pickle.UnpicklingError):
        return "its pickle is damaged or holds more than tensors; nothing in it was run"
    return " ".join(str(error).split())
