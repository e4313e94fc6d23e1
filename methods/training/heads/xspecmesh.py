"""XSpecMesh's heads for a mesh backbone: `stride train heads xspecmesh-cross`, then `... xspecmesh-cross-lora`.

Source: Chen et al., XSpecMesh, sections 4.3, 5.1, 5.4 (Table 3, rows B to E) and 7.1, 7.6. The cosine ends at a
hundredth of the peak rate; the paper's ends at a tenth.
Symbols: D heads. Head d, from 0, guesses the token d + 2 positions after the row that it reads; w = 0.8^(d + 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from harness.registry import RECIPES
from harness.train.finetuned_mesh import FinetunedMesh, load_backbone
from harness.train.finetuning import Tuning
from harness.train.loop import Recipe
from harness.train.teacher import Teacher
from methods.drafters.heads.net import Config, Heads
from methods.training.heads.figures import save_heads
from methods.training.heads.xspecmesh_losses import MeshTraining, drift, figures, head_loss, joint_loss
from methods.training.heads.xspecmesh_passages import Meshes, Shapes

BASE = "shapes-mesh"
NAME = "embedded-mesh"


@dataclass(frozen=True, kw_only=True)
class TrainMeshHeads(Recipe):
    """Stage 1: the heads alone, on meshes that the backbone generated.

    Args:
        cross: whether the heads attend to the latents of the points; otherwise they are Medusa's block.
        plan: of the shapes.
        heads: D.
        attention: attention heads of each.
        together: shapes of a step.
    """

    summary: str
    cross: bool
    plan: Shapes = field(default_factory=Shapes)
    heads: int = 4
    attention: int = 4
    together: int = 4

    kind = "heads"
    source = "meshes of the backbone itself, of procedural shapes (Apache-2.0)"
    requires = (BASE,)
    steps: int = 1200
    hours: float = 1.5
    rate: float = 5e-4
    warmup = 20
    fall = 1.0
    decay = 0.0
    betas = (0.9, 0.99)

    def build(self, requirements: Mapping[str, Path]) -> nn.Module:
        """New heads. Generates the backbone's meshes first where the cache holds none."""
        target = load_backbone(NAME, requirements[BASE])
        capabilities, blocks = target.capabilities, 0 if self.cross else 1
        config = Config(target.name, target.fingerprint, capabilities.width, self.heads, layers=blocks, own=True)
        if self.cross:
            config = replace(config, condition=capabilities.condition, attention=self.attention)
        sides = self.plan.sides(Teacher(target), self.heads)
        return MeshTraining(Heads(config, target.tied_embeddings().unembed.float()), *sides)

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


@dataclass(frozen=True, kw_only=True)
class TuneMeshHeads(Recipe):
    """Stage 2: heads of stage 1 and the backbone together; exports heads, and the tuned backbone in ``backbone``.

    A preset of that folder makes it a target: ``adapter: mesh`` and ``source: {folder: OUT/backbone}``. After LoRA the
    folder holds the low-rank matrices, which are added to the weights of the base model when it is read.

    Args:
        requires: the recipes of the backbone and of the heads.
        tuning: how the backbone learns.
        fixed: lambda.
        plan: of the shapes, as in stage 1.
        together: shapes of a step.
    """

    summary: str
    requires: tuple[str, ...]
    tuning: Tuning = field(default_factory=Tuning)
    fixed: float = 50.0
    plan: Shapes = field(default_factory=Shapes)
    together: int = 2

    kind = "heads"
    source = "meshes of the backbone itself, of procedural shapes (Apache-2.0)"
    steps: int = 800
    hours: float = 2.0
    rate: float = 5e-4
    warmup = 20
    fall = 1.0
    decay = 0.0
    betas = (0.9, 0.99)

    def build(self, requirements: Mapping[str, Path]) -> nn.Module:
        """The heads of stage 1 and the backbone, with the meshes of stage 1."""
        base, stage_1 = (requirements[name] for name in self.requires)
        target = load_backbone(NAME, base)
        heads = Heads.load(stage_1, target.tied_embeddings).float().requires_grad_()
        sides = self.plan.sides(Teacher(target), heads.config.heads)
        model = MeshTraining(heads, *sides, FinetunedMesh(base, self.tuning))
        model.base = Teacher(target)
        return model

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        assert isinstance(model, MeshTraining)
        chosen = random.integers(len(model.train_on.passages), size=self.together).tolist()
        return joint_loss(model, chosen, self.fixed)

    def export(self, model: nn.Module, folder: Path) -> None:
        """Write the merged backbone, and heads that are tied to it."""
        assert isinstance(model, MeshTraining) and model.tuned is not None
        model.tuned.export(folder / "backbone")
        merged = load_backbone(f"{NAME} merged", folder / "backbone")
        model.heads.config = replace(model.heads.config, backbone=merged.name, fingerprint=merged.fingerprint)
        model.merged = Teacher(merged)
        save_heads(model.heads, folder)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The figures of stage 1 on rows of the merged backbone, and its ``divergence``; see `drift`."""
        assert isinstance(model, MeshTraining) and model.base is not None and model.merged is not None
        passages = model.check_on.passages
        checked = Meshes.read(model.merged, passages, model.heads.config.heads)
        return figures(model, checked) | {"divergence": drift(model.base, model.merged, passages)}


for _block, _row, _cross in (("mlp", "B", False), ("cross", "D", True)):
    _name = f"xspecmesh-{_block}"
    RECIPES.register(_name)(TrainMeshHeads(summary=f"Table 3, row {_row}: {_block} heads of {NAME}", cross=_cross))
for _block, _row in (("mlp", "C"), ("cross", "E")):
    _name = f"xspecmesh-{_block}"
    _summary = f"Table 3, row {_row}: {_name}, the backbone learning by LoRA"
    RECIPES.register(f"{_name}-lora")(TuneMeshHeads(summary=_summary, requires=(BASE, _name)))
RECIPES.register("xspecmesh-cross-full")(
    TuneMeshHeads(
        summary="section 7.6: row E with all weights of the decoder",
        requires=(BASE, "xspecmesh-cross"),
        tuning=Tuning(0),
    )
)
