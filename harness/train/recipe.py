"""What a recipe states: its model, data, loss and schedule; and the types in which it computes and is exported."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NotRequired, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from stridebench.harness.kernels import int8
from stridebench.harness.machine.device import multiplies_bf16

NO_SETTINGS = ("device", "folder", "hours", "params", "source", "summary")
"""Fields of a recipe or its data that do not change the result, or whose effect the hash of the data shows."""


class ParameterGroup(TypedDict):
    """A group of AdamW; ``scale`` multiplies its learning rate."""

    params: list[nn.Parameter]
    weight_decay: NotRequired[float]
    scale: NotRequired[float]


class Recipe(ABC):
    """A model to train, its data, and for how long.

    An instance is registered with ``RECIPES.register(name)(recipe)``. It may read the results of other recipes, which
    it names in ``requires``.

    Attributes:
        kind: of its result: backbone, scorer, drafter, heads, samplers or adapter.
        serves: the backbones that its result is for, if its name does not end in one.
        tunes: whether it tunes the backbone too, so that its result is for the tuned one.
        requires: names of the recipes whose results `build` reads.
        hours: CPU hours at most; a training that has spent them is finished. `stride train` lists them.
        rate: peak learning rate.
        warmup: steps over which the rate rises.
        fall: share of the steps, at the end, over which the rate falls as a cosine.
        floor: share of the peak rate that the cosine ends at; it is never below a hundredth.
        clip: largest norm of the gradient.
        average: decay of the moving average of the weights, which is exported; 0: the last weights are exported.
        muon: peak learning rate of the matrices in `hidden`, which Muon trains instead of AdamW.
        per_step: the setting that counts the passages of a step; "": none does.
        paper: settings of the paper's schedule; see `stridebench.harness.train.general`.
        printed: settings of the paper's algorithm as it is printed, those of its data behind ``data.``.
    """

    serves: ClassVar[tuple[str, ...]] = ()
    tunes: ClassVar[bool] = False
    kind: str = "backbone"
    summary: str = ""
    source: str = ""
    requires: tuple[str, ...] = ()
    steps: int = 1000
    hours: float = 1.0
    rate: float = 1e-3
    warmup: int = 100
    fall: float = 0.5
    floor: float = 0.0
    decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.98)
    clip: float = 1.0
    average: float = 0.0
    muon: float = 0.02
    per_step: str = ""
    paper: Mapping[str, float] = MappingProxyType({})
    printed: Mapping[str, float] = MappingProxyType({})

    @abstractmethod
    def build(self, requirements: Mapping[str, Path]) -> nn.Module:
        """A new model. The loop has seeded torch."""

    @abstractmethod
    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        """The loss of one step, on data drawn with ``random``; a scalar."""

    @abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Figures on held-out data, for the card."""

    def hidden(self, model: nn.Module) -> list[nn.Parameter]:
        """Matrices between layers, which Muon (Jordan 2024) trains with an orthogonal momentum. By default none."""
        return []

    def groups(self, model: nn.Module) -> list[ParameterGroup]:
        """AdamW's parameter groups: matrices decay, vectors do not. Parameters of Muon are left out."""
        hidden = {id(p) for p in self.hidden(model)}
        weights = [p for p in model.parameters() if p.requires_grad and id(p) not in hidden]
        return [
            {"params": [p for p in weights if p.ndim >= 2], "weight_decay": self.decay},
            {"params": [p for p in weights if p.ndim < 2], "weight_decay": 0.0},
        ]

    def settings(self) -> dict[str, object]:
        """Return the settings that decide the result as JSON values; data and their hash stand behind ``data.``.

        Left out are the seed, the device, limits of time, and the place of the data.
        """
        stated = _flat(self)
        if (plan := getattr(self, "plan", None)) is not None and hasattr(plan, "sha256"):
            stated["data.sha256"] = plan.sha256()
        return stated

    def export(self, model: nn.Module, folder: Path) -> None:
        """Write weights (and configuration) to a folder; by default model.safetensors in bf16."""
        save_bf16(model, folder)


def _flat(part: Any, prefix: str = "") -> dict[str, object]:
    """Return the fields of a dataclass, those of nested ones behind their name; none of anything else."""
    stated: dict[str, Any] = {}
    for field in fields(part) if is_dataclass(part) else ():
        value = getattr(part, field.name)
        if is_dataclass(value):
            stated |= _flat(value, f"{'data' if field.name == 'plan' else field.name}.")
        elif field.name not in NO_SETTINGS:
            stated[prefix + field.name] = json.loads(json.dumps(value, default=str))
    return stated


@torch.no_grad()
def round_to_bf16(tensors: Iterable[Tensor]) -> None:
    """Round a model's tensors before its export, so that the measured model is the exported one."""
    for tensor in tensors:
        tensor.copy_(tensor.bfloat16())


def save_bf16(model: nn.Module, folder: Path) -> None:
    """Write all tensors of a model as model.safetensors, floats in bf16; a shared tensor once for each of its names."""
    tensors = {
        key: (value.detach().to(torch.bfloat16) if value.is_floating_point() else value.detach()).clone()
        for key, value in model.state_dict().items()
    }
    int8.write_unpacked(folder / "model.safetensors", tensors)


# The type of matrix products in trainings: bf16 where the CPU multiplies it, else fp32.
# A CPU that does not emulates such products: 1.2 against 63 GFLOP/s in fp32 on one core of an AMD EPYC with AVX2.


NATIVE_BF16 = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) and multiplies_bf16()
PRODUCTS = torch.bfloat16 if NATIVE_BF16 else torch.float32


def autocast(enabled: bool = True, device: str = "cpu") -> torch.autocast:
    """Products of a training in ``PRODUCTS``, on a GPU in bf16; ``enabled``: whether it is one."""
    return torch.autocast(device, torch.bfloat16, enabled=enabled and (NATIVE_BF16 or device != "cpu"))
