"""XSpecMesh's heads for a mesh backbone: `stride train heads xspecmesh-cross`.

Source: Chen et al., XSpecMesh, sections 4.3, 5.1, 5.4 (Table 3, rows B and D) and 7.1.
Symbols: D heads. Head d, from 0, guesses the token d + 2 positions after the row that it reads; w = 0.8^(d + 1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.errors import UsageError
from stridebench.harness.registry import GENERAL_RECIPES
from stridebench.harness.train.finetuning import FinetunedBPT, FinetunedMesh, Tuning, finetuned, load_backbone
from stridebench.harness.train.general import TaskPlan
from stridebench.harness.train.passages import AnyPlan
from stridebench.harness.train.recipe import Recipe, autocast
from stridebench.harness.train.teacher import Teacher
from stridebench.methods.drafters.heads.net import Config, Heads
from stridebench.methods.training.heads.examples import (
    FADING,
    HeadTraining,
    Meshes,
    ShapePlan,
    frequent,
    head_losses,
    hits,
    meshes_of,
)
from stridebench.methods.training.heads.recipes import compared, drift, save_heads

# XSpecMesh's heads in training: their meshes, their losses, and their figures on held-out shapes.
# Source: Chen et al., XSpecMesh, eqs. 5-7. Symbols: D heads, N rows of a passage.


Tuned = FinetunedMesh | FinetunedBPT
"""A decoder that learns."""


class MeshTraining(nn.Module):
    """Heads, the backbone if it learns with them, and what both are trained on.

    Attributes:
        tuned: the backbone that learns, or None.
    """

    def __init__(self, heads: Heads, train_on: Meshes, check_on: Meshes, tuned: Tuned | None = None) -> None:
        super().__init__()
        self.heads, self.tuned = heads, tuned
        self.train_on, self.check_on = train_on, check_on
        most = max(int(ids.max()) for ids in (heads.ids, train_on.rows.after, check_on.rows.after))
        self.column = torch.full((most + 2,), -1)
        self.column[heads.ids.cpu()] = torch.arange(len(heads.ids))
        self.base: Teacher | None = None
        self.merged: Teacher | None = None

    def controls(self) -> dict[str, Heads]:
        """Untrained heads, and heads whose weights have their entries in another order."""
        training = HeadTraining(self.heads, len(self.column) - 1, self.train_on.rows, self.check_on.rows)
        return {"_untrained": training.control(), "_shuffled": training.control(shuffled=True)}


def head_loss(model: MeshTraining, chosen: Sequence[int]) -> Tensor:
    """Sum of w(d) L_d (eq. 6), a mean over passages. Each L_d is a mean over the rows that have a token to guess."""
    total = torch.zeros(())
    for number in chosen:
        examples, shared = model.train_on.of(number), model.heads.shared
        if not len(examples.rows):
            continue
        with autocast(device=shared.device.type):
            condition = model.train_on.conditions[number].to(shared)
            logits = model.heads(examples.rows.to(shared), model.heads.look(condition))
        total = total + head_losses(logits.float(), model.column[examples.after].to(shared.device))
    return total / len(chosen)


def joint_loss(model: MeshTraining, chosen: Sequence[int], fixed: float) -> Tensor:
    """lambda L_backbone + L_mhd (eq. 7), on rows that the backbone computes now.

    L_backbone is a cross-entropy to the base model's distributions at temperature 1, not to the tokens of the passages.
    Those tokens were drawn at the temperature of decoding. A model trained on them would be sharpened twice.
    """
    base, total = model.base, torch.zeros(())
    assert base is not None
    passages = [model.train_on.passages[number] for number in chosen]
    targets = [base.read(p, (), logits=True).logits[p.start - 1 : -1].float().softmax(-1) for p in passages]
    for (own, logits, after), probs in zip(tuned_passes(model, chosen), targets, strict=True):
        distance = functional.cross_entropy(own, probs.to(own)[:, : own.shape[1]])
        total = total + fixed * distance + head_losses(logits, after)
    return total / len(chosen)


def tuned_passes(model: MeshTraining, chosen: Sequence[int]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Of each passage the tuned backbone's logits [N, V], the heads' [D, n, V] and the tokens to guess [n, D]."""
    tuned, shared = model.tuned, model.heads.shared
    passes = []
    assert tuned is not None
    with autocast(device=shared.device.type):
        table = tuned.table()
        if model.heads.own is None and isinstance(tuned, FinetunedMesh):
            model.heads.shared = table[model.heads.ids]
        for number in chosen:
            examples, passage = model.train_on.of(number), model.train_on.passages[number]
            tokens, points = torch.tensor(passage.tokens[:-1]), torch.from_numpy(passage.condition)
            rows = tuned(tokens.to(shared.device), points.to(shared), table)[passage.start - 1 :]
            condition = model.heads.look(model.train_on.conditions[number].to(shared))
            logits = model.heads(rows[: len(examples.rows), None], condition)
            after = model.column[examples.after].to(shared.device)
            passes.append((tuned.logits(rows, table).float(), logits.float(), after))
    return passes


@torch.no_grad()
def figures(model: MeshTraining, checked: Meshes) -> dict[str, float]:
    """How often the best token of each head is right, for the heads and their controls; see `compared`."""
    heads = {"": model.heads, **model.controls()}
    numbers = [number for number, _ in checked.numbered()]
    right = {
        key: torch.cat([hits(net, checked.of(n), net.look(checked.conditions[n].to(net.shared))) for n in numbers])
        for key, net in heads.items()
    }
    return compared(right, checked.rows)


NAME = "embedded-mesh"


