"""Acceptance of groups of tokens: a draft counts for its neighbours in the target's ranking too.

Symbols: x drafted tokens; q the distribution each was drawn from; p the target's distributions; S(x) the group of x.
Source: grouped speculative decoding (GSD), in the form of its released code. The group is a slice of the target's
ranking around x, cut to the tokens whose probability and embedding are near those of x. The group depends on p, and
the correction token is drawn token by token, so the output distribution differs from the target's.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def group(
    x: Int[Tensor, " K"], p: Float[Tensor, "K V"], near: Bool[Tensor, "K V"], width: int, gap: float
) -> Bool[Tensor, "K V"]:
    """Marks S(x): ranks r - width to r + width - 1 around the rank r of x, where |p(s) - p(x)| < gap and ``near``.

    The slice is cut at the first and the last rank, and x is always in it. (The released code's slice is empty for the
    most probable tokens, which are then rejected.)

    Args:
        near: tokens that may stand for x, by their embeddings.
    """
    order = p.argsort(dim=-1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(p.shape[1], device=p.device).expand_as(order))
    distance = rank - rank.gather(1, x[:, None])
    in_slice = (distance >= -width) & (distance < width)
    similar = (p - p.gather(1, x[:, None])).abs() < gap
    return (in_slice & similar & near).scatter(1, x[:, None], True)


def group_acceptance(
    x: Int[Tensor, " K"], q: Float[Tensor, "K V"], p: Float[Tensor, "K V"], groups: Bool[Tensor, "K V"]
) -> Float[Tensor, " K"]:
    """min(1, p(S) / q(S)) at each draft, given that it is reached; groups that hold x have q(S) > 0."""
    return (p.where(groups, 0.0).sum(-1) / q.to(p.dtype).where(groups, 0.0).sum(-1)).clamp_max(1.0)


def near_codes(
    codebook: Float[Tensor, "I C"], x: Int[Tensor, " K"], reach: float, absolute: bool = False
) -> Bool[Tensor, "K I"]:
    """Codes whose vector is nearer to that of x than ``reach`` times the mean distance of two codes.

    The released threshold, 0.5, is a distance in one tokenizer's own units (``absolute``); as a share it means the same
    in any.
    """
    return torch.cdist(codebook[x], codebook) < (reach if absolute else reach * mean_distance(codebook))


def mean_distance(codebook: Float[Tensor, "I C"]) -> Float[Tensor, ""]:
    """Root mean square distance of two codes drawn at random."""
    return (2 * codebook.var(0, unbiased=False).sum()).sqrt()
