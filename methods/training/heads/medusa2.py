"""Medusa-2: heads and the backbone that they read learn together: `stride train drafter medusa2-embedded-code`.

Source: Cai et al. 2024, Medusa, arXiv:2401.10774, sections 2.2.2 (joint training, heads first and with a higher rate)
and 2.3.2 (self-distillation: the backbone learns by low-rank matrices, towards its own law from before).
Symbols: D heads, lambda_0 the weight of their loss beside the backbone's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from harness.registry import RECIPES
from harness.train.finetuned_text import FinetunedText, load_backbone
from harness.train.finetuning import Tuning
from harness.train.loop import Recipe
from harness.train.passages import Passages, Plan, passages_of
from harness.train.teacher import Passage, Teacher
from methods.drafters.heads.net import Heads
from methods.training.heads.examples import counted, examples
from methods.training.heads.figures import figures, save
from methods.training.heads.heads_in_training import Training
from methods.training.heads.recipes import MADE
from methods.training.heads.xspecmesh_losses import divergence, drift, faded

FASTER = 4.0
"""The heads' rate is so many times the backbone's."""


class Joint(nn.Module):
    """Heads and a backbone in training.

    Attributes:
        heads: with what they are trained on. found: the backbone as it was, and its passages. chosen: passages of the
            training's side that have rows.
    """

    def __init__(self, heads: Training, tuned: FinetunedText, found: Passages) -> None:
        super().__init__()
        self.heads, self.tuned, self.found = heads, tuned, found
        self.chosen = sorted(set(heads.train_on.passage.tolist()))
        self.merged: Teacher | None = None

    def losses(self, number: int) -> tuple[Tensor, Tensor]:
        """Of one passage: KL(as it was || as it is) a token, and the heads' weighted cross-entropy on its rows."""
        passage: Passage = self.found.train[number]
        tokens, first = torch.tensor(passage.tokens)[None, :-1], passage.start - 1
        read = self.tuned(tokens)
        kept = divergence(self.tuned.base(tokens)[0, first:], read.logits[0, first:]).mean()
        after = self.heads.train_on.after[self.heads.train_on.passage == number]
        logits = self.heads.heads(read.rows[0, first : first + len(after), None])
        return kept, faded(logits.float(), self.heads.column[after])


@dataclass(frozen=True, kw_only=True)
class TuneHeads(Recipe):
    """Stage 2: Medusa's heads of stage 1 and the backbone together; exports heads, and the merged backbone in
    ``backbone``, which a preset makes a target: ``adapter: hf_causal`` and ``source: {folder: OUT/backbone}``.

    Args:
        backbone: a preset. plan: of its passages. requires: the recipe of its heads, which use its unembedding.
        how: the backbone learns; a rank of 1 or more, which leaves that unembedding as it is. fixed: lambda_0.
        together: passages of a step.
    """

    summary: str
    backbone: str
    plan: Plan
    requires: tuple[str, ...]
    tuning: Tuning = field(default_factory=lambda: Tuning(32, 16))
    fixed: float = 0.2
    together: int = 4

    kind = "drafter"
    source = "passages of the backbone itself, drawn with a fixed seed"
    steps: int = 120
    hours: float = 0.35
    rate: float = 5e-4
    warmup = 10
    fall = 0.95
    decay = 0.0
    betas = (0.9, 0.95)

    def build(self, requirements: Mapping[str, Path]) -> nn.Module:
        """The same passages as in stage 1.

        Raises:
            WeightsError: the backbone's weights or its heads cannot be had. UsageError: peft is not here.
        """
        found = passages_of(self.backbone, self.plan)
        target = found.teacher.backbone
        heads = Heads.load(requirements[self.requires[0]], target.tied_embeddings).float().requires_grad_()
        count = heads.config.heads
        told, asked = (examples(found.teacher, passages, count) for passages in (found.train, found.development))
        by_counts = counted(found.teacher, found.train, found.development, count)
        training = Training(heads, found.teacher.capabilities.vocabulary, told, asked, by_counts)
        return Joint(training, FinetunedText(self.backbone, self.tuning), found)

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """The backbone's matrices, and those of the heads."""
        assert isinstance(model, Joint)
        slow = [weight for weight in model.tuned.parameters() if weight.requires_grad]
        return [{"params": slow}, {"params": list(model.heads.parameters()), "scale": FASTER}]

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        assert isinstance(model, Joint)
        total = torch.zeros(())
        for number in random.choice(model.chosen, size=min(self.together, len(model.chosen)), replace=False):
            with torch.autocast("cpu", torch.bfloat16):
                kept, ahead = model.losses(int(number))
            total = total + kept + self.fixed * ahead
        return total / self.together

    def export(self, model: nn.Module, folder: Path) -> None:
        """The heads are tied to the merged backbone; what they were right in is counted on its rows."""
        assert isinstance(model, Joint)
        model.tuned.export(folder / "backbone")
        merged = load_backbone(f"{self.backbone} merged", folder / "backbone")
        model.merged, known = Teacher(merged), model.heads
        config = replace(known.heads.config, backbone=merged.name, fingerprint=merged.fingerprint)
        known.heads.config = config
        known.check_on = examples(model.merged, model.found.development, config.heads)
        save(known, folder)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """As stage 1, on rows of the merged backbone; and ``divergence``: KL(base || merged) a token, in nats."""
        assert isinstance(model, Joint) and model.merged is not None
        return figures(model.heads) | {"divergence": drift(model.found.teacher, model.merged, model.found.development)}


_MORE: Mapping[str, Mapping[str, Any]] = {
    "embedded-code": {},
    "smollm2-135m": {"steps": 100, "hours": 3.0},
}
for _name, _more in _MORE.items():
    RECIPES.register(f"medusa2-{_name}")(
        TuneHeads(
            summary=f"medusa heads of {_name}, the backbone learning with them by LoRA",
            backbone=_name,
            plan=MADE[_name]["plan"],
            requires=(f"medusa-{_name}",),
            **_more,
        )
    )
