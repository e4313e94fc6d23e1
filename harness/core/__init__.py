"""The contract between methods, backbones and the harness, and the decoding loop.

A plugin imports from here only. Names are loaded when they are first used, so that importing the package does not
import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stridebench.harness.core.backbone import Backbone as Backbone
    from stridebench.harness.core.backbone import EncodedPrompt as EncodedPrompt
    from stridebench.harness.core.backbone import TiedEmbeddings as TiedEmbeddings
    from stridebench.harness.core.cache import Cache as Cache
    from stridebench.harness.core.cache import Rows as Rows
    from stridebench.harness.core.cache import Window as Window
    from stridebench.harness.core.canvas import Canvas as Canvas
    from stridebench.harness.core.capabilities import Capabilities as Capabilities
    from stridebench.harness.core.capabilities import Grid as Grid
    from stridebench.harness.core.capabilities import Requirement as Requirement
    from stridebench.harness.core.capabilities import Tap as Tap
    from stridebench.harness.core.draft import Acceptance as Acceptance
    from stridebench.harness.core.draft import Draft as Draft
    from stridebench.harness.core.draft import Fill as Fill
    from stridebench.harness.core.draft import Path as Path
    from stridebench.harness.core.draws import Draws as Draws
    from stridebench.harness.core.draws import SeededDraws as SeededDraws
    from stridebench.harness.core.method import Claim as Claim
    from stridebench.harness.core.method import Method as Method
    from stridebench.harness.core.method import Mutant as Mutant
    from stridebench.harness.core.run import Run as Run
    from stridebench.harness.core.sampling import Sampling as Sampling
    from stridebench.harness.core.sampling import warp as warp
    from stridebench.harness.core.session import Session as Session
    from stridebench.harness.core.task import Prompt as Prompt
    from stridebench.harness.core.task import Scored as Scored
    from stridebench.harness.core.task import SetScore as SetScore
    from stridebench.harness.core.task import Task as Task
    from stridebench.harness.errors import ContractError as ContractError
    from stridebench.harness.errors import UsageError as UsageError
    from stridebench.harness.registry import BACKBONES as BACKBONES
    from stridebench.harness.registry import METHODS as METHODS
    from stridebench.harness.registry import TASKS as TASKS

_PUBLIC = {
    "backbone": ("Backbone", "EncodedPrompt", "TiedEmbeddings"),
    "cache": ("Cache", "Rows", "Window"),
    "canvas": ("Canvas",),
    "capabilities": ("Capabilities", "Grid", "Requirement", "Tap"),
    "draft": ("Acceptance", "Draft", "Fill", "Path"),
    "draws": ("Draws", "SeededDraws"),
    "method": ("Claim", "Method", "Mutant"),
    "run": ("Run",),
    "sampling": ("Sampling", "warp"),
    "session": ("Session",),
    "task": ("Prompt", "Scored", "SetScore", "Task"),
}
_MODULES = {name: f"stridebench.harness.core.{module}" for module, names in _PUBLIC.items() for name in names}
_MODULES |= dict.fromkeys(("ContractError", "UsageError"), "stridebench.harness.errors")
_MODULES |= dict.fromkeys(("BACKBONES", "METHODS", "TASKS"), "stridebench.harness.registry")

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
