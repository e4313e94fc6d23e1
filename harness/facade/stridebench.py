"""The module that an installation calls ``stridebench`` (see pyproject.toml)."""

from harness import __version__
from harness.facade import (
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
