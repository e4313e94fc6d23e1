"""Acceptance on trees that keeps what is likely enough, or what an independent draw of the target equals: both biased.

Symbols: x drafted tokens, p target's law, K nodes, R = K + 1 rows (0 after the last emitted token, k + 1 after node k).
Source: Cai et al. 2024, Medusa, arXiv:2401.10774, section 2.3.1, and its released ``evaluate_posterior``.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from harness.core.draft import Acceptance, Draft, Path
from harness.core.draws import Draws
from harness.core.session import ancestors
from methods.trees.structure import paths


def threshold(p: Float[Tensor, "R V"], epsilon: float, alpha: float) -> Float[Tensor, " R"]:
    """min(epsilon, alpha exp(-H(p))) of each row, with the entropy in nats."""
    return (alpha * torch.exp(torch.special.entr(p).sum(1).neg())).clamp_max(epsilon)


def verify_typical(
    draft: Draft, p: Float[Tensor, "R V"], draws: Draws, limit: Float[Tensor, " R"], *, greedy: bool
) -> Acceptance:
    """Keep the longest path whose tokens all have p(x) above their row's limit; of equals the most probable one.

    Args:
        draft: without probes. limit: of each row, see `threshold`. greedy: close with the most probable token, instead
            of a draw of p.

    Only the closing token is drawn. At T = 0 the longest path of argmaxima, as any limit below 1 is.
    """
    x, parents = draft.tokens, draft.explicit_parents
    if not draft.proposed:
        return Acceptance(Path.root(p), _closing(p[:1], draws, greedy))
    px, above = p[parents + 1, x], ancestors(parents)
    kept = (~above | (px > limit[parents + 1])[None, :]).all(1)
    depth = torch.where(kept, above.sum(1), 0)
    likely = torch.where(above, px.log()[None, :], 0.0).sum(1)
    best = likely.where(kept & (depth == depth.max()), -torch.inf).argmax()
    index = torch.arange(len(x), device=x.device)
    nodes = index.where(above[best] & kept.any(), len(x)).sort().values
    stop = torch.where(kept.any(), best + 1, 0)
    path = Path(nodes.where(nodes < len(x), -1), stop, depth.max().to(p.dtype))
    return Acceptance(path, _closing(p.index_select(0, stop.reshape(1)), draws, greedy))


def _closing(row: Float[Tensor, "1 V"], draws: Draws, greedy: bool) -> Int[Tensor, ""]:
    return row[0].argmax() if greedy else draws.categorical(row, "resid")[0]


def verify_redrawn(draft: Draft, p: Float[Tensor, "R V"], draws: Draws, levels: int) -> Acceptance:
    """Keep the longest path on which a draw of p at each node, anew for each leaf, equals the draft; then draw again.

    Biased: behind a draw that was no draft comes another draw of p, so a draft is emitted with p + p (1 - p), and more
    where several leaves lie below it. Draws only whether each draw equals its draft.

    Args:
        draft: without probes. levels: of its tree.
    """
    x, parents = draft.tokens, draft.explicit_parents
    if not draft.proposed:
        return Acceptance(Path.root(p), draws.categorical(p[:1], "resid")[0])
    leaf = torch.ones(len(x) + 1, dtype=torch.bool, device=x.device).index_fill(0, parents + 1, False)[1:]
    nodes = paths(parents, levels)
    there = (nodes >= 0) & leaf[:, None]
    equal = p[parents + 1, x][nodes.clamp_min(0)].where(there, 0.0)
    coins = torch.stack([equal, 1 - equal], -1).reshape(-1, 2)
    reached = (draws.categorical(coins, "accept") == 0).view_as(there).long().cumprod(1)
    length = reached.sum(1)
    best = length.argmax()
    path = nodes[best].where(reached[best] > 0, -1)
    stop = path.max() + 1
    missed = (1 - equal.cumprod(1)).prod(0)  # by all leaves, at each level
    padded = torch.cat([path, path.new_full((len(x) - levels,), -1)])
    probs = p.index_select(0, stop.reshape(1))
    return Acceptance(Path(padded, stop, (1 - missed).sum()), draws.categorical(probs, "resid")[0])
