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
from jaxtyping import Bool, Float, Int
from torch import Tensor

from stridebench.harness.core.draft import Acceptance, Draft, Path
from stridebench.harness.core.draws import Draws
from stridebench.harness.core.method import Mutant
from stridebench.harness.core.session import ancestors
from stridebench.methods.verifiers.rejection import draft_probs, residual

# The structure of draft trees as tensors on the device: tries, siblings, children and paths.
# Symbols: K nodes, I rows that have children, w children of a node, k continuations of L tokens. A node's parent
# comes before it; -1 is the last emitted token. The row after the last emitted token is 0, and that after node n is
# n + 1. Nothing here loops over nodes or reads the device.


class Trie(NamedTuple):
    """Continuations merged as far as they begin alike; node e k + j is token e of continuation j.

    Args:
        first: the node that stands for each: itself, or an earlier one of the same path.
    """

    parents: Int[Tensor, " K"]
    first: Int[Tensor, " K"]


def trie(tokens: Int[Tensor, "L k"]) -> Trie:
    """Return the parents of the nodes of k continuations: the first node of their parent's path."""
    count = tokens.shape[1]
    index = torch.arange(count, device=tokens.device)
    same_path = torch.ones(count, count, dtype=torch.bool, device=tokens.device)
    firsts: list[Tensor] = []
    for level in tokens:
        same_path = same_path & (level[:, None] == level[None, :])
        firsts.append(same_path.long().argmax(1) + len(firsts) * count)
    return Trie(torch.cat([torch.full_like(index, -1), *firsts[:-1]]), torch.cat(firsts))


def earlier_siblings(parents: Int[Tensor, " K"]) -> Bool[Tensor, "K K"]:
    """Mark in row k the nodes before k with the same parent."""
    index = torch.arange(len(parents), device=parents.device)
    return (parents[:, None] == parents[None, :]) & (index[None, :] < index[:, None])


def repeats(tokens: Int[Tensor, " K"], parents: Int[Tensor, " K"]) -> Bool[Tensor, " K"]:
    """Mark nodes with the token of an earlier sibling, and those below them."""
    repeated = (earlier_siblings(parents) & (tokens[:, None] == tokens[None, :])).any(1)
    return (ancestors(parents) & repeated[None, :]).any(1)


def children(parents: Int[Tensor, " K"], rows: int, width: int) -> Int[Tensor, "I w"]:
    """Return the nodes that hang from each of the first rows, in order; -1 behind the last one.

    Args:
        width: no row has more children.
    """
    rank = earlier_siblings(parents).sum(1)
    table = torch.full((len(parents) + 1, width), -1, device=parents.device)
    table[parents + 1, rank] = torch.arange(len(parents), device=parents.device)
    return table[:rows]


def paths(parents: Int[Tensor, " K"], levels: int) -> Int[Tensor, "K d"]:
    """List in row k the nodes from the root's child down to node k; -1 behind it. No node is deeper than ``levels``."""
    size = len(parents)
    index = torch.arange(size, device=parents.device)
    ordered = torch.where(ancestors(parents), index, size).sort(1).values[:, :levels]
    return torch.where(ordered < size, ordered, -1)


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
    """Return p(x) / (1 - sum of p over earlier siblings) of each node; 0 for a token that an earlier sibling has."""
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
    """Return min(1, p_t(x) / q(x)) of the t-th child; p_0 is p, and p_{t+1} the residual of p_t and its q."""
    residuals, qx = p[: len(kids)], draft_probs(x, q).to(p.dtype)
    accept_probs = p.new_zeros(len(x) + 1)
    for nodes in kids.T:
        exists, node = nodes >= 0, nodes.clamp_min(0)
        ratio = residuals.gather(1, x[node][:, None])[:, 0] / qx[node]
        accept_probs[torch.where(exists, node, len(x))] = ratio.clamp_max(1.0)
        residuals = torch.where(exists[:, None], residual(residuals, q[node].to(p.dtype)), residuals)
    return TreeJudgement(accept_probs[:-1], residuals)


def walk(judgement: TreeJudgement, parents: Int[Tensor, " K"], p: Float[Tensor, "R V"], draws: Draws) -> Acceptance:
    """Draw the path; then the bonus token at a leaf, or the correction token if all children are rejected."""
    path = draws.path(judgement.accept_probs, parents)
    row, inner = path.stop.reshape(1), len(judgement.residuals)
    correction = judgement.residuals.index_select(0, row.clamp_max(inner - 1))
    probs = correction.where(row < inner, p.index_select(0, row))
    return Acceptance(path, draws.categorical(probs, "resid")[0])


# Bugs to inject, which `stride verify` must catch.

EARLIER_SIBLINGS_FORGOTTEN = Mutant(
    f"{__name__}:multi_step",
    "residual(residuals, q[node].to(p.dtype))",
    "residuals",
    "the next child is tried against p",
)
UNWARPED_NEXT_TOKEN = Mutant(
    f"{__name__}:walk",
    "draws.categorical(probs, ",
    "draws.categorical(probs.sqrt(), ",
    "the bonus or correction token is drawn before the temperature",
)
RATIO_TEST_ON_CHOSEN_NODES = Mutant(
    f"{__name__}:delta_acceptance",
    "return torch.where(rest > px, px / rest, ",
    "return (len(px) * px).clamp_max(1.0) if True else (",
    "a ratio test on the k best tokens, which nobody drew",
)
POINT_MASS_SIBLINGS_FORGOTTEN = Mutant(
    f"{__name__}:delta_acceptance", "px / rest", "px", "rejected earlier siblings are forgotten"
)
REPEATED_SIBLING_TESTED_AGAIN = Mutant(
    f"{__name__}:delta_acceptance",
    "px = p[parents + 1, x].where(~repeated, 0.0)",
    "px = p[parents + 1, x]",
    "a token that was rejected already is tested again",
)
REJECTED_TOKEN_DRAWN_AGAIN = Mutant(
    f"{__name__}:verify_delta",
    "probs = row.where(rejected == 0, 0.0)",
    "probs = row",
    "the correction token is drawn from p, rejected drafts included",
)
UNWARPED_TOKEN_AFTER_POINT_MASSES = Mutant(
    f"{__name__}:verify_delta",
    "draws.categorical(probs, ",
    "draws.categorical(probs.sqrt(), ",
    "the bonus or correction token is drawn before the temperature",
)
POINT_MASSES = (RATIO_TEST_ON_CHOSEN_NODES, REJECTED_TOKEN_DRAWN_AGAIN, UNWARPED_TOKEN_AFTER_POINT_MASSES)
"""Of `verify_delta`, on trees whose nodes a drafter's confidence chose."""
NGRAMS = (POINT_MASS_SIBLINGS_FORGOTTEN, REJECTED_TOKEN_DRAWN_AGAIN, UNWARPED_TOKEN_AFTER_POINT_MASSES)
"""Of `verify_delta`, on n-grams."""
