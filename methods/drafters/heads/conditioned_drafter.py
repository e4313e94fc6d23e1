"""Drafts of heads that attend to the target's condition: each level drawn from its own head, or a whole path at once.

Symbols: D heads, V vocabulary, q their distributions, K drafted tokens.
Source: Chen et al., XSpecMesh, Algorithm 1, lines 1 and 10, and section 7.3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.draft import Draft
from stridebench.harness.core.draws import Draws
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.methods.drafters.heads.drafter import opened
from stridebench.methods.drafters.heads.layers import ConditionKV
from stridebench.methods.drafters.heads.net import Heads

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
