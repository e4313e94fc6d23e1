"""LANTERN's acceptance on trees: a draft is judged by the probability mass of its neighbourhood of codes.

Symbols: x drafted tokens; q the distribution each was drawn from, given its earlier siblings (a point mass for chosen
nodes); p the target's distributions; p~ the same with the mass of x's neighbours moved to x; K nodes; R = K + 1 rows,
of which parents are among the first I; w children of a row.
Sources: Jang et al. 2024, LANTERN, arXiv:2410.03355, section 4; Park et al. 2025, LANTERN++, arXiv:2502.06352; their
released code.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.draft import Acceptance, Draft
from stridebench.harness.core.draws import Draws
from stridebench.methods.verifiers.neighbourhood import Relaxed
from stridebench.methods.verifiers.rejection import draft_probs
from stridebench.methods.verifiers.tree import TreeJudgement, verify_delta, walk


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
    """min(1, p~_t(x) / q(x)) of the t-th child of each row, where p_{t+1} is what its rejection leaves of p_t."""
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
    """1 for the most probable token, and where p~(x) exceeds all of ``probs``; earlier siblings go first."""
    rows, accept_probs = probs[: len(kids)], p.new_zeros(len(x) + 1)
    for nodes in kids.T:
        exists, node = nodes >= 0, nodes.clamp_min(0)
        token = x[node]
        passes = p[: len(kids)].gather(1, token[:, None])[:, 0] > 0
        passes = passes | (rule.aggregate(rows, token).mass > rows.amax(1))
        accept_probs[torch.where(exists, node, len(x))] = passes.to(p.dtype)
    return TreeJudgement(accept_probs[:-1], p[: len(kids)])
