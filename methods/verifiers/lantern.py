"""LANTERN's acceptance on trees: a draft is judged by the mass of its neighbourhood of codes, within a bound.

Symbols: x drafted tokens, q the law each was drawn from given its elder siblings (a point for chosen nodes), p target's
law, p~ that law with the mass of x's neighbours moved to x; K nodes, R = K + 1 rows, I first rows, which parents are
among, w children a row, k neighbours a code.
Sources: Jang et al. 2024, LANTERN, arXiv:2410.03355, 4; Park et al. 2025, LANTERN++, arXiv:2502.06352; released code.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from harness.core.capabilities import Capabilities
from harness.core.draft import Acceptance, Draft
from harness.core.draws import Draws
from methods.trees.structure import children
from methods.verifiers.codebook import Aggregated, aggregate, nearest, neighbour_count
from methods.verifiers.image_codes import codes_of, ids_of
from methods.verifiers.rejection import draft_probs, residual
from methods.verifiers.tree import TreeJudgement, verify_delta, walk

Residual = Literal["relaxed", "p_minus_q", "code"]
NEAR = lru_cache(maxsize=4)(nearest)


@dataclass(frozen=True, eq=False)
class Relaxed:
    """A rule of acceptance over one codebook.

    Args:
        near: row c lists the k + 1 nearest ids of code c, or as many as there are. k: those that may lend.
        code: of each id, 0 where it is none. cells: marks the ids that are codes; others are judged by p(x) alone.
        bound: most mass that neighbours lend; with ``factor`` in units of p(x), as LANTERN++ has it.
        resid: what a refusal leaves of p: relaxed: (p~ - q)+; p_minus_q: (p - q)+; code: as released, with all k + 1
            nearest of x taken out where any lent: of p where nodes were chosen (nothing left: uniform), else of q.
    """

    near: Int[Tensor, "I J"]
    k: int
    code: Int[Tensor, " V"]
    cells: Bool[Tensor, " V"]
    bound: float
    factor: bool
    resid: Residual

    @classmethod
    def over(
        cls, capabilities: Capabilities, device: torch.device, k: int, bound: float, factor: bool, resid: Residual
    ) -> Relaxed:
        """The codebook of a backbone; k = 0 is a share of it (see `neighbour_count`)."""
        assert capabilities.codebook is not None, "the method needs a codebook"
        ids, count = ids_of(capabilities, device), neighbour_count(k, len(capabilities.codebook))
        near = ids[NEAR(capabilities.codebook, count + 1)[:, 1:].to(device)]
        every = torch.arange(capabilities.vocabulary, device=device)
        code = codes_of(ids, every, capabilities.vocabulary)
        return cls(near, count, code, torch.isin(every, ids), bound, factor, resid)

    def lent(self, p: Float[Tensor, "I V"], x: Int[Tensor, " I"]) -> Aggregated:
        """p~(x) in each row."""
        most = self.bound * (p.gather(1, x[:, None])[:, 0] if self.factor else torch.ones_like(p[:, 0]))
        return aggregate(p, x, self.near[self.code[x], : self.k], most.where(self.cells[x], -1.0))

    def left(
        self, p: Float[Tensor, "I V"], q: Float[Tensor, "I V"], x: Int[Tensor, " I"], lent: Aggregated, chosen: bool
    ) -> Float[Tensor, "I V"]:
        """What is tried next in each row once x is refused; ``chosen``: q are points."""
        if self.resid == "p_minus_q":
            return residual(p, q)
        near, count = self.near[self.code[x]], lent.lenders[:, None]
        place = torch.arange(near.shape[1], device=near.device)
        listed = place < count if self.resid == "relaxed" else (count > 0).expand(-1, len(place))
        gone = torch.zeros_like(p).scatter_add(1, near, listed.to(p.dtype)) > 0
        if self.resid == "relaxed":
            return residual(p.where(~gone, 0.0).scatter(1, x[:, None], lent.mass[:, None]), q)
        if not chosen:
            return residual(p, q.where(~gone, 0.0))
        rest = (p.where(~gone, 0.0) - q).clamp_min(0.0)
        mass = rest.sum(1, keepdim=True)
        return torch.where(mass > 0, rest / mass, self.cells.to(p.dtype) / self.cells.sum())


def verify_relaxed(
    draft: Draft,
    logits: Float[Tensor, "R V"],
    p: Float[Tensor, "R V"],
    draws: Draws,
    rule: Relaxed,
    *,
    inner: int,
    width: int,
    greedy: bool,
) -> Acceptance:
    """Walk down a tree by relaxed acceptance.

    Args:
        draft: its law holds q; without one its nodes are points. logits: of the target; p: its laws. inner: I.
        width: w. greedy: p are points (T = 0): x is taken where p~ at T = 1 makes it the likeliest; else p stays.
    """
    if not len(draft):
        return verify_delta(draft, p, draws)
    kids = children(draft.explicit_parents, inner, width)
    x = draft.tokens
    if greedy:
        return walk(judge_greedy(x, logits.softmax(-1), p, kids, rule), draft.explicit_parents, p, draws)
    return walk(judge(x, draft.probs, p, kids, rule), draft.explicit_parents, p, draws)


def judge(
    x: Int[Tensor, " K"],
    q: Float[Tensor, "K V"] | None,
    p: Float[Tensor, "R V"],
    kids: Int[Tensor, "I w"],
    rule: Relaxed,
) -> TreeJudgement:
    """min(1, p~_t(x) / q(x)) of the t-th child of each row, where p_{t+1} is what its refusal leaves of p_t."""
    left, accept = p[: len(kids)], p.new_zeros(len(x) + 1)
    qx = None if q is None else draft_probs(x, q).to(p.dtype)
    for nodes in kids.T:
        has, node = nodes >= 0, nodes.clamp_min(0)
        token = x[node]
        lent = rule.lent(left, token)
        tried = lent.mass if qx is None else lent.mass / qx[node]
        accept[torch.where(has, node, len(x))] = tried.clamp_max(1.0)
        drawn = torch.zeros_like(left).scatter(1, token[:, None], 1.0) if q is None else q[node].to(p.dtype)
        left = torch.where(has[:, None], rule.left(left, drawn, token, lent, q is None), left)
    return TreeJudgement(accept[:-1], left)


def judge_greedy(
    x: Int[Tensor, " K"],
    probs: Float[Tensor, "R V"],
    p: Float[Tensor, "R V"],
    kids: Int[Tensor, "I w"],
    rule: Relaxed,
) -> TreeJudgement:
    """1 for the likeliest token, and where p~(x) passes all of ``probs``; elder siblings go first."""
    rows, accept = probs[: len(kids)], p.new_zeros(len(x) + 1)
    for nodes in kids.T:
        has, node = nodes >= 0, nodes.clamp_min(0)
        token = x[node]
        likeliest = p[: len(kids)].gather(1, token[:, None])[:, 0] > 0
        passes = likeliest | (rule.lent(rows, token).mass > rows.amax(1))
        accept[torch.where(has, node, len(x))] = passes.to(p.dtype)
    return TreeJudgement(accept[:-1], p[: len(kids)])
