"""Checkpoints of a training run as their authors published them; nothing that they pickle is run."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stridebench.harness.backbones.checkpoints import components, digests
from stridebench.harness.errors import WeightsError
from stridebench.harness.platform.folders import cache_folder

COMPONENT = "model"
"""The one component that a preset's ``parts`` names."""


class _Inert:
    """Stands for an object of DeepSpeed's optimiser that lies in a checkpoint, and is not used."""


class _Stage(IntEnum):
    disabled = 0
    optimizer_states = 1
    gradients = 2
    weights = 3


INERT: list[Any] = [
    (_Inert, "deepspeed.runtime.fp16.loss_scaler.LossScaler"),
    (_Inert, "deepspeed.utils.tensor_fragment.fragment_address"),
    (_Stage, "deepspeed.runtime.zero.config.ZeroStageEnum"),
]


def locate(name: str, parts: Any, sha256: str | None) -> Path:
    """The checkpoint's file.

    Raises:
        UsageError: ``parts`` is malformed. WeightsError: it is not on this machine, or not the pinned file.
    """
    checked = components.check(name, parts, (COMPONENT,))
    path = components.locate(name, checked)[COMPONENT]
    actual = digests.remembered(path, cache_folder() / "digests") if sha256 else None
    if actual != sha256:
        raise WeightsError(f"{name}: {path} is not the pinned file: its sha256 is {actual}, wanted {sha256}")
    return path


def fill(name: str, model: nn.Module, path: Path, unused: Sequence[str]) -> None:
    """Give a model on the meta device the tensors of a file.

    Args:
        unused: beginnings of names of tensors that the model does not use.

    Raises:
        WeightsError: the file cannot be read, or its tensors are not the model's.
    """
    with torch.serialization.safe_globals(INERT):
        state = components.read_state(name, path)
    idle = [key for key in state if key.startswith(tuple(unused))]
    components.fill(name, path, model.to_empty(device="cpu"), state, idle)
