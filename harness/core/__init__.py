"""The contract between methods, backbones and the harness, and the decoding loop.

A plugin imports from here only. Names are loaded when they are first used, so that importing the package does not
import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.core.backbone import Backbone as Backbone
    from harness.core.backbone import EncodedPrompt as EncodedPrompt
    from harness.core.backbone import TiedEmbeddings as TiedEmbeddings
    from harness.core.cache import Cache as Cache
    from harness.core.cache import Rows as Rows
    from harness.core.cache import Window as Window
    from harness.core.canvas import Canvas as Canvas
    from harness.core.capabilities import Capabilities as Capabilities
    from harness.core.capabilities import Grid as Grid
    from harness.core.capabilities import Requirement as Requirement
    from harness.core.capabilities import Tap as Tap
    from harness.core.draft import Acceptance as Acceptance
    from harness.core.draft import Draft as Draft
    from harness.core.draft import Fill as Fill
    from harness.core.draft import Path as Path
    from harness.core.draws import Draws as Draws
    from harness.core.draws import SeededDraws as SeededDraws
    from harness.core.method import Claim as Claim
    from harness.core.method import Method as Method
    from harness.core.method import Mutant as Mutant
    from harness.core.run import Run as Run
    from harness.core.sampling import Sampling as Sampling
    from harness.core.sampling import warp as warp
    from harness.core.session import Session as Session
    from harness.core.task import Prompt as Prompt
    from harness.core.task import Scored as Scored
    from harness.core.task import SetScore as SetScore
    from harness.core.task import Task as Task
    from harness.errors import ContractError as ContractError
    from harness.errors import UsageError as UsageError
    from harness.registry import BACKBONES as BACKBONES
    from harness.registry import METHODS as METHODS
    from harness.registry import TASKS as TASKS

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
_MODULES = {name: f"harness.core.{module}" for module, names in _PUBLIC.items() for name in names}
_MODULES |= dict.fromkeys(("ContractError", "UsageError"), "harness.errors")
_MODULES |= dict.fromkeys(("BACKBONES", "METHODS", "TASKS"), "harness.registry")

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
