"""Mesh decoders of random weights, small enough to decode with in a test."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from harness.backbones.mesh.adapter import MeshBackbone
from harness.backbones.mesh.layers import Sizes
from harness.backbones.mesh.model import MeshModel
from harness.synthetic import shapes

SIZES = Sizes(width=32, layers=3, heads=2, hidden=48, latents=8, encoder_layers=1, context=256, window=0)


def points(seed: int, count: int = 40) -> torch.Tensor:
    one = shapes.shape(np.random.default_rng(seed), "train", 0)
    return torch.from_numpy(shapes.points(one.mesh, count, np.random.default_rng(seed)))


def tiny_mesh(window: int, seed: int = 0) -> MeshModel:
    """Random weights, large enough for every part to matter."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MeshModel(dataclasses.replace(SIZES, window=window))
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.data.mul_(2)
    return model


MODELS = {window: tiny_mesh(window) for window in (0, 6)}
BACKBONES = {window: MeshBackbone.of(model) for window, model in MODELS.items()}