@dataclass(frozen=True, kw_only=True)
class MeshHeadsRecipe(Recipe):
    """Settings of both stages.

    Args:
        plan: of the shapes, or of other prompts of points.
    """

    summary: str
    plan: ShapePlan | AnyPlan = field(default_factory=ShapePlan)
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

    Heads of our shipped backbone propose the ids of its training meshes, a quarter of all. They share the backbone's
    unembedding, whose rows of neighbouring corners are alike: after 150 steps with one block the best token of head 1
    was right in 12 % with it, and in 8 % with a separate unembedding.

    Args:
        backbone: a name; of shapes, ours from the folder of the first recipe in `requires`.
        cross: whether the heads attend to the latents of the points.
        blocks: residual blocks of each head, behind the attention.
        inner: of a block; see `stridebench.methods.drafters.heads.net.Config`.
        own: whether each head has a separate unembedding.
        heads: D.
    """

    backbone: str = NAME
    cross: bool
    blocks: int = 2
    inner: int = 256
    own: bool = False
    heads: int = 4
    attention: int = 4
    together: int = 4
    steps: int = 2200
    hours: float = 1.5

    requires: tuple[str, ...] = ("shapes-mesh",)

    paper = MappingProxyType({"epochs": 30, "rate": 5e-4, "warmup": 1, "floor": 0.1, "hours": 1e4})

    def build(self, requirements: Mapping[str, Path]) -> nn.Module:
        """Return new heads. Generates the backbone's meshes first if the cache holds none."""
        if isinstance(self.plan, ShapePlan):
            teacher = Teacher(load_backbone(self.backbone, requirements[self.requires[0]]))
            sides = meshes_of(teacher, self.plan, None, self.heads)
            ids = frequent(sides[0].passages, teacher.capabilities.vocabulary)
        else:
            passages = self.plan.passages(self.backbone)
            teacher = passages.teacher
            sides = meshes_of(teacher, self.plan, passages, self.heads)
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


for _block, _cross in (("mlp", False), ("cross", True)):
    GENERAL_RECIPES.register(f"xspecmesh-{_block}")(
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


# XSpecMesh's heads and the backbone tuned together: `stride train xspecmesh-cross-lora --backbone bpt`.
# Source: Chen et al., XSpecMesh, sections 4.3 (eqs. 5-7), 5.4 (Table 3, rows C and E), 7.1 and 7.6.
# Symbols: D heads, lambda the weight of the backbone's loss; y the tokens that the base model generated.


@dataclass(frozen=True, kw_only=True)
class TuneMeshHeads(MeshHeadsRecipe):
    """Heads of stage 1 and a decoder of points together; exports heads, and the tuned decoder in ``backbone``.

    The folder holds low-rank matrices, or all weights if the rank is 0. ``bpt:lora=OUT/backbone`` is BPT with their
    products added; a backbone of ours is a preset of ``adapter: mesh`` and ``source: {folder: OUT/backbone}``.

    Args:
        requires: the recipe of the heads; of our shipped backbone that of the backbone stands before it.
        rank: of the matrices; 0: all weights learn (of our shipped decoders).
        alpha: their product is scaled by alpha / rank; the paper's W + AB leaves that out.
        fixed: lambda.
        labels: for the backbone's loss. probs: the base model's distributions, see `joint_loss`.
            tokens: y, in sums over rows, as eq. 7 is printed.
    """

    backbone: str = NAME
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
        """The heads of stage 1 and the decoder, with meshes that the decoder generates."""
        *bases, stage_1 = (requirements[name] for name in self.requires)
        tuning, passages = Tuning(self.rank, self.alpha), None
        if isinstance(self.plan, ShapePlan):
            teacher = Teacher(load_backbone(self.backbone, bases[0]))
            tuned: Tuned = FinetunedMesh(bases[0], tuning)
        elif isinstance(self.plan, TaskPlan):
            tuned = finetuned(self.backbone, tuning, self.device)
            passages = self.plan.passages(self.backbone)
            teacher = passages.teacher
        else:
            raise UsageError(
                "heads of a mesh decoder learn from point clouds; give a task such as point_clouds as --data"
            )
        heads = Heads.load(stage_1, teacher.backbone.tied_embeddings).float().requires_grad_()
        if heads.config.fingerprint != teacher.backbone.fingerprint:
            raise UsageError(
                f"the heads in {stage_1} were trained for {heads.config.backbone} with other weights than those of "
                f"{self.backbone}: train them with stride train {self.requires[-1]} --backbone {self.backbone}"
            )
        model = MeshTraining(heads, *meshes_of(teacher, self.plan, passages, heads.config.heads), tuned)
        model.base = teacher
        return model

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        assert isinstance(model, MeshTraining)
        numbers = [number for number, _ in model.train_on.numbered()]
        chosen = [numbers[place] for place in random.integers(len(numbers), size=self.together)]
        return (printed_loss if self.labels == "tokens" else joint_loss)(model, chosen, self.fixed)

    def export(self, model: nn.Module, folder: Path) -> None:
        """Write the tuned backbone, and heads that are tied to it."""
        assert isinstance(model, MeshTraining) and model.tuned is not None
        model.tuned.export(folder / "backbone")
        merged = model.tuned.merged(f"{self.backbone} merged", folder / "backbone")
        model.heads.config = replace(model.heads.config, backbone=merged.name, fingerprint=merged.fingerprint)
        model.merged = Teacher(merged)
        if model.heads.own is None:
            model.heads.shared = merged.tied_embeddings().unembed.float()[model.heads.ids]
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
        TuneMeshHeads(
            summary=f"Table 3, row {_row}: any decoder of points learns together with its xspecmesh-{_block} heads",
            requires=(f"xspecmesh-{_block}",),
        )
    )
