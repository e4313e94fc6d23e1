"""XSpecMesh's heads and the backbone tuned together: `stride train heads xspecmesh-cross-lora`.

Source: Chen et al., XSpecMesh, sections 5.4 (Table 3, rows C and E) and 7.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from stridebench.harness.registry import RECIPES
from stridebench.harness.train.finetuned_mesh import FinetunedMesh, load_backbone
from stridebench.harness.train.finetuning import Tuning
from stridebench.harness.train.teacher import Teacher
from stridebench.methods.drafters.heads.net import Heads
from stridebench.methods.training.heads.figures import save_heads
from stridebench.methods.training.heads.xspecmesh import BASE, NAME, MeshHeadsRecipe
from stridebench.methods.training.heads.xspecmesh_losses import MeshTraining, drift, figures, joint_loss
from stridebench.methods.training.heads.xspecmesh_passages import Meshes, Shapes


@dataclass(frozen=True, kw_only=True)
class TuneMeshHeads(MeshHeadsRecipe):
    """Stage 2: heads of stage 1 and the backbone together; exports heads, and the tuned backbone in ``backbone``.

    A preset of that folder makes it a target: ``adapter: mesh`` and ``source: {folder: OUT/backbone}``. After LoRA the
    folder holds the low-rank matrices, which are added to the weights of the base model when it is read.

    Args:
        requires: the recipes of the backbone and of the heads.
        tuning: how the backbone learns.
        fixed: lambda.
        target: the name of the backbone.
    """

    requires: tuple[str, ...]
    tuning: Tuning = field(default_factory=Tuning)
    fixed: float = 20.0
    target: str = NAME
    together: int = 2
    rate: float = 2e-3
    steps: int = 1500
    hours: float = 2.0

    def build(self, requirements: Mapping[str, Path]) -> nn.Module:
        """The heads of stage 1 and the backbone, with the meshes of stage 1."""
        base, stage_1 = (requirements[name] for name in self.requires)
        target = load_backbone(self.target, base)
        heads = Heads.load(stage_1, target.tied_embeddings).float().requires_grad_()
        assert isinstance(self.plan, Shapes), "stage 2 is for our own backbone"
        sides = self.plan.sides(Teacher(target), heads.config.heads)
        model = MeshTraining(heads, *sides, FinetunedMesh(base, self.tuning))
        model.base = Teacher(target)
        return model

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        assert isinstance(model, MeshTraining)
        chosen = random.integers(len(model.train_on.passages), size=self.together).tolist()
        return joint_loss(model, chosen, self.fixed)

    def export(self, model: nn.Module, folder: Path) -> None:
        """Write the tuned backbone, and heads that are tied to it."""
        assert isinstance(model, MeshTraining) and model.tuned is not None
        model.tuned.export(folder / "backbone")
        merged = load_backbone(f"{self.target} merged", folder / "backbone")
        model.heads.config = replace(model.heads.config, backbone=merged.name, fingerprint=merged.fingerprint)
        model.merged = Teacher(merged)
        model.heads.shared = merged.tied_embeddings().unembed.float()[model.heads.ids]
        save_heads(model.heads, folder)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The figures of stage 1 on rows of the merged backbone, and its ``divergence``; see `drift`."""
        assert isinstance(model, MeshTraining) and model.base is not None and model.merged is not None
        passages = model.check_on.passages
        checked = Meshes.read(model.merged, passages, model.heads.config.heads)
        return figures(model, checked) | {"divergence": drift(model.base, model.merged, passages)}


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
