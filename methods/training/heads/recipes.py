"""Medusa's heads and those of blockwise decoding for a frozen backbone: `stride train drafter medusa-embedded-code`.

Source: Cai et al. 2024, Medusa, arXiv:2401.10774, section 2.2.1 (Medusa-1: the backbone is frozen) and 2.3.2
(self-distillation: the backbone wrote the text); Stern et al. 2018, arXiv:1811.03115, section 6.
Medusa-2, in which heads and backbone learn together: `stride train drafter medusa2-embedded-code`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from stridebench.harness.registry import GENERAL_RECIPES
from stridebench.harness.train.finetuning import FinetunedText, Tuning
from stridebench.harness.train.finetuning import load_text_backbone as load_backbone
from stridebench.harness.train.passages import AnyPlan, PassagePlan, Passages, passages_of
from stridebench.harness.train.recipe import ParameterGroup, Recipe, autocast, round_to_bf16, save_bf16
from stridebench.harness.train.teacher import Passage, Teacher
from stridebench.methods.drafters.heads.net import Config, Heads
from stridebench.methods.training.heads.examples import (
    Examples,
    HeadTraining,
    examples,
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


# Medusa-2: the losses of the backbone that learns, and of the heads on its rows.
# Source: Cai et al. 2024, Medusa, arXiv:2401.10774, sections 2.2.2 (joint training, heads first and with a higher rate)
# and 2.3.2 (the backbone learns by low-rank matrices, with the base model as its teacher). Symbols: lambda_0 the weight
# of the heads' loss; the backbone's has weight 1.


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


for _kind, _inner in (("medusa", 0), ("blockwise", 512)):
    GENERAL_RECIPES.register(_kind)(
        TrainHeads(summary=f"{_kind} heads of any backbone", backbone="", plan=PassagePlan("text"), inner=_inner)
    )
