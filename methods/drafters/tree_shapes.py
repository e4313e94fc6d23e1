"""Trees of a fixed form, known before anything is drawn, and trees of this form that small models draw.

Symbols: K nodes, in the order of their levels; a node's parent comes before it, and -1 is the last emitted token.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.draft import Draft
from stridebench.harness.core.draws import Draws
from stridebench.harness.core.method import Mutant
from stridebench.harness.core.run import Run
from stridebench.harness.core.session import Session
from stridebench.harness.errors import UnknownNameError, UsageError
from stridebench.methods.verifiers.tree import repeats, trie


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


class Siblings(NamedTuple):
    """Children of n nodes, in the order of their drawing, and the distribution of each given those before it."""

    tokens: Int[Tensor, "n w"]
    probs: Float[Tensor, "n w V"]


def siblings(q: Float[Tensor, "n V"], count: int, draws: Draws, replacement: bool) -> Siblings:
    """Draw ``count`` tokens from each row; without replacement a row that runs out goes on with point masses, by id."""
    if replacement:
        probs = q.repeat_interleave(count, 0)
        return Siblings(draws.categorical(probs, "draft").view(-1, count), probs.view(-1, count, q.shape[1]))
    tokens = draws.distinct(q, count, "draft")
    drawn = torch.zeros_like(q)[:, None].expand(-1, count, -1).scatter(2, tokens[:, :, None], 1.0)
    left = q[:, None].where(drawn.cumsum(1) - drawn == 0, 0.0)
    mass = left.sum(2, keepdim=True)
    return Siblings(tokens, torch.where(mass > 0, left / mass, drawn))


@dataclass
class BranchingDrafter:
    """Grows a tree in as many passes of each drafter as it has levels.

    Args:
        widths: w of each level.
        continuations: k, which are merged as far as they begin alike; 0 for a tree.
        shape: of the last tree, with all drafters' nodes.
    """

    sessions: list[Session]
    widths: tuple[int, ...]
    replacement: bool
    continuations: int = 0
    shape: TreeShape = field(init=False)

    def __post_init__(self) -> None:
        self._whole = branching([width * len(self.sessions) for width in self.widths]).on(self.sessions[0].device)
        self.shape = self._whole

    def propose(self, run: Run) -> Draft:
        """Return the tree, its levels cut to the room that is left; no child is dropped or moved for its value."""
        for session in self.sessions:
            session.sync(run.target.tokens)
        room = min(run.space, *(session.capabilities.context - len(session) for session in self.sessions))
        self.shape = self._whole.cut(run.room - 1, room)
        tokens: list[Tensor] = []
        probs: list[Tensor] = []
        parents = torch.split(self.shape.parents, list(self.shape.sizes))
        for level, width in enumerate(self.widths[: len(parents)]):
            above = Draft(tokens[-1], parents=parents[level - 1]) if level else None
            drawn = [self._drawn(run, session, above, width) for session in self.sessions]
            tokens.append(torch.cat([children.tokens for children in drawn], 1).reshape(-1))
            probs.append(torch.cat([children.probs for children in drawn], 1).flatten(0, 1))
        return self._joined(tokens, probs) if tokens else run.nothing

    def _drawn(self, run: Run, session: Session, above: Draft | None, width: int) -> Siblings:
        logits = session.forward() if above is None else session.grow(above)
        return siblings(run.probs(logits), width, run.draws, self.replacement)

    def _joined(self, tokens: Sequence[Tensor], probs: Sequence[Tensor]) -> Draft:
        ids, parents = torch.cat(list(tokens)), self.shape.parents
        if self.continuations:
            parents, first = trie(ids.view(-1, self.continuations))
            repeated = first != torch.arange(len(ids), device=first.device)
            return Draft(ids, torch.cat(list(probs)), parents, repeats=repeated)
        return Draft(ids, torch.cat(list(probs)), parents, repeats=repeats(ids, parents))


EARLIER_SIBLINGS_NOT_REMOVED = Mutant(
    f"{__name__}:siblings",
    "left = q[:, None].where(drawn.cumsum(1) - drawn == 0, 0.0)",
    "left = q[:, None].expand_as(drawn)",
    "siblings without replacement are recorded with the whole distribution",
)
MOST_PROBABLE_SIBLINGS = Mutant(
    f"{__name__}:siblings",
    'draws.distinct(q, count, "draft")',
    "q.topk(count).indices",
    "the ratio test on the k best tokens, which nobody drew",
)
SIBLINGS_SORTED_BY_CONFIDENCE = Mutant(
    f"{__name__}:siblings",
    'draws.distinct(q, count, "draft")',
    '(lambda t: t.gather(1, q.gather(1, t).argsort(1, descending=True)))(draws.distinct(q, count, "draft"))',
    "sampled siblings are put in the order of their confidence",
)
