"""The rule of LANTERN and LANTERN++: how much mass a code's neighbours add, and what a rejection leaves.

Symbols: x drafted tokens, q the distribution each was drawn from, p the target's distributions, p~ the same with the
mass of x's neighbours moved to x, I rows, k neighbours of a code.
Sources: Jang et al. 2024, LANTERN, arXiv:2410.03355, section 4; Park et al. 2025, LANTERN++, arXiv:2502.06352; their
released code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from stridebench.harness.core.capabilities import Capabilities
from stridebench.harness.errors import UsageError
from stridebench.methods.verifiers.codebook import (
    Aggregated,
    aggregate,
    cached_nearest,
    codes_of,
    ids_of,
    neighbour_count,
)
from stridebench.methods.verifiers.rejection import residual

Residual = Literal["relaxed", "p_minus_q", "code"]


@dataclass(frozen=True)
class Bound:
    """The largest mass that the neighbours of x may add: delta + factor p(x).

    Args:
        delta: of LANTERN.
        factor: lambda of LANTERN++.
    """

    delta: float = 0.0
    factor: float = 0.0


@dataclass(frozen=True, eq=False)
class Relaxed:
    """A rule of acceptance over one codebook.

    Args:
        near: row c lists the k + 1 nearest ids of code c, or as many as there are.
        k: neighbours that may add mass.
        code: of each id, 0 where it is none.
        cells: marks the ids that are codes; others are judged by p(x) alone.
        bound: largest mass that neighbours add.
        resid: what a rejection leaves of p. relaxed: (p~ - q)+. p_minus_q: (p - q)+. code: as released, with all k + 1
            nearest of x removed where any added mass: from p where nodes were chosen (uniform if nothing is left), from
            q where they were drawn.
        greedy: T = 0, so that the target's distributions are point masses.
    """

    near: Int[Tensor, "I J"]
    k: int
    code: Int[Tensor, " V"]
    cells: Bool[Tensor, " V"]
    bound: Bound
    resid: Residual
    greedy: bool

    @classmethod
    def over(
        cls, capabilities: Capabilities, device: torch.device, k: int, bound: Bound, resid: Residual, greedy: bool
    ) -> Relaxed:
        """The rule over a backbone's codebook; k = 0 is a share of it (see `neighbour_count`)."""
        assert capabilities.codebook is not None, "the method needs a codebook"
        ids, count = ids_of(capabilities, device), neighbour_count(k, len(capabilities.codebook))
        near = ids[cached_nearest(capabilities.codebook, count + 1)[:, 1:].to(device)]
        vocabulary = torch.arange(capabilities.vocabulary, device=device)
        code = codes_of(ids, vocabulary, capabilities.vocabulary)
        return cls(near, count, code, torch.isin(vocabulary, ids), bound, resid, greedy)

    def aggregate(self, p: Float[Tensor, "I V"], x: Int[Tensor, " I"]) -> Aggregated:
        """p~(x) in each row."""
        most = self.bound.delta + self.bound.factor * p.gather(1, x[:, None])[:, 0]
        return aggregate(p, x, self.near[self.code[x], : self.k], most.where(self.cells[x], -1.0))

    def after_rejection(
        self, p: Float[Tensor, "I V"], q: Float[Tensor, "I V"], x: Int[Tensor, " I"], own: Aggregated, chosen: bool
    ) -> Float[Tensor, "I V"]:
        """What is tried next in each row once x is rejected; ``chosen``: q are point masses."""
        if self.resid == "p_minus_q":
            return residual(p, q)
        near, count = self.near[self.code[x]], own.neighbours[:, None]
        rank = torch.arange(near.shape[1], device=near.device)
        listed = rank < count if self.resid == "relaxed" else (count > 0).expand(-1, len(rank))
        removed = torch.zeros_like(p).scatter_add(1, near, listed.to(p.dtype)) > 0
        if self.resid == "relaxed":
            return residual(p.where(~removed, 0.0).scatter(1, x[:, None], own.mass[:, None]), q)
        if not chosen:
            return residual(p, q.where(~removed, 0.0))
        rest = (p.where(~removed, 0.0) - q).clamp_min(0.0)
        mass = rest.sum(1, keepdim=True)
        return torch.where(mass > 0, rest / mass, self.cells.to(p.dtype) / self.cells.sum())


def check_relaxed(name: str, k: int, bound: float) -> None:
    """Reject bounds that neighbours cannot have.

    Raises:
        UsageError: says which parameter of the method ``name`` is wrong.
    """
    if k < 0 or not bound >= 0:
        raise UsageError(f"{name}: k is {k} and the bound {bound:g}; give neighbours and a mass, 0 or more")


# Acceptance of groups of tokens: a draft counts for its neighbours in the target's ranking too.
# Symbols: x drafted tokens; q the distribution each was drawn from; p the target's distributions; S(x) the group of
# x. Source: grouped speculative decoding (GSD), in the form of its released code. The group is a slice of the
# target's ranking around x, cut to the tokens whose probability and embedding are near those of x. The group depends
# on p, and the correction token is drawn token by token, so the output distribution differs from the target's.


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
