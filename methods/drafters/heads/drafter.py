"""Drafts of several levels from one row of the target: each level's candidates are the best tokens of one head.

Symbols: D heads, E width, V vocabulary, W candidates of a level, K nodes.
Source: Cai et al. 2024, Medusa, arXiv:2401.10774, section 2.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.draft import Draft
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.methods.drafters.checkpoint import check_target
from stridebench.methods.drafters.heads.net import Config, Heads, Unembeds, read_config
from stridebench.methods.drafters.tree_shapes import TreeShape, best_tree, branching, published

CANDIDATES = 10
"""Best tokens of a head that a tree may hold, as the released trees do."""
TOY_HEADS = 4
"""As deep as the deepest of the published trees."""
UNKNOWN = tuple(tuple(0.6 * 0.9**depth * 0.4**rank for rank in range(CANDIDATES)) for depth in range(8))
"""Assumed accuracy of candidates, for heads that were not measured."""


@dataclass(frozen=True)
class HeadDrafter:
    """Heads and the form of their trees; opened in every step, from cached weights."""

    heads: Heads
    shape: TreeShape

    @classmethod
    def open(cls, run: Run, name: str, tree: str = "", nodes: int = 12, levels: int = 0) -> HeadDrafter:
        """Open the heads of this name, as ``run.component`` finds them.

        Args:
            tree: a published one, ``chain``, or "" for the best tree of ``nodes`` nodes by the accuracy of the heads.
            levels: heads that are used, the nearest first; 0: all, or as many as the tree has.

        Raises:
            WeightsError: they are not there, or made for another backbone.
            UsageError: they have one branch and the target is guided, or the tree needs more heads or candidates than
                there are.
        """
        heads = opened(run, "drafter", name)
        return cls(heads, _shape(heads, tree, nodes, levels, run.target.device))

    def propose(self, run: Run) -> Draft:
        """Return a tree of point masses, cut to the room that is left; nothing while there is no row to read."""
        rows, shape = run.target.hidden, self.shape.cut(run.room - 1, run.space)
        if not len(rows) or not shape.sizes:
            return run.nothing
        best = run.timed(self.best)(rows[-1])
        levels = zip(best, torch.split(shape.ranks, list(shape.sizes)), strict=False)
        grid, first = run.capabilities.grid, len(run.target)
        forced = [None if grid is None else grid.forced(first + level) for level in range(len(shape.sizes))]
        tokens = [_with_forced(row, only)[ranks] for (row, ranks), only in zip(levels, forced, strict=True)]
        return Draft(torch.cat(tokens), parents=shape.parents)

    def best(self, row: Float[Tensor, "G 1 E"]) -> Int[Tensor, "D W"]:
        """Return the best ids of each head, the best first."""
        logits = self.heads(row[None, :, 0])[:, 0]
        return self.heads.ids[logits.topk(min(CANDIDATES, logits.shape[1])).indices]


def opened(run: Run, kind: str, name: str, condition: int = 0) -> Heads:
    """Return the heads of this name, as ``run.component`` finds them, tied to the target; read once for all prompts.

    Args:
        condition: C, of the condition that a toy's heads attend to; 0: none.

    Raises:
        WeightsError: they are not there, or made for another backbone.
        UsageError: they have one branch and the target is guided.
    """
    folder = run.component(kind, name)
    if folder is None:
        return toy_heads(run.capabilities.vocabulary, run.capabilities.width, condition)
    check_target(_config(folder), run)
    return _load(folder, run.tied_embeddings)


def _with_forced(row: Int[Tensor, " W"], only: int | None) -> Int[Tensor, " W"]:
    """Return the candidates of a level; if one id is forced, it is the best one."""
    return row if only is None else torch.cat([row.new_tensor([only]), row[1:]])


@lru_cache(maxsize=16)
def _shape(heads: Heads, tree: str, nodes: int, levels: int, device: torch.device) -> TreeShape:
    config, width = heads.config, min(CANDIDATES, len(heads.ids))
    if levels > config.heads:
        raise UsageError(f"{levels} levels are asked for and the drafter has {config.heads} heads; ask for no more")
    most = levels or config.heads
    if tree == "chain":
        return branching((1,) * most).on(device)
    if tree:
        shape = published(tree, config.heads, width)
        return shape.cut(levels or len(shape.sizes), len(shape.parents)).on(device)
    ranks = config.ranks or UNKNOWN
    return best_tree([row[:width] for row in ranks[:most]], nodes).on(device)


@lru_cache(maxsize=4)
def _load(folder: Path, tied_embeddings: Callable[[], Unembeds]) -> Heads:
    """Read once for all prompts of a backbone."""
    return Heads.load(folder, tied_embeddings)


@lru_cache(maxsize=4)
def _config(folder: Path) -> Config:
    return read_config(folder)


@lru_cache(maxsize=8)
def toy_heads(vocabulary: int, width: int, condition: int = 0) -> Heads:
    """Return heads of fixed weights, the same for every run."""
    config = Config("tabular", "", width, TOY_HEADS, layers=0 if condition else 1, condition=condition)
    toy = Heads(config, wave(vocabulary, width)).double()
    for number, weight in enumerate(toy.parameters()):
        weight.data = wave(*weight.shape) + 0.1 * number
    return toy.eval().requires_grad_(False)


def wave(*shape: int) -> Float[Tensor, ...]:
    """Return weights of a toy: numbers from -1 to 1 in no regular order."""
    return torch.arange(1, 1 + prod(shape), dtype=torch.float64).square().sin().view(shape)
