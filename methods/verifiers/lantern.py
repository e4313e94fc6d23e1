"""LANTERN's acceptance on trees: a draft is judged by the probability mass of its neighbourhood of codes.

Symbols: x drafted tokens; q the distribution each was drawn from, given its earlier siblings (a point mass for chosen
nodes); p the target's distributions; p~ the same with the mass of x's neighbours moved to x; K nodes; R = K + 1 rows,
of which parents are among the first I; w children of a row.
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
from stridebench.harness.core.draft import Acceptance, Draft
from stridebench.harness.core.draws import Draws
from stridebench.harness.core.method import Mutant
from stridebench.harness.errors import UsageError
from stridebench.methods.verifiers.codebook import Aggregated, aggregate, cached_nearest, codes_of, neighbour_count
from stridebench.methods.verifiers.rejection import draft_probs, residual
from stridebench.methods.verifiers.tree import UNWARPED_NEXT_TOKEN, TreeJudgement, verify_delta, walk

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
        code: of each id; 0 if it has none.
        cells: marks the ids that are codes; others are judged by p(x) alone.
        bound: largest mass that neighbours add.
        resid: the residual of p after a rejection. relaxed: (p~ - q)+. p_minus_q: (p - q)+. code: as released, with all
            k + 1 nearest of x removed if any added mass: from p if nodes were chosen (uniform if nothing is left), from
            q if they were drawn.
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
        """Return the rule over a backbone's codebook; k = 0 is a share of it (see `neighbour_count`)."""
        assert capabilities.codebook is not None, "the method needs a codebook"
        ids, count = torch.tensor(capabilities.cell_ids, device=device), neighbour_count(k, len(capabilities.codebook))
        near = ids[cached_nearest(capabilities.codebook, count + 1)[:, 1:].to(device)]
        vocabulary = torch.arange(capabilities.vocabulary, device=device)
        code = codes_of(ids, vocabulary, capabilities.vocabulary)
        return cls(near, count, code, torch.isin(vocabulary, ids), bound, resid, greedy)

    def aggregate(self, p: Float[Tensor, "I V"], x: Int[Tensor, " I"]) -> Aggregated:
        """Return p~(x) in each row."""
        most = self.bound.delta + self.bound.factor * p.gather(1, x[:, None])[:, 0]
        return aggregate(p, x, self.near[self.code[x], : self.k], most.where(self.cells[x], -1.0))

    def after_rejection(
        self, p: Float[Tensor, "I V"], q: Float[Tensor, "I V"], x: Int[Tensor, " I"], own: Aggregated, chosen: bool
    ) -> Float[Tensor, "I V"]:
        """Return the distribution tried next in each row once x is rejected; ``chosen``: q are point masses."""
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
    """Reject bounds that neighbours cannot have."""
    if k < 0 or not bound >= 0:
        raise UsageError(f"{name}: k is {k} and the bound {bound:g}; give neighbours and a mass, 0 or more")


def verify_relaxed(
    draft: Draft,
    logits: Float[Tensor, "R V"],
    p: Float[Tensor, "R V"],
    draws: Draws,
    rule: Relaxed,
    kids: Int[Tensor, "I w"],
) -> Acceptance:
    """Walk down a tree by relaxed acceptance.

    Args:
        draft: its ``probs`` hold q; without them its nodes are point masses.
        logits: the target's; p: its distributions. At T = 0, x is accepted where p~ at T = 1 makes it the most
            probable token, and a rejection leaves p.
        kids: see `trees.structure.children`.
    """
    if not len(draft):
        return verify_delta(draft, p, draws)
    if rule.greedy:
        judgement = judge_greedy(draft.tokens, logits.softmax(-1), p, kids, rule)
    else:
        judgement = judge(draft.tokens, draft.probs, p, kids, rule)
    return walk(judgement, draft.explicit_parents, p, draws)


def judge(
    x: Int[Tensor, " K"],
    q: Float[Tensor, "K V"] | None,
    p: Float[Tensor, "R V"],
    kids: Int[Tensor, "I w"],
    rule: Relaxed,
) -> TreeJudgement:
    """Return min(1, p~_t(x) / q(x)) of the t-th child of each row; its rejection leaves p_{t+1} of p_t."""
    left, accept_probs = p[: len(kids)], p.new_zeros(len(x) + 1)
    qx = None if q is None else draft_probs(x, q).to(p.dtype)
    for nodes in kids.T:
        exists, node = nodes >= 0, nodes.clamp_min(0)
        token = x[node]
        own = rule.aggregate(left, token)
        ratio = own.mass if qx is None else own.mass / qx[node]
        accept_probs[torch.where(exists, node, len(x))] = ratio.clamp_max(1.0)
        drawn = torch.zeros_like(left).scatter(1, token[:, None], 1.0) if q is None else q[node].to(p.dtype)
        left = torch.where(exists[:, None], rule.after_rejection(left, drawn, token, own, q is None), left)
    return TreeJudgement(accept_probs[:-1], left)


def judge_greedy(
    x: Int[Tensor, " K"],
    probs: Float[Tensor, "R V"],
    p: Float[Tensor, "R V"],
    kids: Int[Tensor, "I w"],
    rule: Relaxed,
) -> TreeJudgement:
    """Return 1 for the most probable token, and if p~(x) exceeds all of ``probs``; earlier siblings go first."""
    rows, accept_probs = probs[: len(kids)], p.new_zeros(len(x) + 1)
    for nodes in kids.T:
        exists, node = nodes >= 0, nodes.clamp_min(0)
        token = x[node]
        passes = p[: len(kids)].gather(1, token[:, None])[:, 0] > 0
        passes = passes | (rule.aggregate(rows, token).mass > rows.amax(1))
        accept_probs[torch.where(exists, node, len(x))] = passes.to(p.dtype)
    return TreeJudgement(accept_probs[:-1], p[: len(kids)])


# Bugs to inject, which `stride verify` must catch.

NEIGHBOURHOOD_REJECTION_FORGOTTEN = Mutant(
    f"{__name__}:judge",
    "left = torch.where(exists[:, None], rule.after_rejection(",
    "left = torch.where(exists[:, None] & False, rule.after_rejection(",
    "the next child is tried against p",
)
RELAXED = (NEIGHBOURHOOD_REJECTION_FORGOTTEN, UNWARPED_NEXT_TOKEN)
"""Of `verify_relaxed`."""
