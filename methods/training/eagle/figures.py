"""How well a feature drafter predicts its backbone's next tokens."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from stridebench.harness.train.ngram_control import NGram
from stridebench.methods.drafters.eagle.net import FeatureNet
from stridebench.methods.training.eagle.examples import Example, collate
from stridebench.methods.training.eagle.student import Student
from stridebench.methods.training.eagle.training_time_test import unroll
from stridebench.methods.training.heads.examples import lower_end

DEPTHS = 3
"""Depths of the figures; from the second on the drafter reads its own features."""
MOST = 64
"""Passages of the figures."""


class Hits(NamedTuple):
    """Counts of P passages: how often the backbone's best token was the drafter's first one, or among its three.

    Args:
        first: hits of the first token.
        three: hits among three tokens.
        counted: tokens that were compared.
    """

    first: Float[Tensor, " P"]
    three: Float[Tensor, " P"]
    counted: Float[Tensor, " P"]


class Measured(NamedTuple):
    """Figures by name, and the hits at the first depth."""

    figures: dict[str, float]
    hits: Hits


def figures(student: Student) -> dict[str, float]:
    """Figures on held-out passages, guided where the backbone is.

    - ``top1_d``, ``top3_d``: how often, at depth d after true tokens, the backbone's best token is the drafter's first
      one, or among its three.
    - ``accepted_d``: the sum of min(p, q) at temperature 1.
    - ``_untrained``, ``_shuffled``: the same of a new drafter, and of one whose matrices have their entries in another
      order.
    - ``_ngram``: the same of an n-gram of the training passages.
    - ``_lead``: lower end of the 95 % interval of the gain of ``top1_1`` over each control.
    """
    examples = student.lessons.development[:MOST]
    own = measured(student, student.net, examples, DEPTHS)
    untrained = FeatureNet(student.net.shape).to(student.device)
    untrained.ids.copy_(student.net.ids)
    controls = {
        "untrained": measured(student, untrained, examples, 1),
        "shuffled": measured(student, shuffled(student.net), examples, 1),
        "ngram": measured_ngram(student, examples),
    }
    shares = dict(own.figures)
    for name, control in controls.items():
        shares |= {f"{key}_{name}": value for key, value in control.figures.items()}
        gain = own.hits.first - control.hits.first
        shares[f"top1_1_{name}_lead"] = lower_end(gain[:, None], own.hits.counted[:, None])[0]
    return shares


def shuffled(net: FeatureNet) -> FeatureNet:
    """A copy whose matrices have their entries in another order."""
    twin, draws = copy.deepcopy(net), torch.Generator().manual_seed(0)
    for weight in twin.parameters():
        order = torch.randperm(weight.numel(), generator=draws).to(weight.device)
        weight.data = weight.data.flatten()[order].view_as(weight)
    return twin


@torch.no_grad()
def measured(student: Student, net: FeatureNet, examples: Sequence[Example], depths: int) -> Measured:
    """The shares of `figures` at so many depths, of a net for this student's backbone."""
    sums: dict[str, float] = {}
    hits: list[tuple[float, float, float]] = []
    total = [0] * depths
    teacher = student.lessons.teacher
    scale = teacher.capabilities.guidance
    for example in examples:
        branches = list(range(teacher.capabilities.branches))
        batch = collate([example] * len(branches), branches, teacher).to(student.device)
        rounds = unroll(net, student.lessons.embed[batch.tokens], batch.features, batch.visible, depths)
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
    return Measured(shares, Hits(*torch.tensor(hits, dtype=torch.float64).T))


@torch.no_grad()
def measured_ngram(student: Student, examples: Sequence[Example]) -> Measured:
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
    return Measured({"top1_1": float(hits.first.sum() / total), "top3_1": float(hits.three.sum() / total)}, hits)


def _guided(logits: Sequence[Tensor], scale: float) -> Tensor:
    return logits[0] if len(logits) == 1 else torch.lerp(logits[1], logits[0], scale)
