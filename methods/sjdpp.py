"""SJD++: SJD that keeps a draft whose probability did not fall much, instead of redrawing it.

Source: SJD++ (Teng et al. 2025, the extension of arXiv:2410.01699), section 3, eqs. 2-5. MC-SJD (arXiv:2510.24211) is
``reuse: M``, the maximal coupling, and ``reuse: G``, its form with Gumbel noise in common.
Symbols: d drafts, q the distribution each was drawn from, p the target's, tau the reuse threshold.
How a draft is carried over, and which ways are exact: `stridebench.methods.drafters.jacobi_window`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import get_args

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError, one_of
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.jacobi_window import REUSE_MODES, VERTICAL, Init, JacobiWindow, Reuse, carry_over
from stridebench.methods.verifiers.rejection import CORRECTION_FROM_TARGET, verify_chain


@METHODS.register("sjdpp")
@dataclass(frozen=True)
class SJDPlusPlus(Method[JacobiWindow]):
    """SJD with token reuse.

    Args:
        window, init, window_counts_refed: as SJD.
        reuse: how a draft is carried over. M and G are MC-SJD.
        tau: reuse threshold of all modes but M and G; larger is closer to SJD, inf is SJD.
    """

    window: int = 16
    init: Init = "uniform"
    window_counts_refed: bool = True
    reuse: Reuse = "paper"
    tau: float = 0.5

    source = "SJD++ section 3, eqs. 2-5"
    exact_at = "tau = inf, or reuse C, B2, M, G"
    mutants = (CORRECTION_FROM_TARGET, *REUSE_MODES)

    def __post_init__(self) -> None:
        if self.window - self.window_counts_refed < 1:
            raise UsageError(f"sjdpp: window is {self.window}, which leaves no draft; use 2 or more")
        if not self.tau >= 0:
            raise UsageError(f"sjdpp: tau is {self.tau:g}; it is a ratio of probabilities, 0 or more")
        one_of("sjdpp", "init", self.init, get_args(Init))
        one_of("sjdpp", "reuse", self.reuse, get_args(Reuse))

    @property
    def claim(self) -> Claim:
        lossless = self.reuse in ("C", "B2", "M", "G") or self.tau == inf
        return Claim.SAME_LAW if lossless else Claim.APPROXIMATE

    @property
    def requirements(self) -> frozenset[Requirement]:
        return frozenset({Requirement.GRID}) if self.init in VERTICAL else frozenset()

    def start(self, run: Run) -> JacobiWindow:
        return JacobiWindow.empty(run, self.window - self.window_counts_refed, self.init)

    def step(self, run: Run, state: JacobiWindow) -> Acceptance:
        draft = state.propose(run)
        p = run.probs(run.target.forward(draft))
        acceptance = verify_chain(draft.tokens, draft.probs, p, run.draws)
        refine = carry_over(run.draws, self.reuse, self.tau)
        state.advance(run, p, len(acceptance.read().path), refine)
        return acceptance

    @classmethod
    def variants(cls) -> Sequence[SJDPlusPlus]:
        modes: tuple[Reuse, ...] = ("paper", "frozen", "C", "B2", "M", "G")
        settings = [cls(window=3, reuse=mode) for mode in modes]
        return (*settings, cls(window=3, tau=inf), cls(window=4, init="v-sample", reuse="M"))
