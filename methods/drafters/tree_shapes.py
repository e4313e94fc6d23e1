"""Trees of a fixed form, known before anything is drawn.

Symbols: K nodes, in the order of their levels; a node's parent comes before it, and -1 is the last emitted token.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from stridebench.harness.errors import UnknownNameError, UsageError


@dataclass(frozen=True)
class TreeShape:
    """A tree of a fixed form, level by level.

    Args:
        ranks: which child of its parent it is, from 0.
    """

    parents: Int[Tensor, " K"]
    ranks: Int[Tensor, " K"]
    sizes: tuple[int, ...]

    @property
    def width(self) -> int:
        """Return the largest number of children of a node; reads the tensors on their device."""
        return int(self.ranks.max()) + 1 if len(self.ranks) else 0

    @property
    def inner(self) -> int:
        """Return the number of rows of the root and of all levels but the last."""
        return 1 + sum(self.sizes[:-1])

    def cut(self, levels: int, nodes: int) -> TreeShape:
        """Return the first ``levels`` levels, fewer if they have more than ``nodes`` nodes together."""
        sizes = self.sizes[: max(0, levels)]
        while sum(sizes) > nodes:
            sizes = sizes[:-1]
        return TreeShape(self.parents[: sum(sizes)], self.ranks[: sum(sizes)], sizes)

    def __deepcopy__(self, memo: dict[int, Any]) -> TreeShape:
        return self  # nothing writes to it

    def on(self, device: torch.device) -> TreeShape:
        """Return this shape on a device."""
        return TreeShape(self.parents.to(device), self.ranks.to(device), self.sizes)


def template(paths: Sequence[Sequence[int]]) -> TreeShape:
    """Return a static tree from the paths to its nodes: (0, 2) is the third child of the first child of the root."""
    ordered = sorted((tuple(path) for path in paths), key=lambda path: (len(path), path))
    index = {path: node for node, path in enumerate(ordered)}
    for path in ordered:
        if not path or len(index) < len(ordered) or (len(path) > 1 and path[:-1] not in index):
            raise UsageError(
                f"a tree of {len(ordered)} paths: {path} is empty, twice there or hangs from no other path"
            )
    parents = torch.tensor([index.get(path[:-1], -1) for path in ordered], dtype=torch.long)
    ranks = torch.tensor([path[-1] for path in ordered], dtype=torch.long)
    depths = [len(path) for path in ordered]
    return TreeShape(parents, ranks, tuple(depths.count(depth) for depth in range(1, max(depths, default=0) + 1)))


def branching(widths: Sequence[int]) -> TreeShape:
    """Return a tree in which each node of a level has as many children as the next width; widths of 1 are a chain."""
    if any(width < 1 for width in widths):
        raise UsageError(f"widths of a tree are {tuple(widths)}; each level has 1 child a node or more")
    paths: list[tuple[int, ...]] = [()]
    every: list[tuple[int, ...]] = []
    for width in widths:
        paths = [(*path, rank) for path in paths for rank in range(width)]
        every += paths
    return template(every)


FILE = Path(__file__).with_suffix(".json")
"""Paths of each tree; (0, 2) is the third best token behind the best one."""


@lru_cache(maxsize=1)
def choices() -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return the paths of the published trees by name."""
    read = json.loads(FILE.read_text(encoding="utf-8"))
    return {name: tuple(map(tuple, paths)) for name, paths in read.items()}


def published(name: str, levels: int, width: int, vocabulary: int | None = None) -> TreeShape:
    """Return a published tree: of Medusa, arXiv:2401.10774, section 2.3.3 and appendix, or a released choice.

    Args:
        width: how many tokens it has to choose from at a level.
        vocabulary: V; nodes of ranks that it does not have are left out.

    Raises:
        UsageError: there is no such tree, or it is deeper or wider than that.
    """
    if name not in choices():
        raise UnknownNameError("tree", name, choices())
    shape = template([path for path in choices()[name] if vocabulary is None or max(path) < vocabulary])
    widest = int(shape.ranks.max()) + 1
    if len(shape.sizes) > levels or widest > width:
        raise UsageError(
            f"the tree {name!r} is {len(shape.sizes)} levels deep and takes the {widest} best tokens, and the drafter "
            f"has {levels} levels of {width} candidates: take a smaller tree, or say `nodes`"
        )
    return shape


def best_tree(ranks: Sequence[Sequence[float]], nodes: int) -> TreeShape:
    """Return the tree of ``nodes`` nodes in which most tokens are expected to be right.

    Args:
        ranks: how often the r-th candidate of each level is right, falling with r.
        nodes: 1 or more; a drafter that has fewer candidates gives a smaller tree.

    A node's probability of being right is the product along its path, so the best nodes always form a tree.
    """
    paths: list[tuple[int, ...]] = []
    heap: list[tuple[float, tuple[int, ...]]] = [(-ranks[0][0], (0,))] if ranks and ranks[0] else []
    while heap and len(paths) < nodes:
        chance, path = heapq.heappop(heap)
        paths.append(path)
        depth, rank = len(path), path[-1]
        if rank + 1 < len(ranks[depth - 1]):
            level = ranks[depth - 1]
            scaled = chance * level[rank + 1] / level[rank] if level[rank] else 0.0
            heapq.heappush(heap, (scaled, (*path[:-1], rank + 1)))
        if depth < len(ranks) and ranks[depth]:
            heapq.heappush(heap, (chance * ranks[depth][0], (*path, 0)))
    return template(paths)
