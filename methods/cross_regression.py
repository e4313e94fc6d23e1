"""Cross-Regression: with an adapter on, the target drafts several positions at once; without it, it verifies them.

Source: Abulkhanov et al., Cross-Regression, Algorithms 1 and 2, sections 4.1-4.3, appendix E.
Symbols: x drafted tokens, p the control stream's distributions (the target's), q the distribution each was drawn from
(the predictive stream's), gamma horizon, beta and tau of the test (`stridebench.methods.verifiers.energy`).
The paper's lossless setting is mode std with beta = 0. Algorithm 2 as printed accepts at tau = 0 only where
p(x) >= q(x), which gives another distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.adapters.predictive_stream import (
    CARRIED_DRAFTS_RESCORED,
    REJECTED_DRAFT_CARRIED_OVER,
    PredictiveStream,
    Redraft,
    TestedDrafts,
    as_printed,
    joint,
    sequential,
)
from stridebench.methods.verifiers.energy import EnergyRule, Mode, Noise, verify_energy
from stridebench.methods.verifiers.mutants import CORRECTION_FROM_TARGET, ONE_THRESHOLD_FOR_ALL

Layout = Literal["sequential", "joint", "alg1_as_printed"]


@METHODS.register("cross_regression")
@dataclass(frozen=True)
class CrossRegression(Method[PredictiveStream]):
    """Draft with gated rows, keep the drafts whose energy passes, and carry over those behind a rejection.

    Args:
        adapter: a recipe's name, or a folder; see ``stride train adapter``.
        horizon: gamma, drafts at most.
        layout: sequential: a pass of the predictive stream, then one of the control stream. joint: both in one pass;
            of the new drafts only the nearest is tested in this step. alg1_as_printed: Algorithm 1 to the letter,
            which tests new drafts by rows that never read them, and corrects by a distribution that no draft was drawn
            from.
        mode, beta, tau, noise, clip: see `EnergyRule`.
        carry: keep drafts behind a rejection.
        redraft: joint draws all slots anew in each step, from rows that read the drafts so far, or placeholders; the
            paper does not.
        bonus: sequential draws a bonus token where all drafts pass; the paper does not.
        draft_top: see `PredictiveStream`.
    """

    adapter: str = "cross-regression"
    horizon: int = 16
    layout: Layout = "joint"
    mode: Mode = "std"
    beta: float = 0.0
    tau: float = 0.0
    noise: Noise = "logU"
    clip: bool = False
    carry: bool = True
    redraft: Redraft = "none"
    bonus: bool = True
    draft_top: int = 0

    source = "Cross-Regression, Algorithms 1 and 2"
    exact_at = "mode std with beta = 0, layouts sequential and joint; any mode of these at T = 0"
    requirements = frozenset({Requirement.TREE_MASK, Requirement.GATE})
    pinned = frozenset({"init"})
    mutants = (
        CORRECTION_FROM_TARGET,
        CARRIED_DRAFTS_RESCORED,
        REJECTED_DRAFT_CARRIED_OVER,
        ONE_THRESHOLD_FOR_ALL,
    )

    def __post_init__(self) -> None:
        if self.horizon < 1 or self.draft_top < 0:
            raise UsageError(
                f"cross_regression: horizon is {self.horizon} and draft_top {self.draft_top}; give 1 and 0 or more"
            )
        if self.layout == "joint" and not self.carry:
            raise UsageError(
                "cross_regression: joint tests drafts of an earlier step; take layout=sequential with carry=false"
            )
        if self.redraft != "none" and self.layout != "joint":
            raise UsageError(f"cross_regression: redraft={self.redraft} is of layout=joint; layout is {self.layout}")
        self.rule.lossless  # noqa: B018  # its parameters are checked when it is made

    @property
    def rule(self) -> EnergyRule:
        """The rule that a draft passes."""
        return EnergyRule(self.mode, self.beta, self.tau, self.noise, self.clip, self.horizon)

    @property
    def claim(self) -> Claim:
        return Claim.SAME_LAW if self.rule.lossless and self.layout != "alg1_as_printed" else Claim.APPROXIMATE

    @property
    def components(self) -> Sequence[tuple[str, str]]:
        return (("adapter", self.adapter),)

    def start(self, run: Run) -> PredictiveStream:
        if self.horizon >= run.capabilities.context:
            raise UsageError(
                f"cross_regression: horizon is {self.horizon} and the context of {run.backbone} "
                f"{run.capabilities.context}; take a shorter one"
            )
        run.adapt(self.adapter)
        return PredictiveStream.begin(run, self.horizon, self.draft_top)

    def step(self, run: Run, state: PredictiveStream) -> Acceptance:
        if self.layout == "alg1_as_printed":
            acceptance = as_printed(run, state, self.horizon, self.rule)
        else:
            acceptance = verify_energy(*self._tested(run, state), run.draws, self.rule)
        state.advance(len(acceptance.read().path) + 1, self.carry)
        return acceptance

    def _tested(self, run: Run, state: PredictiveStream) -> TestedDrafts:
        if self.layout == "joint":
            return joint(run, state, self.horizon, self.redraft)
        return sequential(run, state, self.horizon, self.bonus)

    @classmethod
    def variants(cls) -> Sequence[CrossRegression]:
        lossy = cls(horizon=2, layout="sequential")
        return (
            cls(horizon=2),
            cls(horizon=2, redraft="drafts"),
            cls(horizon=2, redraft="placeholders"),
            cls(horizon=2, layout="sequential"),
            cls(horizon=2, layout="sequential", carry=False, bonus=False),
            replace(lossy, beta=0.5),
            replace(lossy, mode="alg2"),
            replace(lossy, mode="alg2", tau=-1.0),
            replace(lossy, mode="alg2", tau=-4.0, noise="uni"),
            replace(lossy, mode="det", tau=-1.0, clip=True),
            cls(horizon=2, layout="alg1_as_printed", mode="alg2", tau=-4.0),
        )
