"""k-SEQ: acceptance where k independent continuations are merged into a trie.

Symbols: x drafted tokens; q the distribution each was drawn from; p the target's distributions; K nodes; R = K + 1
rows, the first I of which all children hang from; n candidates of a row, repeats included; beta the sum of
min(q, p / rho).
Source: Sun et al. 2023, SpecTr, arXiv:2310.15141, Algorithm 3; rho is the paper's, solved for at each row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.draft import Acceptance, Draft
from stridebench.harness.core.draws import Draws
from stridebench.harness.core.method import Mutant
from stridebench.methods.verifiers.rejection import draft_probs, residual
from stridebench.methods.verifiers.tree import TreeJudgement, Trie, children, earlier_siblings, trie, verify_delta, walk

HALVINGS = 16
"""Bisection steps for rho. The upper end is exact after any number of them, and then within 1e-5 k of the best rho."""
SMALL = 1 << 12
"""Numbers in p up to which numpy takes less time for each call than torch, on a CPU."""


def verify_k_seq(draft: Draft, p: Float[Tensor, "R V"], draws: Draws, k: int) -> Acceptance:
    """Walk down the trie of k continuations, which were drawn independently.

    Args:
        draft: node e k + j is token e of continuation j. Its ``probs`` hold q, its parents are those of `trie`.

    Raises:
        ContractError: some x[k] has q[k, x[k]] = 0 (see `rejection.draft_probs`).
    """
    if draft.probs is None:
        return verify_delta(draft, p, draws)
    tree = trie(draft.tokens.view(-1, k))
    kids = children(tree.parents, len(draft) + 1 - k, k)
    return walk(k_seq(draft.tokens, draft.probs, p, tree, kids), tree.parents, p, draws)


def k_seq(
    x: Int[Tensor, " K"], q: Float[Tensor, "K V"], p: Float[Tensor, "R V"], tree: Trie, kids: Int[Tensor, "I k"]
) -> TreeJudgement:
    """Accept each of a row's n candidates, repeats included, with min(1, p / (rho q)); rho is solved for each row.

    Once all are rejected, the residual is p - min(q, p / rho) (1 - (1 - beta)^n) / beta, renormalised.
    """
    rows, probs = p[: len(kids)], q[kids[:, 0].clamp_min(0)].to(p.dtype)
    n = (kids >= 0).sum(1, keepdim=True)
    rho = _rho(rows, probs, n)
    capped = torch.minimum(probs, rows / rho)
    beta = capped.sum(1, keepdim=True)
    scale = torch.where(beta > 0, (1 - (1 - beta) ** n) / beta, 0.0)
    residuals = residual(rows, capped * scale)
    above = tree.parents + 1
    accept_probs = (rows[above, x] / (rho[above, 0] * draft_probs(x, q))).clamp_max(1.0)
    return TreeJudgement(merge(accept_probs, tree), residuals)


def merge(accept_probs: Float[Tensor, " K"], tree: Trie) -> Float[Tensor, " K"]:
    """Return acceptance probabilities of the first nodes of each path; 0 for repeats, which count for those nodes."""
    earlier = earlier_siblings(tree.parents)
    index = torch.arange(len(accept_probs), device=accept_probs.device)
    reached = accept_probs * torch.where(earlier, (1 - accept_probs)[None, :], 1.0).prod(1)
    total = torch.zeros_like(accept_probs).index_add(0, tree.first, reached)
    rest = 1 - earlier.to(total.dtype) @ total
    return torch.where((tree.first == index) & (total > 0), (total / rest).clamp(0.0, 1.0), 0.0)


def _rho(p: Float[Tensor, "I V"], q: Float[Tensor, "I V"], n: Int[Tensor, "I 1"]) -> Float[Tensor, "I 1"]:
    """Return the least rho of 1 to n with 1 - (1 - beta)^n <= rho beta, from above; 1 if p is q up to rounding."""
    slack = 8 * torch.finfo(p.dtype).eps
    if p.device.type != "cpu" or p.numel() > SMALL:
        rho: Tensor = _halved(p, q, n, slack, torch)
        return rho
    return torch.from_numpy(_halved(p.numpy(), q.numpy(), n.to(p.dtype).numpy(), slack, np))


def _halved(p: Any, q: Any, n: Any, slack: float, library: Any) -> Any:
    """Return `_rho` of the arrays of a library, torch or numpy."""

    def large_enough(rho: Any) -> Any:
        beta = library.minimum(q, p / rho).sum(1, keepdims=True)
        return 1 - (1 - beta) ** n <= rho * beta + slack

    low = library.ones_like(p[:, :1])
    high = library.where(large_enough(low), low, low * n.clip(1))
    for _ in range(HALVINGS):
        rho = (low + high) / 2
        enough = large_enough(rho)
        low, high = library.where(enough, low, rho), library.where(enough, rho, high)
    return high


# Bugs to inject, which `stride verify` must catch.

K_SEQ_CORRECTION_FROM_TARGET = Mutant(
    f"{__name__}:k_seq", "residual(rows, capped * scale)", "rows", "the correction token is drawn from p"
)
K_SEQ_RESIDUAL_OF_ONE = Mutant(
    f"{__name__}:k_seq",
    "residual(rows, capped * scale)",
    "residual(rows, capped)",
    "the residual is that of one candidate",
)
K_SEQ_SIBLINGS_FORGOTTEN = Mutant(
    f"{__name__}:merge",
    "(total / rest)",
    "total",
    "a node's acceptance probability ignores that its earlier siblings were rejected",
)
