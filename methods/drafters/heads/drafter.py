"""Drafts of several levels from one row of the target: each level's candidates are the best tokens of one head.

Symbols: D heads, E width, V vocabulary, W candidates of a level, K nodes.
Source: Cai et al. 2024, Medusa, arXiv:2401.10774, section 2.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.draft import Draft
from stridebench.harness.core.draws import Draws
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.methods.drafters.draft_model import check_target
from stridebench.methods.drafters.heads.net import ConditionKV, Config, Heads, Unembeds, read_config
from stridebench.methods.trees.shapes import TreeShape, best_tree, branching, published
from stridebench.methods.trees.structure import space

CANDIDATES = 10
"""Best tokens of a head that a tree may hold, as the released trees do."""
TOY_HEADS = 4
"""As deep as the deepest of the published trees."""
UNKNOWN = tuple(tuple(0.6 * 0.9**depth * 0.4**rank for rank in range(CANDIDATES)) for depth in range(8))
"""Assumed accuracy of candidates, for heads that were not measured."""


@dataclass(frozen=True)
class HeadDrafter:
    """Heads and the form of their trees; opened in every step, from cached weights.

    Args:
        heads: of the target.
        shape: of the tree.
    """

    heads: Heads
    shape: TreeShape

    @classmethod
    def open(cls, run: Run, name: str, tree: str = "", nodes: int = 12, levels: int = 0) -> HeadDrafter:
        """The heads of this name, as ``run.component`` finds them.

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
        """A tree of point masses, cut to the room that is left; nothing while there is no row to read."""
        rows, shape = run.target.hidden, self.shape.cut(run.room - 1, space(run))
        if not len(rows) or not shape.sizes:
            return run.nothing
        best = run.timed(self.best)(rows[-1])
        levels = zip(best, torch.split(shape.ranks, list(shape.sizes)), strict=False)
        grid, first = run.capabilities.grid, len(run.target)
        forced = [None if grid is None else grid.forced(first + level) for level in range(len(shape.sizes))]
        tokens = [_with_forced(row, only)[ranks] for (row, ranks), only in zip(levels, forced, strict=True)]
        return Draft(torch.cat(tokens), parents=shape.parents)

    def best(self, row: Float[Tensor, "G 1 E"]) -> Int[Tensor, "D W"]:
        """The best ids of each head, the best first."""
        logits = self.heads(row[None, :, 0])[:, 0]
        return self.heads.ids[logits.topk(min(CANDIDATES, logits.shape[1])).indices]


def opened(run: Run, kind: str, name: str, condition: int = 0) -> Heads:
    """The heads of this name, as ``run.component`` finds them, tied to the target; read once for all prompts.

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
    """Candidates of a level; where one id is forced, it is the best one."""
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
    """Heads of fixed weights, the same for every run."""
    config = Config("tabular", "", width, TOY_HEADS, layers=0 if condition else 1, condition=condition)
    toy = Heads(config, wave(vocabulary, width)).double()
    for number, weight in enumerate(toy.parameters()):
        weight.data = wave(*weight.shape) + 0.1 * number
    return toy.eval().requires_grad_(False)


def wave(*shape: int) -> Float[Tensor, ...]:
    """Weights of a toy: numbers from -1 to 1 in no regular order."""
    return torch.arange(1, 1 + prod(shape), dtype=torch.float64).square().sin().view(shape)


# Drafts of heads that attend to the target's condition: each level drawn from its own head, or a whole path at once.
# Symbols: D heads, V vocabulary, q their distributions, K drafted tokens. Source: Chen et al., XSpecMesh, Algorithm
# 1, lines 1 and 10, and section 7.3.


PRUNED = 1e-5
"""Smallest weight of a path that is drawn."""
PATHS = 100_000
"""Most paths that are enumerated."""

Choose = Callable[[Float[Tensor, "K V"], Draws], Int[Tensor, " K"]]
"""From the distribution of each level to a token of each level."""


@dataclass(frozen=True)
class ConditionedHeads:
    """Heads and how many of them draft; opened in every step, from cached weights.

    Args:
        heads: of the target.
        levels: heads that are used, the nearest first.
    """

    heads: Heads
    levels: int

    @classmethod
    def open(cls, run: Run, name: str, levels: int) -> ConditionedHeads:
        """The heads of this name, as ``run.component`` finds them.

        Args:
            levels: 0: all.

        Raises:
            WeightsError: they are not there, or made for another backbone.
            UsageError: more levels than heads, or their condition is not as wide as the target's.
        """
        heads = opened(run, "heads", name, run.capabilities.condition)
        config = heads.config
        if levels > config.heads:
            raise UsageError(f"{levels} levels are asked for and there are {config.heads} heads; ask for no more")
        width = 0 if run.condition is None else run.condition.shape[1]
        if config.condition not in (0, width):
            raise UsageError(
                f"the heads {name!r} attend to a condition of width {config.condition}, and that of {run.backbone} has "
                f"{width}: take heads that were trained for it"
            )
        return cls(heads, levels or config.heads)

    def look(self, run: Run) -> ConditionKV | None:
        """Keys and values of the prompt's condition, once a prompt; None for heads that attend to none."""
        return self.heads.look(run.condition)

    def propose(self, run: Run, condition: ConditionKV | None, choose: Choose) -> Draft:
        """A chain of point masses, cut to the room that is left; uniform ids while there is no row to read.

        Uniform ids are below the first id that ends a text, as the codes of a mesh are.
        """
        rows, count = run.target.hidden, min(self.levels, run.room - 1)
        if count < 1:
            return run.nothing
        if not len(rows):
            return Draft(run.draws.integers(count, min(run.eos, default=0) or run.capabilities.vocabulary, "init"))
        probs = run.probs(run.timed(self.heads)(rows[-1:, :, 0], condition)[:count, 0])
        return Draft(self.heads.ids[choose(probs, run.draws)])


def independent(q: Float[Tensor, "K V"], draws: Draws) -> Int[Tensor, " K"]:
    """One draw from each distribution."""
    return draws.categorical(q, "draft")


def whole_path(best: int) -> Choose:
    """A path through the ``best`` tokens of each level, with the product of their probabilities as its weight.

    Weights only fall along a path, so pruning a branch is the same as pruning the paths through it. Where no path is
    left, the best one is taken.

    Raises:
        UsageError: (when called) there are fewer tokens, or more than 100,000 paths.
    """
    return partial(_choose_path, best)


def _choose_path(best: int, q: Float[Tensor, "K V"], draws: Draws) -> Int[Tensor, " K"]:
    levels = len(q)
    if best > q.shape[1] or best**levels > PATHS:
        raise UsageError(
            f"paths through the {best} best of {q.shape[1]} tokens at {levels} levels are too many; lower "
            f"`draft_top` or `levels`"
        )
    top = q.topk(best)
    weight = top.values[0]
    for level in top.values[1:]:
        weight = (weight[:, None] * level).flatten()
    weight = torch.where(weight < PRUNED, 0.0, weight)
    first = torch.zeros_like(weight).index_fill(0, weight.new_zeros(1, dtype=torch.long), 1.0)
    path = draws.categorical(torch.where(weight.any(), weight, first)[None], "draft")
    stride = best ** torch.arange(levels - 1, -1, -1, device=q.device)
    return top.indices.gather(1, (path // stride % best)[:, None])[:, 0]
