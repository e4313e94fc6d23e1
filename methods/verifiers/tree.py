"""Acceptance on draft trees: each rule gives every node's odds for `Draws.path`, and what is drawn where it stops.

Symbols: x drafted tokens, q the law each was drawn from given its elder siblings, p target's law; K nodes, R > K rows,
0 after the last emitted token and k + 1 after node k; all children hang from the first I.
Sources: Miao et al. 2023, SpecInfer, arXiv:2305.09781, Algorithm 2; Jeon et al. 2024, arXiv:2402.14160, on sampling
without replacement; point masses: the released code of EAGLE-2.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from harness.core.draft import Acceptance, Draft, Path
from harness.core.draws import Draws
from methods.trees.structure import children, earlier_siblings
from methods.verifiers.rejection import draft_probs, residual


class TreeJudgement(NamedTuple):
    """What a rule says of a tree.

    Args:
        accept: odds of each node once its parent is reached and its elder siblings are refused.
        left: what the closing token is drawn from at each inner row, once all its children are refused.
    """

    accept: Float[Tensor, " K"]
    left: Float[Tensor, "I V"]


def verify_delta(
    draft: Draft, p: Float[Tensor, "R V"], draws: Draws, extra_ids: Int[Tensor, " A"] | None = None
) -> Acceptance:
    """Walk down a tree that was chosen without looking at the target's noise: its nodes are point masses.

    Exact for any such tree, reranked or pruned too; at T = 0 the longest path of argmaxima.

    Args:
        draft: its law is not looked at. p: target's laws; rows behind those of the proposed nodes are not looked at.
        aside: see `Acceptance`.
    """
    x, parents = draft.tokens[: draft.proposed], draft.explicit_parents[: draft.proposed]
    if not draft.proposed:
        return Acceptance(Path.root(p), draws.categorical(p[:1], "resid")[0], extra_ids)
    path = draws.path(delta_acceptance(x, parents, p), parents)
    row = p.index_select(0, path.stop.reshape(1))
    refused = torch.zeros_like(row[0]).index_add(0, x, (parents + 1 == path.stop).to(row.dtype))
    probs = row.where(refused == 0, 0.0)
    probs = torch.where(probs.sum() > 0, probs, row)  # nothing left but rounding: refusing all of them has no odds
    return Acceptance(path, draws.categorical(probs, "resid")[0], extra_ids)


def delta_acceptance(x: Int[Tensor, " K"], parents: Int[Tensor, " K"], p: Float[Tensor, "R V"]) -> Float[Tensor, " K"]:
    """p(x) / (1 - sum of p over elder siblings) of each node; 0 for a token that an elder sibling has."""
    elder = earlier_siblings(parents)
    twice = (elder & (x[:, None] == x[None, :])).any(1)
    px = p[parents + 1, x].where(~twice, 0.0)
    rest = 1 - elder.to(px.dtype) @ px
    return torch.where(rest > px, px / rest, (px > 0).to(px.dtype))


def verify_multi_step(draft: Draft, p: Float[Tensor, "R V"], draws: Draws, *, inner: int, width: int) -> Acceptance:
    """Try sampled children in the order of their drawing; each refusal leaves the residual for the next.

    With replacement q is the drafter's law at each sibling; without, that law with the elder siblings taken out, which
    is recursive rejection sampling. Siblings may come from several drafters. No child drawn may have been dropped or
    moved for its value.

    Args:
        draft: its law holds q. inner: I. width: no row has more children.

    Raises:
        ContractError: some x[k] has q[k, x[k]] = 0 (see `rejection.draft_probs`).
    """
    if draft.probs is None:
        return verify_delta(draft, p, draws)
    kids = children(draft.explicit_parents, inner, width)
    return walk(multi_step(draft.tokens, draft.probs, p, kids), draft.explicit_parents, p, draws)


def multi_step(
    x: Int[Tensor, " K"], q: Float[Tensor, "K V"], p: Float[Tensor, "R V"], kids: Int[Tensor, "I w"]
) -> TreeJudgement:
    """Odds min(1, p_t(x) / q(x)) of the t-th child, where p_0 is p and p_{t+1} the residual of p_t and its q."""
    left, qx = p[: len(kids)], draft_probs(x, q).to(p.dtype)
    accept = p.new_zeros(len(x) + 1)
    for nodes in kids.T:
        has, node = nodes >= 0, nodes.clamp_min(0)
        tried = left.gather(1, x[node][:, None])[:, 0] / qx[node]
        accept[torch.where(has, node, len(x))] = tried.clamp_max(1.0)
        left = torch.where(has[:, None], residual(left, q[node].to(p.dtype)), left)
    return TreeJudgement(accept[:-1], left)


def walk(judged: TreeJudgement, parents: Int[Tensor, " K"], p: Float[Tensor, "R V"], draws: Draws) -> Acceptance:
    """The path, and a closing token from what is left where it stops."""
    path = draws.path(judged.accept, parents)
    row, inner = path.stop.reshape(1), len(judged.left)
    probs = judged.left.index_select(0, row.clamp_max(inner - 1)).where(row < inner, p.index_select(0, row))
    return Acceptance(path, draws.categorical(probs, "resid")[0])
