"""Trees of a fixed form, known before anything is drawn.

Symbols: K nodes, in the order of their levels; a node's parent comes before it, and -1 is the last emitted token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from stridebench.harness.errors import UsageError


@dataclass(frozen=True)
class Shape:
    """A tree of a fixed form, level by level.

    Args:
        parents: of each node.
        ranks: which child of its parent it is, from 0.
        sizes: nodes of each level.
    """

    parents: Int[Tensor, " K"]
    ranks: Int[Tensor, " K"]
    sizes: tuple[int, ...]

    @property
    def width(self) -> int:
        """Most children of a node; reads the tensors where they are."""
        return int(self.ranks.max()) + 1 if len(self.ranks) else 0

    @property
    def inner(self) -> int:
        """Rows of the root and of all levels but the last."""
        return 1 + sum(self.sizes[:-1])

    def cut(self, levels: int, nodes: int) -> Shape:
        """The first ``levels`` levels, fewer where they have more than ``nodes`` nodes together."""
        sizes = self.sizes[: max(0, levels)]
        while sum(sizes) > nodes:
            sizes = sizes[:-1]
        return Shape(self.parents[: sum(sizes)], self.ranks[: sum(sizes)], sizes)

    def __deepcopy__(self, memo: dict[int, Any]) -> Shape:
        return self  # nothing writes to it

    def on(self, device: torch.device) -> Shape:
        """The same on a device."""
        return Shape(self.parents.to(device), self.ranks.to(device), self.sizes)


def template(paths: Sequence[Sequence[int]]) -> Shape:
    """A static tree from the paths to its nodes: (0, 2) is the third child of the first child of the root.

    Raises:
        UsageError: a path is empty or repeated, or one that it goes through is missing.
    """
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
    return Shape(parents, ranks, tuple(depths.count(depth) for depth in range(1, max(depths, default=0) + 1)))


def branching(widths: Sequence[int]) -> Shape:
    """Each node of a level has as many children as the next width says; widths of 1 are a chain.

    Raises:
        UsageError: a width is below 1.
    """
    if any(width < 1 for width in widths):
        raise UsageError(f"widths of a tree are {tuple(widths)}; each level has 1 child a node or more")
    paths: list[tuple[int, ...]] = [()]
    every: list[tuple[int, ...]] = []
    for width in widths:
        paths = [(*path, rank) for path in paths for rank in range(width)]
        every += paths
    return template(every)
