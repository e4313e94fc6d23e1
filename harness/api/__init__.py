"""The benchmark from Python, for a notebook or a script.

    import stridebench
    tonight = stridebench.run(methods=["prompt_lookup"], backbones="smollm2-135m", prompts="mine.jsonl")
    tonight.table[["label", "speedup", "verdict"]]

``run`` decodes, ``open_run`` and ``open_runs`` read finished runs, ``query`` answers SQL over them, ``verify`` proves
that methods are exact, ``audit`` bets against the tokens of a run or of a file, ``gate`` tests a run against a
baseline, ``compare`` compares runs, and ``list_methods`` names all methods. ``sampler`` marks a function for
`stride verify FILE.py`. The verbs of the command line call the
same functions, and continue a run that was started here.

This folder is installed as the package ``stridebench``; ``harness``, ``methods``, ``tasks`` and ``reports`` are
installed below it. Names are loaded when they are first used, so that importing the package does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stridebench.checks import audit as audit
    from stridebench.checks import list_methods as list_methods
    from stridebench.checks import verify as verify
    from stridebench.gating import compare as compare
    from stridebench.gating import gate as gate
    from stridebench.harness import __version__ as __version__
    from stridebench.harness.errors import RunIncomplete as RunIncomplete
    from stridebench.harness.errors import StoreError as StoreError
    from stridebench.harness.errors import StrideError as StrideError
    from stridebench.harness.errors import UsageError as UsageError
    from stridebench.harness.errors import WeightsError as WeightsError
    from stridebench.harness.proof.samplers import sampler as sampler
    from stridebench.running import run as run
    from stridebench.stored_run import StoredRun as StoredRun
    from stridebench.stored_run import open_run as open_run
    from stridebench.stored_run import open_runs as open_runs
    from stridebench.stored_run import query as query

_HOMES = {
    "checks": ("audit", "list_methods", "verify"),
    "gating": ("compare", "gate"),
    "harness": ("__version__",),
    "harness.errors": ("RunIncomplete", "StoreError", "StrideError", "UsageError", "WeightsError"),
    "harness.proof.samplers": ("sampler",),
    "running": ("run",),
    "stored_run": ("StoredRun", "open_run", "open_runs", "query"),
}
_MODULES = {name: f"stridebench.{module}" for module, names in _HOMES.items() for name in names}
__all__ = sorted(_MODULES)  # names of the table above


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
