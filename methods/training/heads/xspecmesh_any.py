"""XSpecMesh's second stage for any decoder of points: `stride train xspecmesh-cross-lora --backbone bpt`.

Source: Chen et al., XSpecMesh, sections 4.3 (eqs. 5-7) and 7.1.
Symbols: D heads, lambda the weight of the backbone's loss; y the tokens that the base model generated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.errors import UsageError
from stridebench.harness.registry import GENERAL_RECIPES
from stridebench.harness.train.data import TaskPlan
from stridebench.harness.train.finetuning import Tuning, finetuned
from stridebench.harness.train.teacher import Teacher
from stridebench.methods.drafters.heads.net import Heads
from stridebench.methods.training.heads.examples import FADING
from stridebench.methods.training.heads.recipes import save_heads
from stridebench.methods.training.heads.xspecmesh import (
    Meshes,
    MeshHeadsRecipe,
    MeshTraining,
    drift,
    figures,
    joint_loss,
    tuned_passes,
)


@dataclass(frozen=True, kw_only=True)
class TunePointHeads(MeshHeadsRecipe):
    """Heads of stage 1 and a decoder of points together; exports heads, and the tuned decoder in ``backbone``.

    The folder holds low-rank matrices. ``bpt:lora=OUT/backbone`` is BPT with their products added; a backbone of ours
    is a preset of ``adapter: mesh`` and ``source: {folder: OUT/backbone}``.

    Args:
        backbone: a name.
        requires: the recipe of the heads.
        rank: of the matrices; 0: all weights learn (of our shipped decoders).
        alpha: their product is scaled by alpha / rank; the paper's W + AB leaves that out.
        fixed: lambda.
        labels: for the backbone's loss. probs: the base model's distributions, see `joint_loss`.
            tokens: y, in sums over rows, as eq. 7 is printed.
    """

    backbone: str = ""
    requires: tuple[str, ...]
    rank: int = 16
    alpha: int = 32
    fixed: float = 50.0
    labels: Literal["probs", "tokens"] = "probs"
    together: int = 2
    rate: float = 5e-4
    steps: int = 800
    hours: float = 2.0

    tunes = True
    paper = MappingProxyType({"epochs": 10, "rate": 1e-4, "warmup": 1, "floor": 0.1, "hours": 1e4})

    def build(self, requirements: Mapping[str, Path]) -> nn.Module:
        """The heads of stage 1 and the decoder, with meshes that the decoder generates.

        Raises:
            WeightsError: the weights cannot be had, or the heads are of another backbone.
            UsageError: it is not a decoder of points that can learn, or peft is not installed.
        """
        if not isinstance(self.plan, TaskPlan):
            raise UsageError(
                "heads of a mesh decoder learn from point clouds; give a task such as point_clouds as --data"
            )
        tuned = finetuned(self.backbone, Tuning(self.rank, self.alpha), self.device)
        passages = self.plan.passages(self.backbone)
        teacher, stage_1 = passages.teacher, requirements[self.requires[0]]
        heads = Heads.load(stage_1, teacher.backbone.tied_embeddings).float().requires_grad_()
        if heads.config.fingerprint != teacher.backbone.fingerprint:
            raise UsageError(
                f"the heads in {stage_1} were trained for {heads.config.backbone} with other weights than those of "
                f"{self.backbone}: train them with stride train {self.requires[0]} --backbone {self.backbone}"
            )
        count = heads.config.heads
        train, check = (Meshes.read(teacher, side, count) for side in (passages.train, passages.development))
        model = MeshTraining(heads, train, check, tuned)
        model.base = teacher
        return model

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        assert isinstance(model, MeshTraining)
        numbers = [number for number, _ in model.train_on.numbered()]
        chosen = [numbers[place] for place in random.integers(len(numbers), size=self.together)]
        if self.labels == "tokens":
            return printed_loss(model, chosen, self.fixed)
        return joint_loss(model, chosen, self.fixed)

    def export(self, model: nn.Module, folder: Path) -> None:
        """Write the tuned backbone, and heads that are tied to it."""
        assert isinstance(model, MeshTraining) and model.tuned is not None
        model.tuned.export(folder / "backbone")
        merged = model.tuned.merged(f"{self.backbone} merged", folder / "backbone")
        model.heads.config = replace(model.heads.config, backbone=merged.name, fingerprint=merged.fingerprint)
        model.merged = Teacher(merged)
        save_heads(model.heads, folder)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The figures of stage 1 on rows of the merged backbone, and its ``divergence``; see `drift`."""
        assert isinstance(model, MeshTraining) and model.base is not None and model.merged is not None
        passages = model.check_on.passages
        checked = Meshes.read(model.merged, passages, model.heads.config.heads)
        return figures(model, checked) | {"divergence": drift(model.base, model.merged, passages)}


def printed_loss(model: MeshTraining, chosen: Sequence[int], fixed: float) -> Tensor:
    """lambda L_backbone + L_mhd as eqs. 5-7 are printed, a mean over passages.

    L_backbone is the sum over rows s of -log p_{s+1}(y_{s+1}), and L_mhd = sum_d 0.8^d sum_s -log p_{s+d+1}(y_{s+d+1}).
    """
    total = torch.zeros(())
    for number, (own, heads, after) in zip(chosen, tuned_passes(model, chosen), strict=True):
        passage = model.train_on.passages[number]
        labels = torch.tensor(passage.tokens[passage.start :], device=own.device)
        total = total + fixed * functional.cross_entropy(own, labels, reduction="sum")
        for depth, (logits, tokens) in enumerate(zip(heads, after.T, strict=True), 1):
            lost = functional.cross_entropy(logits, tokens, ignore_index=-1, reduction="sum")
            total = total + FADING**depth * lost
    return total / len(chosen)


for _block, _row in (("mlp", "C"), ("cross", "E")):
    GENERAL_RECIPES.register(f"xspecmesh-{_block}-lora")(
        TunePointHeads(
            summary=f"Table 3, row {_row}: any decoder of points learns together with its xspecmesh-{_block} heads",
            requires=(f"xspecmesh-{_block}",),
        )
    )
