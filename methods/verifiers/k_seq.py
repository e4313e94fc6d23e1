"""k-SEQ: acceptance where k independent continuations are merged into a trie.

Symbols: x drafted tokens, q the law each was drawn from, p target's law; K nodes, R = K + 1 rows, the first I of which
all children hang from; n candidates of a row, repeats too, beta the sum of min(q, p / rho).
Source: Sun et al. 2023, SpecTr, arXiv:2310.15141, Algorithm 3; rho is the paper's, solved for at each row.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from harness.core.draft import Acceptance, Draft
from harness.core.draws import Draws
from methods.trees.structure import Trie, children, earlier_siblings, trie
from methods.verifiers.rejection import draft_probs, residual
from methods.verifiers.tree import TreeJudgement, verify_delta, walk

HALVINGS = 16
"""Of the bracket of rho; its upper end is exact after any number of them, and within 1e-5 k of the best after these."""


def verify_k_seq(draft: Draft, p: Float[Tensor, "R V"], draws: Draws, k: int) -> Acceptance:
    """Walk down the trie of k continuations, which were drawn independently.

    Args:
        draft: node e k + j is token e of continuation j; its law holds q, its parents are those of `trees.trie`.

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
    """Each of a row's n candidates, repeats too, is taken with min(1, p / (rho q)); rho is solved for each row.

    All refused, the law is p - min(q, p / rho) (1 - (1 - beta)^n) / beta, renormalised.
    """
    rows, probs = p[: len(kids)], q[kids[:, 0].clamp_min(0)].to(p.dtype)
    n = (kids >= 0).sum(1, keepdim=True)
    rho = _rho(rows, probs, n)
    capped = torch.minimum(probs, rows / rho)
    beta = capped.sum(1, keepdim=True)
    used = torch.where(beta > 0, (1 - (1 - beta) ** n) / beta, 0.0)
    left = residual(rows, capped * used)
    at = tree.parents + 1
    taken = (rows[at, x] / (rho[at, 0] * draft_probs(x, q))).clamp_max(1.0)
    return TreeJudgement(merge(taken, tree), left)


def merge(taken: Float[Tensor, " K"], tree: Trie) -> Float[Tensor, " K"]:
    """Odds of the nodes that stand for themselves, where a repeat that is taken means the node it repeats; else 0."""
    elder, index = earlier_siblings(tree.parents), torch.arange(len(taken), device=taken.device)
    come = taken * torch.where(elder, (1 - taken)[None, :], 1.0).prod(1)
    whole = torch.zeros_like(taken).index_add(0, tree.first, come)
    rest = 1 - elder.to(whole.dtype) @ whole
    return torch.where((tree.first == index) & (whole > 0), (whole / rest).clamp(0.0, 1.0), 0.0)


def _rho(p: Float[Tensor, "I V"], q: Float[Tensor, "I V"], n: Int[Tensor, "I 1"]) -> Float[Tensor, "I 1"]:
    """From above, the least rho of 1 to n with 1 - (1 - beta)^n <= rho beta; 1 where p is q but for rounding."""
    rounding = 8 * torch.finfo(p.dtype).eps

    def enough(rho: Float[Tensor, "I 1"]) -> Bool[Tensor, "I 1"]:
        beta = torch.minimum(q, p / rho).sum(1, keepdim=True)
        return 1 - (1 - beta) ** n <= rho * beta + rounding

    low = torch.ones_like(p[:, :1])
    high = torch.where(enough(low), low, low * n.clamp_min(1))
    for _ in range(HALVINGS):
        rho = (low + high) / 2
        found = enough(rho)
        low, high = torch.where(found, low, rho), torch.where(found, rho, high)
    return high
