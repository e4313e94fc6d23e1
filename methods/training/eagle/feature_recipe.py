"""What the recipes of EAGLE's drafters share.

Sources: EAGLE-1, arXiv:2401.15077, section 3.3: smooth L1 of features + 0.1 x soft cross-entropy; EAGLE-3,
arXiv:2503.01840: soft cross-entropy alone, with weight 0.8^i in round i of a training-time test. The published settings
are 20 epochs of 68,000 dialogues at a rate of 3e-5 and batches of 4; the defaults here are for small backbones.
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
from harness.train.loop import Recipe, round_to_bf16, save_bf16
from harness.train.passages import Plan, passages_of
from methods.drafters.eagle.net import FeatureNet, Kind, Shape
from methods.training.eagle.examples import Batch, collate, commonest, examples
from methods.training.eagle.figures import figures
from methods.training.eagle.student import Lessons, Student
from methods.training.eagle.training_time_test import unroll


@dataclass(frozen=True, kw_only=True)
class FeatureRecipe(Recipe):
    """A drafter for one backbone, trained on what the backbone itself wrote.

    Args:
        backbone: a preset.
        eagle: eagle1 or eagle3.
        plan: of the passages.
        heads: attention heads of its layer.
        kv_heads: heads of keys and values.
        inner: width of the gated product.
        theta: base of the rotary positions.
        kept: number of ids that it proposes, the most frequent ones of the backbone; 0: all.
        rounds: of the training-time test.
        rows: passages of a step.
        empty: share of them that is read in the branch without the condition.
        noise: width of the uniform noise on features, in units of their root mean square.
        regress: weight of the smooth L1 of features.
        classify: weight of the soft cross-entropy.
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
    source = "passages that the backbone wrote itself (see harness/train/passages.py)"
    betas = (0.9, 0.95)
    decay = 0.01
    clip = 0.5
    fall = 0.8

    @property
    def taps(self) -> tuple[Tap, ...]:
        """Layers of the backbone that the drafter reads, in addition to what the head reads."""
        return (2, "middle", -4) if self.eagle == "eagle3" else ()

    def build(self, requirements: Mapping[str, Path]) -> Student:
        """A student. Generates the passages first where the cache holds none.

        Raises:
            UsageError: there is no such backbone.
            WeightsError: its weights cannot be had.
        """
        passages = passages_of(self.backbone, self.plan)
        teacher = passages.teacher
        train, development = (examples(teacher, side, self.taps) for side in (passages.train, passages.development))
        tied = teacher.backbone.tied_embeddings()
        lessons = Lessons(teacher, tied.embed.float(), tied.unembed.float(), train, development)
        shape = Shape(
            self.eagle,
            teacher.capabilities.width,
            self.heads,
            self.kv_heads,
            self.inner,
            taps=max(1, len(self.taps)),
            kept=self.kept,
            branches=teacher.capabilities.branches,
            theta=self.theta,
            backbone=self.backbone,
            fingerprint=teacher.backbone.fingerprint,
        )
        net = FeatureNet(shape)
        if self.kept:
            net.ids.copy_(commonest(lessons.train, self.kept, teacher.capabilities.vocabulary))
        if self.eagle == "eagle3":
            net.unembed.weight.data.copy_(lessons.unembed[net.ids])
        return Student(net, lessons)

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        student = cast(Student, model)
        train, teacher = student.lessons.train, student.lessons.teacher
        chosen = random.choice(len(train), min(self.rows, len(train)), replace=False)
        dropped = random.random(len(chosen)) < self.empty
        branches = [int(drop and teacher.capabilities.branches > 1) for drop in dropped]
        return self.terms(student, collate([train[i] for i in chosen], branches, teacher, student.proposed))

    def terms(self, student: Student, batch: Batch) -> Tensor:
        """The loss of a batch."""
        net, embed = student.net, student.lessons.embed
        scale = batch.features.square().mean((0, 1, 3), keepdim=True).sqrt()
        features = batch.features + self.noise * scale * (torch.rand_like(batch.features) - 0.5)
        with torch.autocast("cpu", torch.bfloat16):
            rounds = unroll(net, embed[batch.tokens], features, batch.visible, self.rounds)
            total = torch.zeros(())
            for i, out in enumerate(rounds):
                counted = batch.counted[:, i:]
                heads, rows = batch.heads[:, i:][counted], out[:, : out.shape[1] - i][counted]
                p, log_q = student.target_logits(heads).softmax(-1), student.draft_logits(rows).log_softmax(-1)
                regression = functional.smooth_l1_loss(rows.float(), heads) if self.regress else 0.0
                classification = -(p * log_q).sum(-1).mean()
                total = total + 0.8**i * (self.classify * classification + self.regress * regression)
        return total

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Figures on passages of held-out prompts, and those of controls; see `figures`."""
        return figures(cast(Student, model))

    def export(self, model: nn.Module, folder: Path) -> None:
        net = cast(Student, model).net
        round_to_bf16(net.parameters())
        save_bf16(net, folder)
        net.write_config(folder)
