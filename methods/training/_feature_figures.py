"""How well a feature drafter foretells its backbone's next tokens."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from harness.backbones.recipes._ngram import NGram
from methods.drafters.feature_nets import FeatureNet
from methods.training._feature_data import Example, collate
from methods.training._feature_model import Student
from methods.training._feature_unroll import unroll

DEPTHS = 3
"""Tokens ahead that figures are given for: further on the drafter reads its own features."""
MOST = 64
"""Passages looked at."""


def figures(student: Student) -> dict[str, float]:
    """On held-out passages, guided where the backbone is.

    ``top1_d``, ``top3_d``: share of tokens at depth d, after the true tokens before, where the backbone's likeliest is
    the drafter's first or among its three; ``accepted_d``: the sum of min(p, q) at temperature 1. ``_untrained`` and
    ``_shuffled``: of a new drafter, and of one whose matrices have their entries in another order; ``_ngram``: of
    counts of three tokens in the training's passages.
    """
    held = student.beside.development[:MOST]
    found = measured(student, student.net, held, DEPTHS)
    for name, net in (("untrained", FeatureNet(student.net.shape)), ("shuffled", shuffled(student.net))):
        if name == "untrained" and len(net.ids):
            net.ids.copy_(student.net.ids)
        found |= {f"{key}_{name}": value for key, value in measured(student, net, held, 1).items()}
    return found | {f"{key}_ngram": value for key, value in by_counts(student, held).items()}


def shuffled(net: FeatureNet) -> FeatureNet:
    """A copy whose matrices have their entries in another order."""
    twin, draws = copy.deepcopy(net), torch.Generator().manual_seed(0)
    for weight in twin.parameters():
        order = torch.randperm(weight.numel(), generator=draws)
        weight.data = weight.data.flatten()[order].view_as(weight)
    return twin


@torch.no_grad()
def measured(student: Student, net: FeatureNet, held: Sequence[Example], depths: int) -> dict[str, float]:
    """The shares of `figures` at so many depths, of a net beside this student's backbone."""
    sums: dict[str, float] = {}
    total = [0] * depths
    offers = student.beside.teacher.offers
    for example in held:
        branches = list(range(offers.branches))
        batch = collate([example] * len(branches), branches, student.beside.teacher)
        made = unroll(net, student.beside.embed[batch.tokens], batch.features, batch.seen, depths)
        for depth, out in enumerate(made):
            counted = batch.counted[0, depth:]
            p = _mixed([student.wanted(rows[depth:][counted]) for rows in batch.heads], offers.guidance)
            q = _mixed([student.said(rows[: len(counted)][counted], net) for rows in out], offers.guidance)
            right = q.topk(3).indices == p.argmax(-1, keepdim=True)
            both = torch.minimum(p.softmax(-1), q.softmax(-1)).sum(-1)
            for key, value in (("top1", right[:, 0]), ("top3", right.any(1)), ("accepted", both)):
                sums[f"{key}_{depth + 1}"] = sums.get(f"{key}_{depth + 1}", 0.0) + float(value.sum())
            total[depth] += int(counted.sum())
    return {key: value / max(1, total[int(key[-1]) - 1]) for key, value in sums.items()}


@torch.no_grad()
def by_counts(student: Student, held: Sequence[Example]) -> dict[str, float]:
    """``top1_1`` and ``top3_1`` of an n-gram, which knows the same tokens as the drafter and no hidden row."""
    counts = NGram.of(example.tokens[None] for example in student.beside.train)
    offers, right = student.beside.teacher.offers, []
    for example in held:
        branches = list(range(offers.branches))
        batch = collate([example] * len(branches), branches, student.beside.teacher)
        p = _mixed([student.wanted(rows[batch.counted[0]]) for rows in batch.heads], offers.guidance)
        guessed = counts.guesses(example.tokens[None])[0, 1:][batch.counted[0]]
        right.append(guessed == student.ids[p.argmax(-1)][:, None])
    hits = torch.cat(right).double()
    return {"top1_1": float(hits[:, 0].mean()), "top3_1": float(hits.amax(1).mean())}


def _mixed(logits: Sequence[Tensor], scale: float) -> Tensor:
    return logits[0] if len(logits) == 1 else torch.lerp(logits[1], logits[0], scale)
