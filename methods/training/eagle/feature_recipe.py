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
from jaxtyping import Int
from torch import Tensor, nn

from stridebench.harness.core.capabilities import Tap
from stridebench.harness.train.loop import Recipe, round_to_bf16, save_bf16
from stridebench.harness.train.passages import AnyPlan, Plan, passages_of
from stridebench.methods.drafters.eagle.net import FeatureNet
from stridebench.methods.drafters.eagle.shape import Kind, Shape
from stridebench.methods.training.eagle.examples import Batch, collate, commonest, examples
from stridebench.methods.training.eagle.figures import figures
from stridebench.methods.training.eagle.losses import noisy, round_losses
from stridebench.methods.training.eagle.student import Lessons, Student


@dataclass(frozen=True, kw_only=True)
class FeatureRecipe(Recipe):
    """A drafter for one backbone, trained on what the backbone itself wrote.

    Args:
        backbone: a preset.
        eagle: eagle1 or eagle3.
        plan: of the passages.
        heads: attention heads of its layer; 0: of 128 numbers each, or as few as fit.
        kv_heads: heads of keys and values; 0: as many.
        inner: width of the gated product; 0: 8 thirds of the backbone's width.
        theta: base of the rotary positions.
        kept: most ids that it proposes, the most frequent ones of the backbone; 0: all that may be drawn.
        rounds: of the training-time test.
        rows: passages of a step.
        empty: share of them that is read in the branch without the condition.
        noise: width of the uniform noise on features, in units of their root mean square.
        regress: weight of the smooth L1 of features.
        classify: weight of the soft cross-entropy.
        device: that the drafter learns on.
    """

    summary: str
    backbone: str
    eagle: Kind = "eagle1"
    plan: Plan | AnyPlan
    heads: int = 0
    kv_heads: int = 0
    inner: int = 0
    theta: float = 10000.0
    kept: int = 0
    rounds: int = 1
    rows: int = 8
    empty: float = 0.1
    noise: float = 0.2
    regress: float = 1.0
    classify: float = 0.1
    device: str = "cpu"
    steps: int = 1600
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
        lessons = Lessons(teacher, tied.embed.float(), tied.unembed.float(), train, development, tied.lift)
        width, ids = teacher.capabilities.width, self._proposed(lessons)
        heads = self.heads or next(n for n in range(max(1, width // 128), width) if width % (2 * n) == 0)
        shape = Shape(
            self.eagle,
            width,
            heads,
            self.kv_heads or heads,
            self.inner or 8 * width // 3,
            taps=max(1, len(self.taps)),
            kept=len(ids),
            branches=teacher.capabilities.branches,
            theta=self.theta,
            backbone=self.backbone,
            fingerprint=teacher.backbone.fingerprint,
        )
        (net := FeatureNet(shape)).ids.copy_(ids)
        if self.eagle == "eagle3" and tied.lift is None:
            net.unembed.weight.data.copy_(lessons.unembed[net.ids.to(lessons.unembed.device)])
        return Student(net, lessons)

    def _proposed(self, lessons: Lessons) -> Int[Tensor, " K"]:
        """The ids that the drafter proposes; none: eagle1 with the backbone's whole unembedding."""
        vocabulary, grid = len(lessons.unembed), lessons.teacher.capabilities.grid
        if not self.kept and self.eagle == "eagle1":
            return torch.zeros(0, dtype=torch.long)
        drawn = range(vocabulary) if grid is None or grid.ids is None else grid.ids
        if not 0 < self.kept < len(drawn):
            return torch.tensor(list(drawn))
        return commonest(lessons.train, self.kept, vocabulary)

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        student = cast(Student, model)
        train, teacher = student.lessons.train, student.lessons.teacher
        chosen = random.choice(len(train), min(self.rows, len(train)), replace=False)
        dropped = random.random(len(chosen)) < self.empty
        branches = [int(drop and teacher.capabilities.branches > 1) for drop in dropped]
        batch = collate([train[i] for i in chosen], branches, teacher, student.proposed)
        return self.terms(student, batch.to(student.device))

    def terms(self, student: Student, batch: Batch) -> Tensor:
        """The loss of a batch."""
        features = noisy(batch.features, self.noise)
        return round_losses(student, batch, features, self.rounds, self.regress, self.classify)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Figures on passages of held-out prompts, and those of controls; see `figures`."""
        return figures(cast(Student, model))

    def export(self, model: nn.Module, folder: Path) -> None:
        net = cast(Student, model).net
        round_to_bf16(net.parameters())
        save_bf16(net, folder)
        net.shape.write(folder)
