"""Shapes as batches for a mesh model, and what is measured on held-out ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from scipy.spatial import cKDTree
from torch import Tensor
from torch.nn import functional

from stridebench.harness.backbones.mesh import bpt_tokens
from stridebench.harness.backbones.mesh.adapter import MeshBackbone
from stridebench.harness.backbones.mesh.model import MeshModel
from stridebench.harness.core.cache import Window
from stridebench.harness.core.sampling import Sampling, warp
from stridebench.harness.errors import OutputError
from stridebench.harness.synthetic import shapes

POINTS = 1024
SKIP = -100
"""The label of positions without a loss."""
PAD = 64
"""Batches are padded to a multiple of this length: with few sizes, freed memory is reused."""
SAMPLING = Sampling(temperature=0.5, top_k=50, top_p=0.95, order="filter_first")
"""BPT's own, as in the suites."""

Cloud = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Batch:
    """Padded token ids [B, N], the ids to predict, and the point clouds [B, n, 6]."""

    tokens: Tensor
    labels: Tensor
    points: Tensor


def batched(drawn: Sequence[shapes.Shape], random: np.random.Generator, window: int) -> Batch:
    """Whole sequences; with a window, a piece of each at a random place, the start and the end included."""
    rows = []
    for shape in drawn:
        row = [bpt_tokens.SOS, *bpt_tokens.encode(shape.mesh)]
        start = int(random.integers(-window // 2, max(1, len(row) - window // 2))) if window else 0
        start = max(0, min(start, len(row) - 1 - window)) if window else 0
        rows.append(row[start : start + window + 1] if window else row)
    longest = -(-(max(map(len, rows)) - 1) // PAD) * PAD
    tokens = torch.full((len(rows), longest), bpt_tokens.EOS)
    labels = torch.full_like(tokens, SKIP)
    for place, row in enumerate(rows):
        tokens[place, : len(row) - 1] = torch.tensor(row[:-1])
        labels[place, : len(row) - 1] = torch.tensor(row[1:])
    return Batch(tokens, labels, torch.stack([_points(shape, random) for shape in drawn]))


def _points(shape: shapes.Shape, random: np.random.Generator) -> Float[Tensor, "n 6"]:
    return torch.from_numpy(shapes.points(shape.mesh, POINTS, random))


def length(shape: shapes.Shape) -> int:
    """Tokens of a shape, the end token included."""
    return len(bpt_tokens.encode(shape.mesh))


def nats(model: MeshModel, shape: shapes.Shape, random: np.random.Generator) -> float:
    """Minus the log-likelihood of a shape's tokens, given points of it."""
    drawn = batched([shape], random, 0)
    logits = model(drawn.tokens, drawn.points)[0]
    return float(functional.cross_entropy(logits, drawn.labels[0], ignore_index=SKIP, reduction="sum"))


def sampled(model: MeshModel, tests: Sequence[shapes.Shape], random: np.random.Generator) -> dict[str, float]:
    """Share of samples that are meshes, their chamfer distance to their own shape, and to the next test's."""
    backbone = MeshBackbone.of(model)
    own, other = [], []
    for place, test in enumerate(tests):
        row = sample(backbone, _points(test, random), random)
        try:
            cloud = shapes.points(bpt_tokens.decode(row), POINTS, random)[:, :3]
        except OutputError:
            continue
        own.append(_chamfer(cloud, shapes.points(test.mesh, POINTS, random)[:, :3]))
        swapped = tests[(place + 1) % len(tests)]
        other.append(_chamfer(cloud, shapes.points(swapped.mesh, POINTS, random)[:, :3]))
    mean = {"chamfer": float(np.mean(own)), "chamfer_to_another": float(np.mean(other))} if own else {}
    return {"samples": float(len(tests)), "valid": len(own) / len(tests), **mean}


def sample(backbone: MeshBackbone, points: Float[Tensor, "n 6"], random: np.random.Generator) -> list[int]:
    """Draw one sequence by `SAMPLING`, through the forward pass that runs use."""
    cache = backbone.bind(points)
    row = [bpt_tokens.SOS]
    while row[-1] != bpt_tokens.EOS and len(row) < backbone.capabilities.context:
        place = len(row) - 1
        window = Window(torch.tensor(row[-1:]), torch.tensor([place]), place, None, 1)
        p = warp(cache.extend(window).logits, SAMPLING)[0].double().numpy()
        row.append(int(random.choice(len(p), p=p / p.sum())))
    return row[1:]


def _chamfer(a: Cloud, b: Cloud) -> float:
    """Mean distance to the nearest point, not squared, averaged over both directions."""
    return float((cKDTree(b).query(a)[0].mean() + cKDTree(a).query(b)[0].mean()) / 2)
