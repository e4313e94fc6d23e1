"""How well a feature drafter foretells its backbone's next tokens."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from harness.train.ngram_control import NGram
from methods.drafters.eagle.net import FeatureNet
from methods.training.eagle.examples import Example, collate
from methods.training.eagle.student import Student
from methods.training.eagle.training_time_test import unroll
from methods.training.heads.examples import lower_end

DEPTHS = 3
"""Tokens ahead that figures are given for: further on the drafter reads its own features."""
MOST = 64
"""Passages looked at."""


class Hits(NamedTuple):
    """Of P passages, how often the likeliest token was the first, or among three, and how often there was one."""

    first: Float[Tensor, " P"]
    three: Float[Tensor, " P"]
    there: Float[Tensor, " P"]


def figures(student: Student) -> dict[str, float]:
    """On held-out passages, guided where the backbone is.

    ``top1_d``, ``top3_d``: share of tokens at depth d, after the true tokens before, where the backbone's likeliest is
    the drafter's first or among its three; ``accepted_d``: the sum of min(p, q) at temperature 1. ``_untrained`` and
    ``_shuffled``: of a new drafter, and of one whose matrices have their entries in another order; ``_ngram``: of
    counts of three tokens in the training's passages. ``_lead``: lower end of the 95 % interval of what top1_1 gains
    on each.
    """
    held = student.beside.development[:MOST]
    found, own = measured(student, student.net, held, DEPTHS)
    fresh = FeatureNet(student.net.shape)
    fresh.ids.copy_(student.net.ids)
    for name, net in (("untrained", fresh), ("shuffled", shuffled(student.net)), ("ngram", None)):
        figure, hits = by_counts(student, held) if net is None else measured(student, net, held, 1)
        found |= {f"{key}_{name}": value for key, value in figure.items()}
        found[f"top1_1_{name}_lead"] = lower_end((own.first - hits.first)[:, None], own.there[:, None])[0]
    return found


def shuffled(net: FeatureNet) -> FeatureNet:
    """A copy whose matrices have their entries in another order."""
    twin, draws = copy.deepcopy(net), torch.Generator().manual_seed(0)
    for weight in twin.parameters():
        order = torch.randperm(weight.numel(), generator=draws)
        weight.data = weight.data.flatten()[order].view_as(weight)
    return twin


@torch.no_grad()
def measured(student: Student, net: FeatureNet, held: Sequence[Example], depths: int) -> tuple[dict[str, float], Hits]:
    """The shares of `figures` at so many depths, of a net beside this student's backbone; and hits at the first."""
    sums: dict[str, float] = {}
    hits: list[tuple[float, float, float]] = []
    total = [0] * depths
    capabilities = student.beside.teacher.capabilities
    for example in held:
        branches = list(range(capabilities.branches))
        batch = collate([example] * len(branches), branches, student.beside.teacher)
        made = unroll(net, student.beside.embed[batch.tokens], batch.features, batch.seen, depths)
        for depth, out in enumerate(made):
            counted = batch.counted[0, depth:]
            p = _mixed([student.wanted(rows[depth:][counted]) for rows in batch.heads], capabilities.guidance)
            q = _mixed([student.said(rows[: len(counted)][counted], net) for rows in out], capabilities.guidance)
            right = q.topk(3).indices == p.argmax(-1, keepdim=True)
            both = torch.minimum(p.softmax(-1), q.softmax(-1)).sum(-1)
            for key, value in (("top1", right[:, 0]), ("top3", right.any(1)), ("accepted", both)):
                sums[f"{key}_{depth + 1}"] = sums.get(f"{key}_{depth + 1}", 0.0) + float(value.sum())
            total[depth] += int(counted.sum())
            if not depth:
                hits.append((float(right[:, 0].sum()), float(right.any(1).sum()), float(counted.sum())))
    shares = {key: value / max(1, total[int(key[-1]) - 1]) for key, value in sums.items()}
    return shares, Hits(*torch.tensor(hits, dtype=torch.float64).T)


@torch.no_grad()
def by_counts(student: Student, held: Sequence[Example]) -> tuple[dict[str, float], Hits]:
    """``top1_1`` and ``top3_1`` of an n-gram, which knows the same tokens and no hidden row; and hits."""
    counts = NGram.of(example.tokens[None] for example in student.beside.train)
    capabilities, right = student.beside.teacher.capabilities, []
    for example in held:
        branches = list(range(capabilities.branches))
        batch = collate([example] * len(branches), branches, student.beside.teacher)
        p = _mixed([student.wanted(rows[batch.counted[0]]) for rows in batch.heads], capabilities.guidance)
        guessed = counts.guesses(example.tokens[None])[0, 1:][batch.counted[0]]
        right.append(guessed == student.ids[p.argmax(-1)][:, None])
    rows = [(hit[:, 0].sum(), hit.any(1).sum(), torch.tensor(len(hit))) for hit in right]
    hits = Hits(*(torch.stack(column).double() for column in zip(*rows, strict=True)))
    total = hits.there.sum()
    return {"top1_1": float(hits.first.sum() / total), "top3_1": float(hits.three.sum() / total)}, hits


def _mixed(logits: Sequence[Tensor], scale: float) -> Tensor:
    return logits[0] if len(logits) == 1 else torch.lerp(logits[1], logits[0], scale)
