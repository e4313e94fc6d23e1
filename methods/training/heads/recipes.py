"""Medusa's heads and those of blockwise decoding for a backbone as it is: `stride train drafter medusa-embedded-code`.

Source: Cai et al. 2024, Medusa, arXiv:2401.10774, section 2.2.1 (Medusa-1: the backbone is frozen) and 2.3.2
(self-distillation: the text is the backbone's own); Stern et al. 2018, arXiv:1811.03115, section 6.
Symbols: D heads, K ids proposed; head d is to guess the token d + 2 behind the one whose row it reads, from d = 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.registry import RECIPES
from harness.train.loop import Recipe
from harness.train.passages import Plan, passages_of
from methods.drafters.heads.net import Config, Heads
from methods.training.heads.examples import counted, examples
from methods.training.heads.figures import figures, save
from methods.training.heads.heads_in_training import Training, frequent

FADING = 0.8
"""Of the heads' weights in the loss, with their depth."""


@dataclass(frozen=True, kw_only=True)
class TrainHeads(Recipe):
    """Cross-entropy of all heads on the backbone's own passages; only the heads are trained.

    Args:
        backbone: a preset. plan: of its passages. heads: D. layers, inner, own: see `Config`. kept: K, the ids that the
            passages have most often; 0: all. batch: rows of a step.
    """

    summary: str
    backbone: str
    plan: Plan
    heads: int = 4
    layers: int = 1
    inner: int = 0
    kept: int = 0
    own: bool = False
    batch: int = 512

    kind = "drafter"
    source = "passages of the backbone itself, drawn with a fixed seed"
    steps: int = 400
    hours: float = 0.35
    rate: float = 2e-3
    warmup = 20
    fall = 0.95
    decay = 0.0
    betas = (0.9, 0.95)

    def build(self, requirements: Mapping[str, Path]) -> nn.Module:
        """Draws the backbone's passages first where the cache holds none, and reads them once.

        Raises:
            WeightsError: the backbone's weights cannot be had.
        """
        found = passages_of(self.backbone, self.plan)
        teacher, target = found.teacher, found.teacher.backbone
        ids = frequent(found.train, self.kept) if self.kept else None
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
        heads = Heads(config, target.tied_embeddings().unembed.float(), ids)
        told, asked = (examples(teacher, passages, self.heads) for passages in (found.train, found.development))
        by_counts = counted(teacher, found.train, found.development, self.heads)
        return Training(heads, teacher.capabilities.vocabulary, told, asked, by_counts)

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        assert isinstance(model, Training)
        chosen = torch.from_numpy(random.integers(len(model.train_on.rows), size=self.batch))
        with torch.autocast("cpu", torch.bfloat16):
            logits = model.heads(model.train_on.rows[chosen])
        wanted = model.column[model.train_on.after[chosen]]
        total = torch.zeros(())
        for head, (probs, column) in enumerate(zip(logits.float(), wanted.T, strict=True)):
            total = total + FADING ** (head + 1) * functional.cross_entropy(probs, column, ignore_index=-1)
        return total

    def export(self, model: nn.Module, folder: Path) -> None:
        assert isinstance(model, Training)
        save(model, folder)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """On development passages; see `figures`."""
        assert isinstance(model, Training)
        return figures(model)


MADE: Mapping[str, Mapping[str, Any]] = {
    "embedded-code": {"plan": Plan("code", train=8, development=2, new=96)},
    "embedded-image": {
        "plan": Plan("scenes", train=6, development=1, new=272),
        "layers": 2,
        "own": True,
        "steps": 600,
        "rate": 1e-3,
    },
    "smollm2-135m": {"plan": Plan("text", train=5, development=1), "kept": 8192},
}
for _name, _how in MADE.items():
    for _kind, _block in (("medusa", {}), ("blockwise", {"layers": 1, "inner": 512, "own": False})):
        RECIPES.register(f"{_kind}-{_name}")(
            TrainHeads(summary=f"{_kind} heads of {_name}", backbone=_name, **{**_how, **_block})
        )
