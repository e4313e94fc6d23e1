"""Mesh decoders: `stride train backbone shapes-mesh`, `... shapes-mesh-truncated`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from scipy.spatial import cKDTree
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.backbones.mesh import bpt_tokens
from stridebench.harness.backbones.mesh.fused_mesh import MeshBackbone, read
from stridebench.harness.backbones.mesh.network import MeshModel, MeshSizes
from stridebench.harness.core.cache import Window
from stridebench.harness.core.sampling import Sampling, warp
from stridebench.harness.errors import OutputError
from stridebench.harness.registry import RECIPES
from stridebench.harness.synthetic import furniture, shapes
from stridebench.harness.train.recipe import PRODUCTS, Recipe, autocast, save_bf16

# Shapes as batches for a mesh model, and the figures on held-out ones.


POINTS = 1024
SKIP = -100
"""The label of positions without a loss."""
PAD = 64
"""Batches are padded to a multiple of this length: with few sizes, freed memory is reused."""
SAMPLING = Sampling(temperature=0.5, top_k=50, top_p=0.95, order="filter_first")
"""BPT's temperature, as in the suites."""

Cloud = npt.NDArray[np.float32]


@dataclass(frozen=True)
class MeshBatch:
    """Padded token ids [B, N], the ids to predict, and the point clouds [B, n, 6]."""

    tokens: Tensor
    labels: Tensor
    points: Tensor


def batched(drawn: Sequence[shapes.ProceduralShape], random: np.random.Generator, window: int) -> MeshBatch:
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
    return MeshBatch(tokens, labels, torch.stack([_points(shape, random) for shape in drawn]))


def _points(shape: shapes.ProceduralShape, random: np.random.Generator) -> Float[Tensor, "n 6"]:
    return torch.from_numpy(shapes.points(shape.mesh, POINTS, random))


def length(shape: shapes.ProceduralShape) -> int:
    """Tokens of a shape, the end token included."""
    return len(bpt_tokens.encode(shape.mesh))


def nats(model: MeshModel, shape: shapes.ProceduralShape, random: np.random.Generator) -> float:
    """Minus the log-likelihood of a shape's tokens, given points of it."""
    drawn = batched([shape], random, 0)
    logits = model(drawn.tokens, drawn.points)[0]
    return float(functional.cross_entropy(logits, drawn.labels[0], ignore_index=SKIP, reduction="sum"))


def sampled(model: MeshModel, tests: Sequence[shapes.ProceduralShape], random: np.random.Generator) -> dict[str, float]:
    """Return the share of samples that are meshes, and their distances to their shape and to the next test's."""
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


# Cross-entropy over a large vocabulary that never holds all logits: loss and gradients in chunks.


ROWS = 200
"""Rows of a chunk: its logits over 5,122 tokens are 4 MB. The loss takes 0.6 of the time of torch's loss (CPU)."""


def cross_entropy(
    states: Float[Tensor, "N E"], table: Float[Tensor, "V E"], labels: Int[Tensor, " N"]
) -> Float[Tensor, ""]:
    """Sum over rows of -log softmax(states table^T)[label]. Products and gradients are in `PRODUCTS`, sums in fp32."""
    loss: Tensor = _Chunks.apply(states, table, labels)  # type: ignore[no-untyped-call]  # torch annotates it in part
    return loss


class _Chunks(torch.autograd.Function):
    """The gradient of a softmax follows from its value, so the forward pass computes both."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, table: Tensor, labels: Tensor) -> Tensor:
        low, narrow = states.to(PRODUCTS), table.to(PRODUCTS)
        to_states, to_table = torch.empty_like(low), torch.zeros_like(table)
        loss = table.new_zeros(())
        for begin in range(0, len(states), ROWS):
            chunk = slice(begin, begin + ROWS)
            logits = (low[chunk] @ narrow.T).float()
            target = labels[chunk, None]
            loss += (logits.logsumexp(1, keepdim=True) - logits.gather(1, target)).sum()
            slope = logits.softmax(1)
            slope.scatter_add_(1, target, slope.new_full(target.shape, -1.0))
            tight = slope.to(PRODUCTS)
            to_states[chunk] = tight @ narrow
            to_table += tight.T @ low[chunk]
        ctx.save_for_backward(to_states, to_table)
        return loss

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor, None]:
        to_states, to_table = ctx.saved_tensors
        return to_states * slopes[0], to_table * slopes[0], None


EASY = (0.6, 0.3, 0.1)
"""Shares of the levels in the first third of the steps: short shapes teach sooner what all shapes have in common."""
BOXES = 4
"""Most plain boxes of a sequence."""
TESTS = 64
SAMPLED = 32
SHARED = MeshSizes(layers=8, shared_coordinates=True)
"""The encoder shares the decoder's rows of coordinates, so that it reads corners from the start."""


