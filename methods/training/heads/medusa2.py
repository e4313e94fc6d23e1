"""Medusa-2: heads and the backbone that they read learn together: `stride train drafter medusa2-embedded-code`.

Source: Cai et al. 2024, Medusa, arXiv:2401.10774, sections 2.2.2 (joint training, heads first and with a higher rate)
and 2.3.2 (self-distillation: the backbone learns by low-rank matrices, with the base model as its teacher).
Symbols: D heads, lambda_0 the weight of their loss; the backbone's loss has weight 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stridebench.harness.train.finetuning import FinetunedText, Tuning
from stridebench.harness.train.finetuning import load_text_backbone as load_backbone
from stridebench.harness.train.passages import Passages, passages_of
from stridebench.harness.train.recipe import ParameterGroup, autocast
from stridebench.harness.train.teacher import Teacher
from stridebench.methods.drafters.heads.net import Heads
from stridebench.methods.training.heads.examples import HeadTraining, examples, head_losses
from stridebench.methods.training.heads.recipes import MedusaRecipe, figures, save
from stridebench.methods.training.heads.xspecmesh import divergence, drift

# The losses of Medusa-2: of the backbone that learns, and of the heads on its rows.


class JointLosses(NamedTuple):
    """KL(base || tuned) a token, and the heads' weighted cross-entropy."""

    backbone: Tensor
    heads: Tensor


class Joint(nn.Module):
    """Heads and a backbone in training.

    Attributes:
        chosen: training passages that have rows.
    """

    def __init__(self, heads: HeadTraining, tuned: FinetunedText, passages: Passages) -> None:
        super().__init__()
        self.heads, self.tuned, self.passages = heads, tuned, passages
        self.chosen = sorted(set(heads.train_on.passage.tolist()))
        self.merged: Teacher | None = None

    def losses(self, number: int) -> JointLosses:
        """The losses on one training passage."""
        passage = self.passages.train[number]
        tokens, first = torch.tensor(passage.tokens)[None, :-1], passage.start - 1
        tuned = self.tuned(tokens)
        backbone = divergence(self.tuned.base(tokens)[0, first:], tuned.logits[0, first:]).mean()
        after = self.heads.train_on.after[self.heads.train_on.passage == number]
        logits = self.heads.heads(tuned.rows[0, first : first + len(after), None])
        return JointLosses(backbone, head_losses(logits.float(), self.heads.column[after]))


FASTER = 4.0
"""The heads' learning rate as a multiple of the backbone's."""


@dataclass(frozen=True, kw_only=True)
class TuneHeads(MedusaRecipe):
    """Stage 2: Medusa's heads of stage 1 and the backbone together; exports heads, and the merged backbone in
    ``backbone``, which a preset makes a target: ``adapter: hf_causal`` and ``source: {folder: OUT/backbone}``.

    Args:
        requires: the recipe of its heads, which use its unembedding.
        tuning: how the backbone learns; a rank of 1 or more, which leaves the unembedding unchanged.
        fixed: lambda_0.
        together: passages of a step.
    """

    requires: tuple[str, ...]
    tuning: Tuning = field(default_factory=lambda: Tuning(32, 16))
    fixed: float = 0.2
    together: int = 4
    steps: int = 120
    rate: float = 5e-4

    warmup = 10

    def build(self, requirements: Mapping[str, Path]) -> nn.Module:
        """The heads of stage 1 and the backbone, with the passages of stage 1."""
        passages = passages_of(self.backbone, self.plan)
        tied_embeddings = passages.teacher.backbone.tied_embeddings
        heads = Heads.load(requirements[self.requires[0]], tied_embeddings).float().requires_grad_()
        return Joint(HeadTraining.on(heads, passages), FinetunedText(self.backbone, self.tuning), passages)

    def groups(self, model: nn.Module) -> list[ParameterGroup]:
        """The backbone's low-rank matrices, and the heads with their higher rate."""
        assert isinstance(model, Joint)
        slow = [weight for weight in model.tuned.parameters() if weight.requires_grad]
        return [{"params": slow}, {"params": list(model.heads.parameters()), "scale": FASTER}]

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        assert isinstance(model, Joint)
        total = torch.zeros(())
        for number in random.choice(model.chosen, size=min(self.together, len(model.chosen)), replace=False):
            with autocast():
                losses = model.losses(int(number))
            total = total + losses.backbone + self.fixed * losses.heads
        return total / self.together

    def export(self, model: nn.Module, folder: Path) -> None:
        """Tie the heads to the merged backbone, and count their hits on its rows."""
        assert isinstance(model, Joint)
        model.tuned.export(folder / "backbone")
        merged = load_backbone(f"{self.backbone} merged", folder / "backbone")
        model.merged, training = Teacher(merged), model.heads
        config = replace(training.heads.config, backbone=merged.name, fingerprint=merged.fingerprint)
        training.heads.config = config
        training.check_on = examples(model.merged, model.passages.development, config.heads)
        save(training, folder)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The figures of stage 1 on rows of the merged backbone; ``divergence``: KL(base || merged) in nats a token."""
        assert isinstance(model, Joint) and model.merged is not None
        moved = drift(model.passages.teacher, model.merged, model.passages.development)
        return figures(model.heads) | {"divergence": moved}
