"""What the recipes of EAGLE's drafters share.

Sources: EAGLE-1, arXiv:2401.15077, section 3.3: smooth L1 of features + 0.1 x soft cross-entropy; EAGLE-3,
arXiv:2503.01840: soft cross-entropy alone, 0.8^i in round i of a training-time test. Published settings are 20 epochs
of 68,000 dialogues at a rate of 3e-5 and batches of 4; ours are for small backbones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.core.capabilities import Tap
from harness.train.loop import Recipe, save_bf16
from harness.train.passages import Plan, passages_of
from methods.drafters.eagle.net import FeatureNet, Kind, Shape
from methods.training.eagle.examples import Batch, collate, commonest, examples
from methods.training.eagle.figures import figures
from methods.training.eagle.student import Beside, Student
from methods.training.eagle.training_time_test import unroll


@dataclass(frozen=True, kw_only=True)
class FeatureRecipe(Recipe):
    """A drafter for one backbone, on what the backbone itself wrote.

    Args:
        backbone: a preset. eagle: eagle1 or eagle3. plan: of the passages. heads, kv_heads, inner, theta: of its layer.
        kept: ids that it proposes, the likeliest under the backbone; 0: all. rounds: of the training-time test.
        rows: passages a step. empty: share of them in the branch without the condition. noise: width of uniform noise
            on features, in units of their root mean square. regress, classify: weights of features and of laws.
    """

    summary: str
    backbone: str
    eagle: Kind = "eagle1"
    plan: Plan
    heads: int
    kv_heads: int
    inner: int
    theta: float = 10000.0
    kept: int = 0
    rounds: int = 1
    rows: int = 8
    empty: float = 0.1
    noise: float = 0.2
    regress: float = 1.0
    classify: float = 0.1
    steps: int
    hours: float = 0.4
    rate: float = 1e-3
    warmup: int = 50

    kind = "drafter"
    source = "passages that the backbone wrote itself (see methods/training/_distilled.py)"
    betas = (0.9, 0.95)
    decay = 0.01
    clip = 0.5
    fall = 0.8

    @property
    def taps(self) -> tuple[Tap, ...]:
        """Of the backbone, beside what its head reads."""
        return (2, "middle", -4) if self.eagle == "eagle3" else ()

    def build(self, requirements: Mapping[str, Path]) -> Student:
        """Makes the passages first where the cache holds none.

        Raises:
            UsageError, WeightsError: the backbone cannot be had.
        """
        found = passages_of(self.backbone, self.plan)
        teacher = found.teacher
        sides = tuple(examples(teacher, side, self.taps) for side in (found.train, found.development))
        ends = teacher.backbone.tied_embeddings()
        beside = Beside(teacher, ends.embed.float(), ends.unembed.float(), *sides)
        sizes = {"taps": max(1, len(self.taps)), "kept": self.kept, "branches": teacher.capabilities.branches}
        shape = Shape(
            self.eagle,
            teacher.capabilities.width,
            self.heads,
            self.kv_heads,
            self.inner,
            **sizes,
            theta=self.theta,
            backbone=self.backbone,
            fingerprint=teacher.backbone.fingerprint,
        )
        net = FeatureNet(shape)
        if self.kept:
            net.ids.copy_(commonest(beside.train, self.kept, teacher.capabilities.vocabulary))
        if self.eagle == "eagle3":
            net.unembed.weight.data.copy_(beside.unembed[net.ids])
        return Student(net, beside)

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        student = cast(Student, model)
        beside = student.beside
        chosen = random.choice(len(beside.train), min(self.rows, len(beside.train)), replace=False)
        dropped = random.random(len(chosen)) < self.empty
        branches = [int(out and beside.teacher.capabilities.branches > 1) for out in dropped]
        return self.terms(
            student, collate([beside.train[i] for i in chosen], branches, beside.teacher, student.proposed)
        )

    def terms(self, student: Student, batch: Batch) -> Tensor:
        """The loss of a batch."""
        net, beside = student.net, student.beside
        scale = batch.features.square().mean((0, 1, 3), keepdim=True).sqrt()
        features = batch.features + self.noise * scale * (torch.rand_like(batch.features) - 0.5)
        with torch.autocast("cpu", torch.bfloat16):
            made = unroll(net, beside.embed[batch.tokens], features, batch.seen, self.rounds)
            total = torch.zeros(())
            for i, out in enumerate(made):
                counted = batch.counted[:, i:]
                heads, here = batch.heads[:, i:][counted], out[:, : out.shape[1] - i][counted]
                crossed = -(student.wanted(heads).softmax(-1) * student.said(here).log_softmax(-1)).sum(-1)
                near = functional.smooth_l1_loss(here.float(), heads) if self.regress else 0.0
                total = total + 0.8**i * (self.classify * crossed.mean() + self.regress * near)
        return total

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """On passages of held-out prompts, beside an untrained drafter and one whose weights are shuffled."""
        return figures(cast(Student, model))

    def export(self, model: nn.Module, folder: Path) -> None:
        """Round to bf16 first, so that what is measured is what is shipped."""
        net = cast(Student, model).net
        with torch.no_grad():
            for tensor in net.parameters():
                tensor.copy_(tensor.bfloat16())
        save_bf16(net, folder)
        net.write_config(folder)
