"""Draft trees as tensors on the device: growth by the best scores, rerank, merged beginnings, and who hangs from whom.

Symbols: K nodes, C candidates, I rows that have children, V vocabulary; w children a node, k continuations of L tokens.
A node's parent comes before it; -1 is the last emitted token, whose row is 0, and node n's row is n + 1. Nothing here
loops over nodes or reads the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from harness.core.draft import Draft
from harness.core.run import Run
from harness.core.session import ancestors

ReadNodes = Callable[[Draft], Float[Tensor, "n V"]]
"""Reads nodes, whose parents count those read before, and returns the scores (log q) of what may follow each."""


def space(run: Run) -> int:
    """Nodes that the target's context has room for, behind the last emitted token."""
    return run.target.capabilities.context - len(run.target)


class Candidates(NamedTuple):
    """Nodes to choose from, level by level; a score is the sum of log q from the root down."""

    tokens: Int[Tensor, " C"]
    parents: Int[Tensor, " C"]
    scores: Float[Tensor, " C"]


def grow_best(first: Float[Tensor, "1 V"], read: ReadNodes, levels: int, width: int) -> Candidates:
    """The best children of the best nodes, level by level: C = w + (levels - 1) w^2.

    Args:
        first: log q after the last emitted token. read: asked once a level but for the last, for its w best nodes.
        levels, width: 1 or more; a width above V is V.

    Source: Li et al. 2024, EAGLE-2, arXiv:2406.16858, section 4.1; the released ``topK_genrate``.
    """
    width = min(width, first.shape[1])
    best = first[0].topk(width)
    tokens, scores = best.indices, best.values
    places = torch.arange(width, device=first.device)
    parents, window = torch.full_like(places, -1), torch.full_like(places, -1)
    found = [Candidates(tokens, parents, scores)]
    for level in range(1, levels):
        below = read(Draft(tokens, parents=window)).topk(width)
        joint = (scores[:, None] + below.values.clamp_max(0.0)).reshape(-1)
        found.append(Candidates(below.indices.reshape(-1), places.repeat_interleave(width), joint))
        ordered = joint.sort(descending=True, stable=True)
        chosen, scores = ordered.indices[:width], ordered.values[:width]
        tokens = found[-1].tokens[chosen]
        places = chosen + width + (level - 1) * width * width
        window = chosen // width + (level - 1) * width
    return Candidates(*(torch.cat(each) for each in zip(*found, strict=True)))


def rerank(candidates: Candidates, size: int) -> Draft:
    """The tree of the ``size`` best candidates. Scores choose it, so its nodes are point masses.

    Of equal scores the shallower and elder goes first, so a node is never kept without its parent.
    """
    tokens, parents, scores = candidates
    kept = scores.sort(descending=True, stable=True).indices[:size].sort().values
    place = torch.full_like(parents, -1).scatter(0, kept, torch.arange(len(kept), device=kept.device))
    above = parents[kept]
    return Draft(tokens[kept], parents=torch.where(above < 0, -1, place[above.clamp_min(0)]))


class Trie(NamedTuple):
    """Continuations merged where they begin alike; node e k + j is token e of continuation j.

    Args:
        first: the node that stands for each: itself, or an elder one of the same path.
    """

    parents: Int[Tensor, " K"]
    first: Int[Tensor, " K"]


def trie(tokens: Int[Tensor, "L k"]) -> Trie:
    """Where the nodes of k continuations of one token or more hang: below the first node of their parent's path."""
    count = tokens.shape[1]
    index = torch.arange(count, device=tokens.device)
    alike = torch.ones(count, count, dtype=torch.bool, device=tokens.device)
    firsts: list[Tensor] = []
    for said in tokens:
        alike = alike & (said[:, None] == said[None, :])
        firsts.append(alike.long().argmax(1) + len(firsts) * count)
    return Trie(torch.cat([torch.full_like(index, -1), *firsts[:-1]]), torch.cat(firsts))


def elder_siblings(parents: Int[Tensor, " K"]) -> Bool[Tensor, "K K"]:
    """Row k marks the nodes before k with the same parent."""
    index = torch.arange(len(parents), device=parents.device)
    return (parents[:, None] == parents[None, :]) & (index[None, :] < index[:, None])


def repeats(tokens: Int[Tensor, " K"], parents: Int[Tensor, " K"]) -> Bool[Tensor, " K"]:
    """Marks nodes with the token of an elder sibling, and those below them."""
    twice = (elder_siblings(parents) & (tokens[:, None] == tokens[None, :])).any(1)
    return (ancestors(parents) & twice[None, :]).any(1)


def children(parents: Int[Tensor, " K"], rows: int, width: int) -> Int[Tensor, "I w"]:
    """Nodes that hang from each of the first rows, in order; -1 behind the last one.

    Args:
        width: no row has more children.
    """
    rank = elder_siblings(parents).sum(1)
    table = torch.full((len(parents) + 1, width), -1, device=parents.device)
    table[parents + 1, rank] = torch.arange(len(parents), device=parents.device)
    return table[:rows]


def paths(parents: Int[Tensor, " K"], levels: int) -> Int[Tensor, "K d"]:
    """Row k lists the nodes from the root's child down to node k; -1 behind it. No node is deeper than ``levels``."""
    size = len(parents)
    index = torch.arange(size, device=parents.device)
    ordered = torch.where(ancestors(parents), index, size).sort(1).values[:, :levels]
    return torch.where(ordered < size, ordered, -1)
