"""The benchmark from Python, for a notebook or a script: ``import stridebench``.

    import stridebench
    tonight = stridebench.run(methods=["prompt_lookup"], backbones="smollm2-135m", prompts="mine.jsonl")
    tonight.table[["label", "speedup", "verdict"]]

A run lies in a folder. The command line continues what was started here, and the other way round.
"""

import warnings

from stridebench.harness.discover import check_packages

warnings.filterwarnings("ignore", message="IProgress not found")  # of tqdm: it wants widgets
check_packages()  # before the imports below, which import them

from stridebench.checks import audit, verify  # noqa: E402
from stridebench.harness.errors import (  # noqa: E402  (see above)
    RunIncomplete,
    StoreError,
    StrideError,
    UsageError,
    WeightsError,
)
from stridebench.running import run  # noqa: E402
from stridebench.stored_run import StoredRun, open_runs, query  # noqa: E402

__all__ = [
    "RunIncomplete",
    "StoreError",
    "StoredRun",
    "StrideError",
    "UsageError",
    "WeightsError",
    "audit",
    "open_runs",
    "query",
    "run",
    "verify",
]
