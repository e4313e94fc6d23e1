"""Mesh decoders of random weights, small enough to decode with in a test."""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any

import numpy as np
import torch
from torch import nn

from stridebench.harness.backbones.mesh.fused_mesh import MeshBackbone
from stridebench.harness.backbones.mesh.network import MeshModel, MeshSizes
from stridebench.harness.backbones.mesh.published import PointMesh
from stridebench.harness.synthetic import furniture, shapes

SIZES = MeshSizes(width=32, layers=3, heads=2, hidden=48, latents=8, encoder_layers=1, context=256, window=0)


def points(seed: int, count: int = 40) -> torch.Tensor:
    one = furniture.shape(np.random.default_rng(seed), "train", 0)
    return torch.from_numpy(shapes.points(one.mesh, count, np.random.default_rng(seed)))


def tiny_mesh(window: int = 0, seed: int = 0, **sizes: int) -> MeshModel:
    """Random weights, large enough for every component to matter."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MeshModel(dataclasses.replace(SIZES, window=window, **sizes))
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.data.mul_(2)
    return model


ENCODER = {"width": 24, "heads": 2, "layers": 1, "latents": 7, "octaves": 2, "out": 20}
POINT_SIZES: dict[str, dict[str, Any]] = {
    "bpt": {"dim": 32, "depth": 3, "heads": 2, "codes": 79, "points": 40},
    "deepmesh": {"width": 32, "heads": 2, "hidden": 48, "layers": [1, 1, 2], "context": 80, "points": 40},
}


def tiny_point_mesh(architecture: str, dtype: str = "fp32") -> PointMesh:
    """BPT or DeepMesh of random weights."""
    random = {"seed": 1, "sizes": POINT_SIZES[architecture], "encoder": ENCODER}
    return PointMesh.load("tiny", {"architecture": architecture, "random": random}, dtype, "cpu")


def seeded_by_names(model: nn.Module) -> nn.Module:
    """Draw each tensor from a seed of its name, as for the logits in `published_reference.json`."""
    for name, tensor in model.state_dict().items():
        noise = np.random.default_rng(zlib.crc32(name.encode())).normal(size=tuple(tensor.shape))
        one = tensor.ndim == 1 and name.endswith("weight")
        tensor.copy_(torch.from_numpy(noise * (0.2 if tensor.ndim >= 2 else 0.1) + one))
    return model


MODELS = {window: tiny_mesh(window) for window in (0, 6)}
BACKBONES = {window: MeshBackbone.of(model) for window, model in MODELS.items()}
