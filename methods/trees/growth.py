"""Trees of the most probable drafts: growth by the products of q, and the best nodes of what was grown.

Symbols: K nodes, C candidates, V vocabulary, w children of a node.
Source: Li et al. 2024, EAGLE-2, arXiv:2406.16858, sections 4.1 and 4.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.draft import Draft

ReadNodes = Callable[[Draft], Float[Tensor, "n V"]]
"""Reads nodes, whose parents count those read before, and returns log q of the tokens after each."""


class Candidates(NamedTuple):
    """Nodes to choose from, level by level; a score is the sum of log q along the path.

    Attributes:
        levels: that were built.
    """

    tokens: Int[Tensor, " C"]
    parents: Int[Tensor, " C"]
    scores: Float[Tensor, " C"]
    levels: int


def grow_best(first: Float[Tensor, "1 V"], read: ReadNodes, levels: int, width: int) -> Candidates:
    """The best children of the best nodes, level by level: C = w + (levels - 1) w^2.

    Args:
        first: log q after the last emitted token.
        read: called once a level but for the last, with its w best nodes.
        levels: 1 or more.
        width: 1 or more; a width above V is V.

    Source: Li et al. 2024, EAGLE-2, arXiv:2406.16858, section 4.1; the released ``topK_genrate``.
    """
    width = min(width, first.shape[1])
    best = first[0].topk(width)
    tokens, scores = best.indices, best.values
    nodes = torch.arange(width, device=first.device)
    parents, window = torch.full_like(nodes, -1), torch.full_like(nodes, -1)
    grown = [(tokens, parents, scores)]
    for level in range(1, levels):
        below = read(Draft(tokens, parents=window)).topk(width)
        joint = (scores[:, None] + below.values.clamp_max(0.0)).reshape(-1)
        grown.append((below.indices.reshape(-1), nodes.repeat_interleave(width), joint))
        ordered = joint.sort(descending=True, stable=True)
        chosen, scores = ordered.indices[:width], ordered.values[:width]
        tokens = grown[-1][0][chosen]
        nodes = chosen + width + (level - 1) * width * width
        window = chosen // width + (level - 1) * width
    all_tokens, all_parents, all_scores = (torch.cat(columns) for columns in zip(*grown, strict=True))
    return Candidates(all_tokens, all_parents, all_scores, levels)


def rerank(candidates: Candidates, size: int) -> Draft:
    """The tree of the ``size`` best candidates. Scores choose it, so its nodes are point masses.

    Of equal scores the shallower and earlier goes first, so no node is selected without its parent.
    """
    tokens, parents, scores, levels = candidates
    best = scores.sort(descending=True, stable=True).indices[:size].sort().values
    place = torch.full_like(parents, -1).scatter(0, best, torch.arange(len(best), device=best.device))
    above = parents[best]
    kept_parents = torch.where(above < 0, -1, place[above.clamp_min(0)])
    return Draft(tokens[best], parents=kept_parents, levels_built=levels)
