"""Multi-head speculative decoding of meshes: heads that attend to the condition draft, the backbone verifies.

Source: Chen et al., XSpecMesh, Algorithm 1 (which never advances s), sections 4.1, 4.2, 5.4 and 7.3.
Symbols: x drafted tokens, p the target's distributions, delta threshold, K_a best tokens accepted, K_s best tokens
drafted.
The paper draws x[s*] from p and the tokens behind it from the heads at the end of a cycle. Here x[s*] is the last token
of a step, and the others are drafted from the same row when the next step begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance, Draft
from stridebench.harness.core.draws import Draws
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling, warp
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.heads.drafter import opened
from stridebench.methods.drafters.heads.net import ConditionKV, Heads
from stridebench.methods.verifiers.typical import (
    DRAFTS_JUDGED_BY_NEIGHBOUR_ROW,
    IMPROBABLE_DRAFTS_KEPT,
    NEXT_TOKEN_FROM_ROW_BEFORE,
    above,
    among_best,
    keep_passing,
)

RAW = Sampling(1.0)
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
        """Open the heads of this name, as ``run.component`` finds them.

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
        """Return keys and values of the prompt's condition, once a prompt, or None if the heads attend to none."""
        return self.heads.look(run.condition)

    def propose(self, run: Run, condition: ConditionKV | None, choose: Choose) -> Draft:
        """Return a chain of point masses, cut to the room that is left; uniform ids while there is no row to read.

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
    """Draw a token from each distribution."""
    return draws.categorical(q, "draft")


def whole_path(best: int) -> Choose:
    """Return a choice of paths through the ``best`` tokens of each level, weighted by the product of probabilities.

    Weights only fall along a path, so pruning a branch is the same as pruning the paths through it. If no path is left,
    the best one is taken.

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


@METHODS.register("multi_head")
@dataclass(frozen=True)
class MultiHead(Method[ConditionKV | None]):
    """Draft a token from each head; keep those before the first that the target does not find probable enough.

    Args:
        heads: a recipe's name, or a folder; see ``stride train heads``.
        levels: D, heads that are used; 0: all.
        acceptance: threshold: p(x) > ``delta``. top: x is among the ``accept_top`` (K_a) most probable tokens.
        delta: of the rule threshold.
        accept_top: K_a, of the rule top.
        drafts: independent: a draw from each head's distribution. tree: a path through the ``draft_top`` (K_s) best
            tokens of each head, drawn by the product of their probabilities.
        draft_top: K_s.
        law: the distribution that is tested: warped as the user samples, or raw; the paper does not say. Tokens are
            always drawn from the warped distribution, in whatever order of filters and temperature the run has (BPT
            filters first).
    """

    heads: str = "xspecmesh-cross"
    levels: int = 0
    acceptance: Literal["threshold", "top"] = "threshold"
    delta: float = 0.5
    accept_top: int = 1
    drafts: Literal["independent", "tree"] = "independent"
    draft_top: int = 2
    law: Literal["warped", "raw"] = "warped"

    claim = Claim.APPROXIMATE
    source = "XSpecMesh, Algorithm 1"
    loads: ClassVar[Mapping[str, str]] = {"heads": "heads"}
    exact_at = "T = 0; on the raw distribution with delta >= 0.5 or accept_top = 1"
    requirements = frozenset({Requirement.HIDDEN, Requirement.CONDITION})
    taps = (-1,)
    mutants = (DRAFTS_JUDGED_BY_NEIGHBOUR_ROW, NEXT_TOKEN_FROM_ROW_BEFORE, IMPROBABLE_DRAFTS_KEPT)

    def __post_init__(self) -> None:
        if not 0 < self.delta < 1:
            raise UsageError(f"multi_head: delta is {self.delta:g}; give a probability between 0 and 1, both left out")
        if self.levels < 0 or self.accept_top < 1 or self.draft_top < 1:
            raise UsageError(
                f"multi_head: levels is {self.levels}, accept_top {self.accept_top} and draft_top {self.draft_top}; "
                f"give 0, 1 and 1 or more"
            )

    def start(self, run: Run) -> ConditionKV | None:
        if self.accept_top > run.capabilities.vocabulary:
            raise UsageError(
                f"multi_head: accept_top is {self.accept_top} and {run.backbone} has "
                f"{run.capabilities.vocabulary} tokens; "
                f"take fewer"
            )
        return self._drafter(run).look(run)

    def step(self, run: Run, state: ConditionKV | None) -> Acceptance:
        choose = independent if self.drafts == "independent" else whole_path(self.draft_top)
        draft = self._drafter(run).propose(run, state, choose)
        z = run.target.forward(draft)
        p = run.probs(z)
        tested = p if self.law == "warped" else warp(z, RAW)
        if self.acceptance == "threshold":
            passes = above(draft.tokens, tested, self.delta)
        else:
            passes = among_best(draft.tokens, tested, self.accept_top)
        return keep_passing(passes, p, run.draws)

    def _drafter(self, run: Run) -> ConditionedHeads:
        return ConditionedHeads.open(run, self.heads, self.levels)

    @classmethod
    def variants(cls) -> Sequence[MultiHead]:
        return (
            cls(levels=3),
            cls(levels=3, delta=0.1),
            cls(levels=3, delta=0.3),
            cls(levels=3, delta=0.7),
            cls(levels=3, law="raw"),
            cls(levels=3, acceptance="top"),
            cls(levels=3, acceptance="top", accept_top=2),
            cls(levels=3, drafts="tree"),
        )
