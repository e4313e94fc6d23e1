"""EAGLE's drafters over hidden rows: `stride train drafter eagle1-embedded-image` and its relatives."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.core.capabilities import Tap
from stridebench.harness.registry import GENERAL_RECIPES
from stridebench.harness.train.passages import AnyPlan, NGram, PassagePlan, passages_of
from stridebench.harness.train.recipe import Recipe, autocast, round_to_bf16, save_bf16
from stridebench.methods.drafters.eagle.net import EAGLE3_TAPS, FeatureDrafterNet
from stridebench.methods.drafters.eagle.published import FeatureNetShape, Kind
from stridebench.methods.training.eagle.student import (
    Example,
    FeatureBatch,
    FeatureStudent,
    Lessons,
    collate,
    commonest,
    examples,
    unroll,
)
from stridebench.methods.training.heads.examples import lower_end

# How well a feature drafter predicts its backbone's next tokens.


S = TypeVar("S", bound=nn.Module)
DEPTHS = 3
"""Depths of the figures; from the second on the drafter reads the features that it predicted."""
MOST = 64
"""Passages of the figures."""


class Hits(NamedTuple):
    """Counts of P passages: how often the backbone's best token was the drafter's first one, or among its three."""

    first: Float[Tensor, " P"]
    three: Float[Tensor, " P"]
    counted: Float[Tensor, " P"]


class MeasuredHits(NamedTuple):
    """Figures by name, and the hits at the first depth."""

    figures: dict[str, float]
    hits: Hits


def figures(student: FeatureStudent, depths: int = DEPTHS) -> dict[str, float]:
    """Return figures at so many depths on held-out passages, guided if the backbone is.

    - ``top1_d``, ``top3_d``: how often, at depth d after true tokens, the backbone's best token is the drafter's first
      one, or among its three.
    - ``accepted_d``: the sum of min(p, q) at temperature 1.
    - ``_untrained``, ``_shuffled``: the same of a new drafter, and of one whose matrices have their entries in another
      order.
    - ``_ngram``: the same of an n-gram of the training passages.
    - ``_shifted``, ``_norms``, of a layer for multi-token prediction: the same if it reads the row of the token before,
      and if its norms have one added to their weights, as converters of layers with (1 + w) norms did.
    - ``_lead``: lower end of the 95 % interval of the gain of ``top1_1`` over each control.
    """
    examples = student.lessons.development[:MOST]
    own = measured(student, student.net, examples, depths)
    untrained = FeatureDrafterNet(student.net.shape).to(student.device)
    untrained.ids.copy_(student.net.ids)
    controls = {
        "untrained": measured(student, untrained, examples, 1),
        "shuffled": measured(student, shuffled(student.net), examples, 1),
        "ngram": measured_ngram(student, examples),
    }
    if student.net.shape.pair_norm:
        controls["shifted"] = measured(student, student.net, examples, 1, shift=1)
        controls["norms"] = measured(student, with_norms_added(student.net), examples, 1)
    shares = dict(own.figures)
    for name, control in controls.items():
        shares |= {f"{key}_{name}": value for key, value in control.figures.items()}
        gain = own.hits.first - control.hits.first
        shares[f"top1_1_{name}_lead"] = lower_end(gain[:, None], own.hits.counted[:, None])[0]
    return shares


def shuffled(net: S) -> S:
    """A copy whose matrices have their entries in another order."""
    twin, draws = copy.deepcopy(net), torch.Generator().manual_seed(0)
    for weight in twin.parameters():
        order = torch.randperm(weight.numel(), generator=draws).to(weight.device)
        weight.data = weight.data.flatten()[order].view_as(weight)
    return twin


def with_norms_added(net: FeatureDrafterNet) -> FeatureDrafterNet:
    """A copy whose norms have one added to their weights."""
    twin = copy.deepcopy(net)
    for name, weight in twin.named_parameters():
        weight.data += float(name.startswith("norm"))
    return twin


@torch.no_grad()
def measured(
    student: FeatureStudent, net: FeatureDrafterNet, examples: Sequence[Example], depths: int, shift: int = 0
) -> MeasuredHits:
    """The shares of `figures` at so many depths, of a net for this student's backbone.

    Args:
        shift: entries by which the rows that it reads are late.
    """
    sums: dict[str, float] = {}
    hits: list[tuple[float, float, float]] = []
    total = [0] * depths
    teacher = student.lessons.teacher
    scale = teacher.capabilities.guidance
    for example in examples:
        branches = list(range(teacher.capabilities.branches))
        batch = collate([example] * len(branches), branches, teacher).to(student.device)
        features = batch.features.roll(shift, 1)
        rounds = unroll(net, student.lessons.embed[batch.tokens], features, batch.visible, depths, student.mask)
        for depth, out in enumerate(rounds):
            counted = batch.counted[0, depth:]
            p = _guided([student.target_logits(rows[depth:][counted]) for rows in batch.heads], scale)
            q = _guided([student.draft_logits(rows[: len(counted)][counted], net) for rows in out], scale)
            right = q.topk(3).indices == p.argmax(-1, keepdim=True)
            accepted = torch.minimum(p.softmax(-1), q.softmax(-1)).sum(-1)
            for key, value in (("top1", right[:, 0]), ("top3", right.any(1)), ("accepted", accepted)):
                sums[f"{key}_{depth + 1}"] = sums.get(f"{key}_{depth + 1}", 0.0) + float(value.sum())
            total[depth] += int(counted.sum())
            if not depth:
                hits.append((float(right[:, 0].sum()), float(right.any(1).sum()), float(counted.sum())))
    shares = {key: value / max(1, total[int(key[-1]) - 1]) for key, value in sums.items()}
    return MeasuredHits(shares, Hits(*torch.tensor(hits, dtype=torch.float64).T))


@torch.no_grad()
def measured_ngram(student: FeatureStudent, examples: Sequence[Example]) -> MeasuredHits:
    """``top1_1`` and ``top3_1`` of an n-gram, which reads the same tokens and no hidden rows."""
    ngram = NGram.of(example.tokens[None] for example in student.lessons.train)
    teacher, right = student.lessons.teacher, []
    for example in examples:
        branches = list(range(teacher.capabilities.branches))
        batch = collate([example] * len(branches), branches, teacher).to(student.device)
        logits = [student.target_logits(rows[batch.counted[0]]) for rows in batch.heads]
        p = _guided(logits, teacher.capabilities.guidance)
        guesses = ngram.guesses(example.tokens[None])[0, 1:][batch.counted[0].cpu()]
        right.append(guesses == student.ids[p.argmax(-1).cpu()][:, None])
    rows = [(hit[:, 0].sum(), hit.any(1).sum(), torch.tensor(len(hit))) for hit in right]
    hits = Hits(*(torch.stack(column).double() for column in zip(*rows, strict=True)))
    total = hits.counted.sum()
    return MeasuredHits({"top1_1": float(hits.first.sum() / total), "top3_1": float(hits.three.sum() / total)}, hits)


def _guided(logits: Sequence[Tensor], scale: float) -> Tensor:
    return logits[0] if len(logits) == 1 else torch.lerp(logits[1], logits[0], scale)


# The loss of a feature drafter: smooth L1 of features and soft cross-entropy, summed over the rounds.
# Sources: EAGLE-1, arXiv:2401.15077, section 3.3; EAGLE-3, arXiv:2503.01840 (weight 0.8^i in round i); P-EAGLE,
# arXiv:2602.01469 (weight 1).


def noisy(features: Float[Tensor, "B N J F"], width: float) -> Float[Tensor, "B N J F"]:
    """Features with uniform noise of this width, in units of their root mean square."""
    scale = features.square().mean((0, 1, 3), keepdim=True).sqrt()
    return features + width * scale * (torch.rand_like(features) - 0.5)


def round_losses(
    student: FeatureStudent,
    batch: FeatureBatch,
    features: Float[Tensor, "B N J F"],
    rounds: int,
    regress: float,
    classify: float,
    fading: float = 0.8,
) -> Tensor:
    """The weighted loss of a batch whose drafter reads these features.

    Args:
        regress: weight of the smooth L1 of features.
        fading: the weight of round i is its i-th power.
    """
    net, embed = student.net, student.lessons.embed
    with autocast(device=embed.device.type):
        outputs = unroll(net, embed[batch.tokens], features, batch.visible, rounds, student.mask)
        total = torch.zeros((), device=embed.device)
        for i, out in enumerate(outputs):
            counted = batch.counted[:, i:]
            heads, rows = batch.heads[:, i:][counted], out[:, : out.shape[1] - i][counted]
            p, log_q = student.target_logits(heads).softmax(-1), student.draft_logits(rows).log_softmax(-1)
            regression = functional.smooth_l1_loss(rows.float(), heads) if regress else 0.0
            classification = -(p * log_q).sum(-1).mean()
            total = total + fading**i * (classify * classification + regress * regression)
    return total


# Parts that the recipes of EAGLE's drafters share.
# Sources: EAGLE-1, arXiv:2401.15077, section 3.3: smooth L1 of features + 0.1 x soft cross-entropy; EAGLE-3,
# arXiv:2503.01840: soft cross-entropy alone, with weight 0.8^i in round i of a training-time test. The published
# settings are 20 epochs of 68,000 dialogues at a rate of 3e-5 and batches of 4; the defaults here are for small
# backbones.


@dataclass(frozen=True, kw_only=True)
class FeatureRecipe(Recipe):
    """A drafter for one backbone, trained on texts that the backbone wrote.

    Args:
        eagle: eagle1 or eagle3, or mtp: a layer for multi-token prediction, which norms token and row before it joins
            them, and its output; or p_eagle: eagle3 that reads masks from the second round on.
        heads: attention heads of its layer; 0: of 128 numbers each, or as few as fit.
        kv_heads: heads of keys and values; 0: as many.
        inner: width of the gated product; 0: 8 thirds of the backbone's width.
        theta: base of the rotary positions.
        kept: most ids that it proposes, the most frequent ones of the backbone; 0: all that may be drawn.
        empty: share of them that is read in the branch without the condition.
        noise: width of the uniform noise on features, in units of their root mean square.
        regress: weight of the smooth L1 of features.
        classify: weight of the soft cross-entropy.
        fading: the weight of round i is its i-th power.
        deeper: layers behind the first one, of p_eagle.
    """

    summary: str
    backbone: str
    eagle: Kind = "eagle1"
    plan: PassagePlan | AnyPlan
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
    fading: float = 0.8
    deeper: int = 0
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
        """Layers of the backbone that the drafter reads, in addition to the head's input."""
        return EAGLE3_TAPS if self.eagle in ("eagle3", "p_eagle") else ()

    def build(self, requirements: Mapping[str, Path]) -> FeatureStudent:
        """Return a student. Generates the passages first if the cache holds none."""
        passages = passages_of(self.backbone, self.plan)
        teacher = passages.teacher
        train, development = (examples(teacher, side, self.taps) for side in (passages.train, passages.development))
        tied = teacher.backbone.tied_embeddings()
        lessons = Lessons(teacher, tied.embed.float(), tied.unembed.float(), train, development, tied.lift)
        width, ids = teacher.capabilities.width, self._proposed(lessons)
        heads = self.heads or next(n for n in range(max(1, width // 128), width) if width % (2 * n) == 0)
        seen = torch.bincount(torch.cat([example.tokens for example in train]), minlength=len(tied.embed))
        shape = FeatureNetShape(
            "eagle3" if self.taps else "eagle1",
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
            joined_bias=self.eagle != "mtp",
            pair_norm=self.eagle == "mtp",
            entry_norm=self.eagle == "mtp",
            normed_output=self.eagle == "mtp",
            deeper=self.deeper,
            mask=int(seen[: teacher.capabilities.vocabulary].argmin()) if self.eagle == "p_eagle" else -1,
        )
        (net := FeatureDrafterNet(shape)).ids.copy_(ids)
        if self.taps and tied.lift is None:
            net.unembed.weight.data.copy_(lessons.unembed[net.ids.to(lessons.unembed.device)])
        return FeatureStudent(net, lessons)

    def _proposed(self, lessons: Lessons) -> Int[Tensor, " K"]:
        """The ids that the drafter proposes; none: eagle1 with the backbone's whole unembedding."""
        vocabulary, grid = len(lessons.unembed), lessons.teacher.capabilities.grid
        if not self.kept and not self.taps:
            return torch.zeros(0, dtype=torch.long)
        drawn = range(vocabulary) if grid is None or grid.ids is None else grid.ids
        if not 0 < self.kept < len(drawn):
            return torch.tensor(list(drawn))
        return commonest(lessons.train, self.kept, vocabulary)

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        student = cast(FeatureStudent, model)
        train, teacher = student.lessons.train, student.lessons.teacher
        chosen = random.choice(len(train), min(self.rows, len(train)), replace=False)
        dropped = random.random(len(chosen)) < self.empty
        branches = [int(drop and teacher.capabilities.branches > 1) for drop in dropped]
        batch = collate([train[i] for i in chosen], branches, teacher, student.proposed)
        return self.terms(student, batch.to(student.device))

    def terms(self, student: FeatureStudent, batch: FeatureBatch) -> Tensor:
        """The loss of a batch."""
        features = noisy(batch.features, self.noise)
        return round_losses(student, batch, features, self.rounds, self.regress, self.classify, self.fading)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Figures on passages of held-out prompts, and those of controls; see `figures`."""
        return figures(cast(FeatureStudent, model), max(DEPTHS, self.rounds))

    def export(self, model: nn.Module, folder: Path) -> None:
        net = cast(FeatureStudent, model).net
        round_to_bf16(net.parameters())
        save_bf16(net, folder)
        net.shape.write(folder)


ANY = FeatureRecipe(summary="EAGLE-1 drafter of any backbone with hidden rows", backbone="", plan=PassagePlan("text"))
GENERAL_RECIPES.register("eagle1")(ANY)
GENERAL_RECIPES.register("eagle3")(
    replace(
        ANY,
        summary="EAGLE-3 drafter of any backbone with hidden rows",
        eagle="eagle3",
        kept=32_000,  # of the release's drafters (draft_vocab_size)
        rounds=3,
        regress=0.0,
        classify=1.0,
        noise=0.0,
    )
)
GENERAL_RECIPES.register("p_eagle")(
    replace(
        ANY,
        summary="P-EAGLE drafter of any backbone with hidden rows",
        eagle="p_eagle",
        deeper=3,  # of the release's drafters, whose ``num_depths`` is 8
        kept=32_000,
        rounds=8,
        regress=0.0,
        classify=1.0,
        noise=0.0,
        fading=1.0,
    )
)
GENERAL_RECIPES.register("mtp")(
    replace(
        ANY,
        summary="layer for multi-token prediction of any backbone with hidden rows",
        eagle="mtp",
        rounds=2,
        regress=0.0,
        classify=1.0,
        noise=0.0,
    )
)
