"""Medusa's heads and those of blockwise decoding for a frozen backbone: `stride train drafter medusa-embedded-code`.

Source: Cai et al. 2024, Medusa, arXiv:2401.10774, section 2.2.1 (Medusa-1: the backbone is frozen) and 2.3.2
(self-distillation: the backbone wrote the text); Stern et al. 2018, arXiv:1811.03115, section 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from stridebench.harness.registry import GENERAL_RECIPES
from stridebench.harness.train.passages import AnyPlan, PassagePlan, passages_of
from stridebench.harness.train.recipe import Recipe, autocast, round_to_bf16, save_bf16
from stridebench.methods.drafters.heads.net import Config, Heads
from stridebench.methods.training.heads.examples import (
    Examples,
    HeadTraining,
    frequent,
    head_losses,
    hits,
    lead,
    shares,
)

# The export of trained heads, and how often they are right.


def save_heads(heads: Heads, folder: Path) -> None:
    """Write heads in bf16 with their configuration."""
    round_to_bf16(heads.parameters())
    save_bf16(heads, folder)
    heads.config.write(folder)


def save(model: HeadTraining, folder: Path) -> None:
    """Write heads in bf16; their configuration says how often each of their best tokens was right."""
    round_to_bf16(model.heads.parameters())
    accuracies = shares(hits(model.heads, model.check_on), model.check_on)
    ranks = tuple(tuple(round(share, 4) for share in row) for row in accuracies)
    model.heads.config = replace(model.heads.config, ranks=ranks)
    save_heads(model.heads, folder)


def figures(model: HeadTraining) -> dict[str, float]:
    """Figures on development passages.

    - ``top1_head*``, ``top3_head*``: how often the head's best token, or one of its three best ones, is right.
    - ``_untrained``: the same of new heads, which repeat the target's prediction of the next token.
    - ``_shuffled``: the same of heads whose weights have their entries in another order.
    - ``_ngram``: the same of an n-gram of the training passages.
    - ``_lead``: lower end of the 95 % interval of the gain of ``top1`` over each control.
    """
    heads = {"": model.heads, "_untrained": model.control(), "_shuffled": model.control(shuffled=True)}
    correct = {key: hits(variant, model.check_on) for key, variant in heads.items()}
    correct |= {} if model.ngram_hits is None else {"_ngram": model.ngram_hits}
    return compared(correct, model.check_on)


def compared(correct: Mapping[str, Tensor], examples: Examples) -> dict[str, float]:
    """`hits` of the heads (with key "") and of their controls, as the figures of a card."""
    table = {"rows": float(len(examples.rows))}
    for key, hit in correct.items():
        for head, share in enumerate(shares(hit, examples), 1):
            table |= {f"top1_head{head}{key}": share[0], f"top3_head{head}{key}": sum(share[:3])}
        if key:
            gains = lead(correct[""], hit, examples)
            table |= {f"top1_head{head}{key}_lead": gain for head, gain in enumerate(gains, 1)}
    return table


# Parts that the recipes of Medusa's heads share, and the training of heads alone.
# Sources: Cai et al. 2024, Medusa, arXiv:2401.10774, section 2.2.1 (Medusa-1: the backbone is frozen); Stern et al.
# 2018, arXiv:1811.03115, section 6. Symbols: D heads, K proposed ids. Head d, from 0, guesses the token d + 2
# positions after the row that it reads.


@dataclass(frozen=True, kw_only=True)
class MedusaRecipe(Recipe):
    """Settings of Medusa-1 and Medusa-2."""

    summary: str
    backbone: str
    plan: PassagePlan | AnyPlan
    hours: float = 0.35
    device: str = "cpu"

    kind = "drafter"
    source = "passages of the backbone itself, drawn with a fixed seed"
    fall = 0.95
    decay = 0.0
    betas = (0.9, 0.95)


@dataclass(frozen=True, kw_only=True)
class TrainHeads(MedusaRecipe):
    """Cross-entropy of all heads on the backbone's passages; only the heads are trained.

    Args:
        heads: D.
        layers: see `Config`.
        inner: see `Config`.
        kept: K, the most frequent ids of the passages; 0: all.
        own: see `Config`.
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
        """Return new heads with their examples. Generates the backbone's passages first if the cache holds none."""
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
        return HeadTraining.on(heads, passages)

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        assert isinstance(model, HeadTraining)
        device = model.heads.shared.device
        chosen = torch.from_numpy(random.integers(len(model.train_on.rows), size=self.batch))
        with autocast(device=device.type):
            logits = model.heads(model.train_on.rows[chosen].to(model.heads.shared))
        return head_losses(logits.float(), model.column[model.train_on.after[chosen]].to(device))

    def export(self, model: nn.Module, folder: Path) -> None:
        assert isinstance(model, HeadTraining)
        save(model, folder)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Figures on development passages; see `figures`."""
        assert isinstance(model, HeadTraining)
        return figures(model)


for _kind, _inner in (("medusa", 0), ("blockwise", 512)):
    GENERAL_RECIPES.register(_kind)(
        TrainHeads(summary=f"{_kind} heads of any backbone", backbone="", plan=PassagePlan("text"), inner=_inner)
    )
