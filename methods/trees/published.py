"""Static trees: published ones by name, and the best tree of so many nodes for heads whose accuracy is known.

Sources: Cai et al. 2024, Medusa, arXiv:2401.10774, section 2.3.3 and appendix; its released choices, by their names.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from stridebench.harness.errors import UnknownNameError, UsageError
from stridebench.methods.trees.shapes import Shape, template

FILE = Path(__file__).with_name("published.json")
"""Paths of each tree; (0, 2) is the third best token behind the best one."""


@lru_cache(maxsize=1)
def choices() -> dict[str, tuple[tuple[int, ...], ...]]:
    """Paths of the published trees by name."""
    read = json.loads(FILE.read_text(encoding="utf-8"))
    return {name: tuple(map(tuple, paths)) for name, paths in read.items()}


def published(name: str, levels: int, width: int, vocabulary: int | None = None) -> Shape:
    """A published tree.

    Args:
        levels: how deep the drafter looks.
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


def best_tree(ranks: Sequence[Sequence[float]], nodes: int) -> Shape:
    """The tree of ``nodes`` nodes in which most tokens are expected to be right.

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
