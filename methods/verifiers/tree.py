"""Acceptance on draft trees: each rule gives the acceptance probability of every node and the residual of every row.

Symbols: x drafted tokens; q the distribution each was drawn from, given its earlier siblings; p the target's
distributions; K nodes; R > K rows, row 0 after the last emitted token and row k + 1 after node k; I the first rows,
which all children hang from.
Sources: Miao et al. 2023, SpecInfer, arXiv:2305.09781, Algorithm 2; Jeon et al. 2024, arXiv:2402.14160, on sampling
without replacement; point masses: the released code of EAGLE-2.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.draft import Acceptance, Draft, Path
from stridebench.harness.core.draws import Draws
from stridebench.methods.trees.structure import children, earlier_siblings
from stridebench.methods.verifiers.rejection import draft_probs, residual


class TreeJudgement(NamedTuple):
    """The result of a rule on a tree.

    Args:
        accept_probs: of each node, once its parent is accepted and its earlier siblings are rejected.
        residuals: of each inner row, the distribution of the next token once all its children are rejected.
    """

    accept_probs: Float[Tensor, " K"]
    residuals: Float[Tensor, "I V"]


def verify_delta(
    draft: Draft, p: Float[Tensor, "R V"], draws: Draws, extra_ids: Int[Tensor, " A"] | None = None
) -> Acceptance:
    """Walk down a tree that was chosen without looking at the target's noise: its nodes are point masses.

    Exact for any such tree, reranked or pruned too. At T = 0 it keeps the longest path of argmaxima.

    Args:
        draft: its ``probs`` are not read.
        p: the target's distributions. Rows behind those of the proposed nodes are not read.
        extra_ids: see `Acceptance`.
    """
    x, parents = draft.tokens[: draft.proposed], draft.explicit_parents[: draft.proposed]
    if not draft.proposed:
        return Acceptance(Path.root(p), draws.categorical(p[:1], "resid")[0], extra_ids)
    path = draws.path(delta_acceptance(x, parents, p), parents)
    row = p.index_select(0, path.stop.reshape(1))
    rejected = torch.zeros_like(row[0]).index_add(0, x, (parents + 1 == path.stop).to(row.dtype))
    probs = row.where(rejected == 0, 0.0)
    probs = torch.where(
        probs.sum() > 0, probs, row
    )  # only rounding is left: rejecting all of them has probability zero
    return Acceptance(path, draws.categorical(probs, "resid")[0], extra_ids)


def delta_acceptance(x: Int[Tensor, " K"], parents: Int[Tensor, " K"], p: Float[Tensor, "R V"]) -> Float[Tensor, " K"]:
    """p(x) / (1 - sum of p over earlier siblings) of each node; 0 for a token that an earlier sibling has."""
    earlier = earlier_siblings(parents)
    repeated = (earlier & (x[:, None] == x[None, :])).any(1)
    px = p[parents + 1, x].where(~repeated, 0.0)
    rest = 1 - earlier.to(px.dtype) @ px
    return torch.where(rest > px, px / rest, (px > 0).to(px.dtype))


def verify_multi_step(draft: Draft, p: Float[Tensor, "R V"], draws: Draws, *, inner: int, width: int) -> Acceptance:
    """Try sampled children in the order of their drawing; each rejection leaves the residual for the next.

    With replacement q is the drafter's distribution at each sibling. Without replacement q is that distribution with
    the earlier siblings taken out: recursive rejection sampling. Siblings may come from several drafters. No child
    drawn may have been dropped or moved for its value.

    Args:
        draft: its ``probs`` hold q.
        inner: I.
        width: no row has more children.

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
    """min(1, p_t(x) / q(x)) of the t-th child, where p_0 is p and p_{t+1} the residual of p_t and its q."""
    residuals, qx = p[: len(kids)], draft_probs(x, q).to(p.dtype)
    accept_probs = p.new_zeros(len(x) + 1)
    for nodes in kids.T:
        exists, node = nodes >= 0, nodes.clamp_min(0)
        ratio = residuals.gather(1, x[node][:, None])[:, 0] / qx[node]
        accept_probs[torch.where(exists, node, len(x))] = ratio.clamp_max(1.0)
        residuals = torch.where(exists[:, None], residual(residuals, q[node].to(p.dtype)), residuals)
    return TreeJudgement(accept_probs[:-1], residuals)


def walk(judgement: TreeJudgement, parents: Int[Tensor, " K"], p: Float[Tensor, "R V"], draws: Draws) -> Acceptance:
    """Draw the path; then the bonus token at a leaf, or the correction token where all children are rejected."""
    path = draws.path(judgement.accept_probs, parents)
    row, inner = path.stop.reshape(1), len(judgement.residuals)
    correction = judgement.residuals.index_select(0, row.clamp_max(inner - 1))
    probs = correction.where(row < inner, p.index_select(0, row))
    return Acceptance(path, draws.categorical(probs, "resid")[0])