@dataclass(frozen=True, eq=False)
class ShapesMesh(Recipe):
    """Predict the tokens of a shape from its points; new shapes in every step.

    Args:
        sizes: of the model. With a window, only pieces of that length are trained on.
        together: sequences of a pass, all of one level, which needs little padding.
        plain: share of the steps, at the start, on plain boxes: they teach how points become corners.
        requires: a recipe whose weights the training starts from, if any.
    """

    summary: str = "mesh decoder of procedural furniture on a grid, conditioned on points"
    source: str = "stridebench.harness.synthetic.furniture, procedural (Apache-2.0)"
    steps: int = 13300
    hours: float = 3.0
    rate: float = 2e-3
    warmup: int = 150
    fall: float = 0.7
    average: float = 0.995
    sizes: MeshSizes = SHARED
    together: int = 6
    passes: int = 1
    plain: float = 0.06
    requires: tuple[str, ...] = ()

    def build(self, requirements: Mapping[str, Path]) -> nn.Module:
        model = MeshModel(self.sizes)
        for name, folder in requirements.items():
            model.load_state_dict(read(name, folder).state_dict())
        return model

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        assert isinstance(model, MeshModel)
        total, count = torch.zeros(()), 0
        with autocast():
            table = model.codes()
            for _ in range(self.passes):
                drawn = self._draw(random, step)
                counted = drawn.labels != SKIP
                states = model.states(drawn.tokens, drawn.points, table)[counted]
                total = total + cross_entropy(states, table, drawn.labels[counted])
                count += len(states)
        return total / count

    def _draw(self, random: np.random.Generator, step: int) -> MeshBatch:
        if step < self.plain * self.steps:
            count = int(random.integers(1, BOXES + 1))
            drawn = [furniture.boxes(random, count) for _ in range(self.together)]
        else:
            levels = EASY if step < self.steps // 3 else shapes.LEVELS
            level = int(random.choice(len(levels), p=levels))
            drawn = [furniture.shape(random, "train", level) for _ in range(self.together)]
        return batched(drawn, random, self.sizes.window)

    def hidden(self, model: nn.Module) -> list[nn.Parameter]:
        """Every matrix of the layers, those of the encoder included."""
        assert isinstance(model, MeshModel)
        layers = (*model.layers.parameters(), *model.encoder.parameters())
        return [weight for weight in layers if weight.ndim == 2]

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        assert isinstance(model, MeshModel)
        random = np.random.default_rng(1)
        tests = [furniture.shape(random, "test", None) for _ in range(TESTS)]
        bits = sum(nats(model, test, random) for test in tests) / sum(length(test) for test in tests) / math.log(2)
        return {"test_bits_per_token": bits, **sampled(model, tests[:SAMPLED], random)}

    def export(self, model: nn.Module, folder: Path) -> None:
        save_bf16(model, folder)
        (folder / "config.json").write_text(json.dumps(asdict(self.sizes), indent=1) + "\n", encoding="utf-8")


WHOLE = "shapes-mesh"
RECIPES.register(WHOLE)(ShapesMesh())
RECIPES.register("shapes-mesh-truncated")(
    ShapesMesh(
        summary="the same, trained on in pieces with a context of 64 tokens: it loses what it began (000, 7.5)",
        sizes=replace(SHARED, window=64),
        steps=600,
        hours=0.5,
        rate=1e-3,
        plain=0.0,
        requires=(WHOLE,),
    )
)
