"""Multi-head speculative decoding of meshes: heads that attend to the condition draft, the backbone verifies.

Source: Chen et al., XSpecMesh, Algorithm 1 (which never advances s), sections 4.1, 4.2, 5.4 and 7.3.
Symbols: x drafted tokens, p the target's distributions, delta threshold, K_a best tokens accepted, K_s best tokens
drafted.
The paper draws x[s*] from p and the tokens behind it from the heads at the end of a cycle. Here x[s*] is the last token
of a step, and the others are drafted from the same row when the next step begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling, warp
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.heads.drafter import ConditionedHeads, independent, whole_path
from stridebench.methods.drafters.heads.net import ConditionKV
from stridebench.methods.verifiers.mutants import (
    DRAFTS_JUDGED_BY_NEIGHBOUR_ROW,
    IMPROBABLE_DRAFTS_KEPT,
    NEXT_TOKEN_FROM_ROW_BEFORE,
)
from stridebench.methods.verifiers.typical import above, among_best, keep_passing

RAW = Sampling(1.0)


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

    @property
    def components(self) -> Sequence[tuple[str, str]]:
        return (("heads", self.heads),)

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
