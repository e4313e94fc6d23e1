"""XSpecMesh's heads for a mesh backbone: `stride train heads xspecmesh-cross`.

Source: Chen et al., XSpecMesh, sections 4.3, 5.1, 5.4 (Table 3, rows B and D) and 7.1. The cosine ends at a
hundredth of the peak rate; the paper's ends at a tenth, as it does with `--set schedule=paper`.
Symbols: D heads. Head d, from 0, guesses the token d + 2 positions after the row that it reads; w = 0.8^(d + 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
from torch import Tensor, nn

from stridebench.harness.registry import GENERAL_RECIPES, RECIPES
from stridebench.harness.train.finetuned_mesh import load_backbone
from stridebench.harness.train.loop import Recipe
from stridebench.harness.train.passages import AnyPlan
from stridebench.harness.train.teacher import Teacher
from stridebench.methods.drafters.heads.config import Config
from stridebench.methods.drafters.heads.net import Heads
from stridebench.methods.training.heads.figures import save_heads
from stridebench.methods.training.heads.heads_in_training import frequent
from stridebench.methods.training.heads.xspecmesh_losses import MeshTraining, figures, head_loss
from stridebench.methods.training.heads.xspecmesh_passages import Meshes, Shapes

BASE = "shapes-mesh"
NAME = "embedded-mesh"


@dataclass(frozen=True, kw_only=True)
class MeshHeadsRecipe(Recipe):
    """Settings of both stages.

    Args:
        plan: of the shapes, or of other prompts of points.
        together: shapes of a step.
        device: that the heads learn on.
    """

    summary: str
    plan: Shapes | AnyPlan = field(default_factory=Shapes)
    together: int
    rate: float = 5e-3
    warmup: int = 20
    floor: float = 0.0
    device: str = "cpu"

    kind = "heads"
    serves = (NAME,)
    source = "meshes of the backbone itself, of procedural shapes (Apache-2.0)"
    per_step = "together"
    fall = 1.0
    decay = 0.0
    betas = (0.9, 0.99)


@dataclass(frozen=True, kw_only=True)
class TrainMeshHeads(MeshHeadsRecipe):
    """Stage 1: the heads alone, on meshes that the backbone generated.

    Heads of our own backbone propose the ids of its training meshes, a quarter of all. They share the backbone's
    unembedding, whose rows of neighbouring corners are alike: after 150 steps with one block the best token of head 1
    was right in 12 % with it, and in 8 % with an unembedding of its own.

    Args:
        backbone: a preset; "": ours, from the folder of the first recipe in `requires`.
        target: the name of ours.
        cross: whether the heads attend to the latents of the points.
        blocks: residual blocks of each head, behind the attention.
        inner: of a block; see `stridebench.methods.drafters.heads.config.Config`.
        own: whether each head has its own unembedding.
        heads: D.
        attention: attention heads of each.
    """

    backbone: str = ""
    target: str = NAME
    cross: bool
    blocks: int = 2
    inner: int = 256
    own: bool = False
    heads: int = 4
    attention: int = 4
    together: int = 4
    steps: int = 2200
    hours: float = 1.5

    requires: tuple[str, ...] = (BASE,)

    paper = MappingProxyType({"epochs": 30, "rate": 5e-4, "warmup": 1, "floor": 0.1, "hours": 1e4})

    def build(self, requirements: Mapping[str, Path]) -> nn.Module:
        """New heads. Generates the backbone's meshes first where the cache holds none."""
        if isinstance(self.plan, Shapes):
            teacher = Teacher(load_backbone(self.target, requirements[self.requires[0]]))
            sides = self.plan.sides(teacher, self.heads)
            ids = frequent(sides[0].passages, teacher.capabilities.vocabulary)
        else:
            passages = self.plan.passages(self.backbone)
            teacher = passages.teacher
            train, check = passages.train, passages.development
            sides = Meshes.read(teacher, train, self.heads), Meshes.read(teacher, check, self.heads)
            ids = None
        target = teacher.backbone
        capabilities, kept = target.capabilities, 0 if ids is None else len(ids)
        config = Config(target.name, target.fingerprint, capabilities.width, self.heads, self.blocks, self.inner, kept)
        config = replace(config, own=self.own)
        if self.cross:
            config = replace(config, condition=capabilities.condition, attention=self.attention)
        return MeshTraining(Heads(config, target.tied_embeddings().unembed.float(), ids), *sides)

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        assert isinstance(model, MeshTraining)
        return head_loss(model, random.integers(len(model.train_on.passages), size=self.together).tolist())

    def export(self, model: nn.Module, folder: Path) -> None:
        assert isinstance(model, MeshTraining)
        save_heads(model.heads, folder)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Figures on shapes of the development side, and those of controls; see `figures`."""
        assert isinstance(model, MeshTraining)
        return figures(model, model.check_on)


for _block, _row, _cross in (("mlp", "B", False), ("cross", "D", True)):
    _name = f"xspecmesh-{_block}"
    RECIPES.register(_name)(TrainMeshHeads(summary=f"Table 3, row {_row}: {_block} heads of {NAME}", cross=_cross))
    GENERAL_RECIPES.register(_name)(
        TrainMeshHeads(
            summary=f"XSpecMesh's {_block} heads of any model of points",
            cross=_cross,
            blocks=0 if _cross else 1,
            inner=0,
            own=True,
            rate=5e-4,
            steps=1200,
            requires=(),
        )
    )
