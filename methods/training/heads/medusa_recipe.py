"""What the recipes of Medusa's heads share, and the training of heads alone.

Sources: Cai et al. 2024, Medusa, arXiv:2401.10774, section 2.2.1 (Medusa-1: the backbone is frozen); Stern et al. 2018,
arXiv:1811.03115, section 6.
Symbols: D heads, K proposed ids. Head d, from 0, guesses the token d + 2 positions after the row that it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from stridebench.harness.train.loop import Recipe
from stridebench.harness.train.passages import AnyPlan, Plan, passages_of
from stridebench.harness.train.precision import autocast
from stridebench.methods.drafters.heads.config import Config
from stridebench.methods.drafters.heads.net import Heads
from stridebench.methods.training.heads.figures import figures, save
from stridebench.methods.training.heads.heads_in_training import Training, frequent, head_losses


@dataclass(frozen=True, kw_only=True)
class MedusaRecipe(Recipe):
    """Settings of Medusa-1 and Medusa-2.

    Args:
        backbone: a preset.
        plan: of its passages.
        device: that the heads learn on.
    """

    summary: str
    backbone: str
    plan: Plan | AnyPlan
    hours: float = 0.35
    device: str = "cpu"

    kind = "drafter"
    source = "passages of the backbone itself, drawn with a fixed seed"
    fall = 0.95
    decay = 0.0
    betas = (0.9, 0.95)


@dataclass(frozen=True, kw_only=True)
class TrainHeads(MedusaRecipe):
    """Cross-entropy of all heads on the backbone's own passages; only the heads are trained.

    Args:
        heads: D.
        layers: see `Config`.
        inner: see `Config`.
        kept: K, the most frequent ids of the passages; 0: all.
        own: see `Config`.
        batch: rows of a step.
    """

    heads: int = 4
    layers: int = 1
    inner: int = 0
    kept: int = 0
    own: bool = False
    batch: int = 512
    steps: int = 400
    rate: float = 2e-3

    warmup = 20

    def build(self, requirements: Mapping[str, Path]) -> nn.Module:
        """New heads with their examples. Generates the backbone's passages first where the cache holds none.

        Raises:
            WeightsError: the backbone's weights cannot be had.
        """
        passages = passages_of(self.backbone, self.plan)
        teacher, target = passages.teacher, passages.teacher.backbone
        ids = frequent(passages.train, self.kept) if self.kept else None
        config = Config(
            target.name,
            target.fingerprint,
            teacher.capabilities.width,
            self.heads,
            self.layers,
            self.inner,
            0 if ids is None else len(ids),
            self.own,
            guidance=teacher.capabilities.guidance,
        )
        tied = target.tied_embeddings()
        heads = Heads(config, tied.unembed.float(), ids)
        heads.lift = tied.lift
        return Training.on(heads, passages)

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        assert isinstance(model, Training)
        device = model.heads.shared.device
        chosen = torch.from_numpy(random.integers(len(model.train_on.rows), size=self.batch))
        with autocast(device=device.type):
            logits = model.heads(model.train_on.rows[chosen].to(model.heads.shared))
        return head_losses(logits.float(), model.column[model.train_on.after[chosen]].to(device))

    def export(self, model: nn.Module, folder: Path) -> None:
        assert isinstance(model, Training)
        save(model, folder)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Figures on development passages; see `figures`."""
        assert isinstance(model, Training)
        return figures(model)
