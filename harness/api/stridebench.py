"""The module that an installation calls ``stridebench`` (see pyproject.toml)."""

import sys

try:
    from stridebench.harness import __version__
except ImportError as error:
    place = getattr(sys.modules.get("harness"), "__file__", None)
    if place is None:  # our own, which something else beside the notebook keeps from its imports
        raise
    raise ImportError(
        f"{place} is imported in the place of stridebench's package 'harness'. "
        "Rename it, or start Python in another folder."
    ) from error
from stridebench import (
    RunIncomplete,
    StoredRun,
    StoreError,
    StrideError,
    UsageError,
    WeightsError,
    audit,
    open_runs,
    query,
    run,
    verify,
)

__all__ = [
    "RunIncomplete",
    "StoreError",
    "StoredRun",
    "StrideError",
    "UsageError",
    "WeightsError",
    "__version__",
    "audit",
    "open_runs",
    "query",
    "run",
    "verify",
]
