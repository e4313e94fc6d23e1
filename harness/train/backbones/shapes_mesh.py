"""Mesh decoders: `stride train backbone shapes-mesh`, `... shapes-mesh-truncated`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from stridebench.harness.backbones.mesh.adapter import read
from stridebench.harness.backbones.mesh.layers import Sizes
from stridebench.harness.backbones.mesh.model import MeshModel
from stridebench.harness.registry import RECIPES
from stridebench.harness.synthetic import furniture, shapes
from stridebench.harness.synthetic.shape_data import DATA
from stridebench.harness.train.backbones.cross_entropy import cross_entropy
from stridebench.harness.train.backbones.shapes_mesh_data import SKIP, Batch, batched, length, nats, sampled
from stridebench.harness.train.loop import Recipe, save_bf16
from stridebench.harness.train.precision import autocast

EASY = (0.6, 0.3, 0.1)
"""Shares of the levels in the first third of the steps: short shapes teach sooner what all shapes have in common."""
BOXES = 4
"""Most plain boxes of a sequence."""
TESTS = 64
SAMPLED = 32
SHARED = Sizes(layers=8, shared_coordinates=True)
"""The encoder shares the decoder's rows of coordinates, so that it reads corners from the start."""


@dataclass(frozen=True, eq=False)
class ShapesMesh(Recipe):
    """Predict the tokens of a shape from its points; new shapes in every step.

    Args:
        sizes: of the model. With a window, only pieces of that length are trained on.
        together: sequences of a pass, all of one level, which needs little padding.
        passes: of a step.
        data: a name of `stridebench.harness.synthetic.shape_data`.
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
    sizes: Sizes = SHARED
    together: int = 6
    passes: int = 1
    data: str = "furniture"
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

    def _draw(self, random: np.random.Generator, step: int) -> Batch:
        if step < self.plain * self.steps:
            count = int(random.integers(1, BOXES + 1))
            drawn = [furniture.boxes(random, count) for _ in range(self.together)]
        else:
            levels = EASY if step < self.steps // 3 else shapes.LEVELS
            level = int(random.choice(len(levels), p=levels))
            drawn = [DATA[self.data](random, "train", level) for _ in range(self.together)]
        return batched(drawn, random, self.sizes.window)

    def hidden(self, model: nn.Module) -> list[nn.Parameter]:
        """Every matrix of the layers, those of the encoder included."""
        assert isinstance(model, MeshModel)
        layers = (*model.layers.parameters(), *model.encoder.parameters())
        return [weight for weight in layers if weight.ndim == 2]

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        assert isinstance(model, MeshModel)
        random = np.random.default_rng(1)
        tests = [DATA[self.data](random, "test", None) for _ in range(TESTS)]
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
