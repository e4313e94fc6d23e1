"""XSpecMesh's heads for a mesh backbone: `stride train heads xspecmesh-cross`.

Source: Chen et al., XSpecMesh, sections 4.3, 5.1, 5.4 (Table 3, rows B and D) and 7.1. The cosine ends at a
hundredth of the peak rate; the paper's ends at a tenth, as it does with `--set schedule=paper`.
Symbols: D heads. Head d, from 0, guesses the token d + 2 positions after the row that it reads; w = 0.8^(d + 1).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.task import Prompt
from stridebench.harness.registry import GENERAL_RECIPES, RECIPES
from stridebench.harness.synthetic import shapes
from stridebench.harness.synthetic.shape_data import DATA
from stridebench.harness.train.backbones.shapes_mesh import POINTS, SAMPLING
from stridebench.harness.train.finetuning import FinetunedBPT, FinetunedMesh, Tuning, load_backbone
from stridebench.harness.train.loop import Recipe, autocast
from stridebench.harness.train.passages import AnyPlan, continued
from stridebench.harness.train.teacher import Passage, Teacher
from stridebench.methods.drafters.heads.net import Config, Heads
from stridebench.methods.training.heads.examples import Examples, HeadTraining, examples, frequent, head_losses, hits
from stridebench.methods.training.heads.recipes import compared, save_heads

# Meshes that a backbone generates from point clouds, to train heads on; see `stridebench.harness.train.passages`.
# Both sides draw shapes of the training split, with different seeds. The test split belongs to the benchmark.
# Symbols: D heads, M rows of a condition, C its width.


BATCH = 16
"""Passages of a file of the cache."""


@dataclass(frozen=True)
class ShapePlan:
    """Number of shapes of each side, the most tokens of a passage, and a name of `harness.synthetic.shape_data`."""

    train: int = 512
    development: int = 48
    new: int = 383
    data: str = "furniture"

    def sides(self, teacher: Teacher, heads: int) -> tuple[Meshes, Meshes]:
        """Meshes to train on and meshes to measure on, with the tokens that D heads are to guess."""
        counts = (("train", self.train), ("development", self.development))
        passages = (drawn(teacher, side, count, self.new, self.data) for side, count in counts)
        train, check = (Meshes.read(teacher, chosen, heads) for chosen in passages)
        return train, check


def drawn(teacher: Teacher, side: str, count: int, new: int, data: str = "furniture") -> list[Passage]:
    """Passages of the first shapes of a side. A larger number reuses the files of a smaller one."""
    passages: list[Passage] = []
    for number in range(-(-count // BATCH)):
        prompts = [_prompt(side, number * BATCH + index, data) for index in range(BATCH)]
        path = teacher.home / f"{data}-{new}-{side}-{number:04}.json"
        if not path.is_file():
            first = number * BATCH
            print(f"{teacher.backbone.name}: {side} shapes from {first} of {count}", file=sys.stderr, flush=True)
        draws = SeededDraws(0, "distilled", side, number, teacher.backbone.device)
        passages += continued(teacher, path, prompts, new, SAMPLING, draws)
    return passages[:count]


def _prompt(side: str, index: int, data: str) -> Prompt:
    random = np.random.default_rng([*side.encode(), index])
    shape = DATA[data](random, "train", None)
    return Prompt(f"{side}/{index}", condition=shapes.points(shape.mesh, POINTS, random))


class Meshes(NamedTuple):
    """Passages, their hidden rows, and the latents of each one's points."""

    passages: Sequence[Passage]
    rows: Examples
    conditions: Float[Tensor, "P M C"]

    @staticmethod
    def read(teacher: Teacher, passages: Sequence[Passage], heads: int) -> Meshes:
        """One pass a passage."""
        conditions = torch.stack([teacher.condition(passage) for passage in passages]).float()
        return Meshes(passages, examples(teacher, passages, heads), conditions)

    def of(self, number: int) -> Examples:
        """Return the rows of one passage; none if the passage is too short."""
        begin, end = torch.searchsorted(self.rows.passage, torch.tensor([number, number + 1])).tolist()
        return Examples(*(column[begin:end] for column in self.rows))

    def numbered(self) -> Iterator[tuple[int, Examples]]:
        """Number and rows of every passage that has rows."""
        for number in range(len(self.passages)):
            if len((examples := self.of(number)).rows):
                yield number, examples


# XSpecMesh's heads in training: their meshes, their losses, and their figures on held-out shapes.
# Source: Chen et al., XSpecMesh, eqs. 5-7. Symbols: D heads, N rows of a passage.


Tuned = FinetunedMesh | FinetunedBPT
"""A decoder that learns."""


class MeshTraining(nn.Module):
    """Heads, the backbone if it learns with them, and what both are trained on.

    Attributes:
        heads: to be trained.
        tuned: the backbone that learns, or None.
        train_on: meshes of the loss.
        check_on: meshes of the figures.
        column: as of `HeadTraining`.
        base: the backbone as it was.
        merged: the backbone as it was exported.
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
    right = {key: torch.cat([_hits(trained, checked, n) for n in numbers]) for key, trained in heads.items()}
    return compared(right, checked.rows)


def drift(base: Teacher, merged: Teacher, passages: Sequence[Passage]) -> float:
    """KL(base || merged) in nats: the mean over all generated tokens of passages."""
    divergences = []
    for passage in passages:
        p, q = (teacher.read(passage, (), logits=True).logits[passage.start - 1 : -1] for teacher in (base, merged))
        divergences.append(divergence(p, q))
    return float(torch.cat(divergences).mean())


def divergence(base: Float[Tensor, "N V"], tuned: Float[Tensor, "N V"]) -> Float[Tensor, " N"]:
    """KL(base || tuned) of the distributions of two sets of logits."""
    p, q = base.double().log_softmax(-1), tuned.double().log_softmax(-1)
    return (p.exp() * (p - q)).masked_fill(p == -torch.inf, 0).sum(-1)  # of ids that are never drawn


def _hits(heads: Heads, checked: Meshes, number: int) -> Tensor:
    return hits(heads, checked.of(number), heads.look(checked.conditions[number].to(heads.shared)))


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
        backbone: a preset; "": ours, from the folder of the first recipe in `requires`.
        target: the name of ours.
        cross: whether the heads attend to the latents of the points.
        blocks: residual blocks of each head, behind the attention.
        inner: of a block; see `stridebench.methods.drafters.heads.net.Config`.
        own: whether each head has a separate unembedding.
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
        """Return new heads. Generates the backbone's meshes first if the cache holds none."""
        if isinstance(self.plan, ShapePlan):
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


# XSpecMesh's heads and the backbone tuned together: `stride train heads xspecmesh-cross-lora`.
# Source: Chen et al., XSpecMesh, sections 5.4 (Table 3, rows C and E) and 7.6.


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
        assert isinstance(self.plan, ShapePlan), "stage 2 is for our shipped backbone"
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
