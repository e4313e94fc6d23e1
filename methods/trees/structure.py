"""The structure of draft trees as tensors on the device: tries, siblings, children and paths.

Symbols: K nodes, I rows that have children, w children of a node, k continuations of L tokens.
A node's parent comes before it; -1 is the last emitted token. The row after the last emitted token is 0, and that after
node n is n + 1. Nothing here loops over nodes or reads the device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from stridebench.harness.core.method import Mutant
from stridebench.harness.core.run import Run
from stridebench.harness.core.session import ancestors


def space(run: Run) -> int:
    """Nodes that the target's context has room for, behind the last emitted token."""
    return run.target.capabilities.context - len(run.target)


class Trie(NamedTuple):
    """Continuations merged where they begin alike; node e k + j is token e of continuation j.

    Args:
        first: the node that stands for each: itself, or an earlier one of the same path.
    """

    parents: Int[Tensor, " K"]
    first: Int[Tensor, " K"]


def trie(tokens: Int[Tensor, "L k"]) -> Trie:
    """Parents of the nodes of k continuations of one token or more: the first node of their parent's path."""
    count = tokens.shape[1]
    index = torch.arange(count, device=tokens.device)
    same_path = torch.ones(count, count, dtype=torch.bool, device=tokens.device)
    firsts: list[Tensor] = []
    for level in tokens:
        same_path = same_path & (level[:, None] == level[None, :])
        firsts.append(same_path.long().argmax(1) + len(firsts) * count)
    return Trie(torch.cat([torch.full_like(index, -1), *firsts[:-1]]), torch.cat(firsts))


def earlier_siblings(parents: Int[Tensor, " K"]) -> Bool[Tensor, "K K"]:
    """Row k marks the nodes before k with the same parent."""
    index = torch.arange(len(parents), device=parents.device)
    return (parents[:, None] == parents[None, :]) & (index[None, :] < index[:, None])


def repeats(tokens: Int[Tensor, " K"], parents: Int[Tensor, " K"]) -> Bool[Tensor, " K"]:
    """Marks nodes with the token of an earlier sibling, and those below them."""
    repeated = (earlier_siblings(parents) & (tokens[:, None] == tokens[None, :])).any(1)
    return (ancestors(parents) & repeated[None, :]).any(1)


def children(parents: Int[Tensor, " K"], rows: int, width: int) -> Int[Tensor, "I w"]:
    """Nodes that hang from each of the first rows, in order; -1 behind the last one.

    Args:
        width: no row has more children.
    """
    rank = earlier_siblings(parents).sum(1)
    table = torch.full((len(parents) + 1, width), -1, device=parents.device)
    table[parents + 1, rank] = torch.arange(len(parents), device=parents.device)
    return table[:rows]


def paths(parents: Int[Tensor, " K"], levels: int) -> Int[Tensor, "K d"]:
    """Row k lists the nodes from the root's child down to node k; -1 behind it. No node is deeper than ``levels``."""
    size = len(parents)
    index = torch.arange(size, device=parents.device)
    ordered = torch.where(ancestors(parents), index, size).sort(1).values[:, :levels]
    return torch.where(ordered < size, ordered, -1)


# Bugs to inject into the drawing of siblings.


SIBLINGS = "stridebench.methods.trees.sampled:siblings"

EARLIER_SIBLINGS_NOT_REMOVED = Mutant(
    SIBLINGS,
    "left = q[:, None].where(drawn.cumsum(1) - drawn == 0, 0.0)",
    "left = q[:, None].expand_as(drawn)",
    "siblings without replacement are recorded with the whole distribution",
)
MOST_PROBABLE_SIBLINGS = Mutant(
    SIBLINGS,
    'draws.distinct(q, count, "draft")',
    "q.topk(count).indices",
    "the ratio test on the k best tokens, which nobody drew",
)
SIBLINGS_SORTED_BY_CONFIDENCE = Mutant(
    SIBLINGS,
    'draws.distinct(q, count, "draft")',
    '(lambda t: t.gather(1, q.gather(1, t).argsort(1, descending=True)))(draws.distinct(q, count, "draft"))',
    "sampled siblings are put in the order of their confidence",
)
