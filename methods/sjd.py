"""Speculative Jacobi decoding (SJD): the window's last distributions are the drafter.

Source: Teng et al. 2025, arXiv:2410.01699, Algorithm 1.
Symbols: d drafts, q the distribution each was drawn from (the last pass's p at its position), p the target's.
Refined rows were conditioned on drafts that may be rejected; exactness needs only that q is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError, one_of
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.jacobi_window import (
    NEIGHBOUR_PROBS_RECORDED,
    VERTICAL,
    Init,
    JacobiWindow,
    discard,
    redraw,
)
from stridebench.methods.verifiers.rejection import CORRECTION_FROM_TARGET, verify_chain


@METHODS.register("sjd")
@dataclass(frozen=True)
class SJD(Method[JacobiWindow]):
    """Verify the window against the distributions it was drawn from; redraw from the new ones.

    Args:
        window: rows a pass.
        init: distribution of fresh drafts (`JacobiWindow.fill`).
        window_counts_refed: the re-fed token is one of the window's rows, as in the released code.
        refine: redraw the drafts behind a rejection; false discards them, the ablation of SJD++ Fig. 12.
    """

    window: int = 16
    init: Init = "uniform"
    window_counts_refed: bool = True
    refine: bool = True

    claim = Claim.SAME_LAW
    source = "arXiv:2410.01699, Algorithm 1"
    mutants = (CORRECTION_FROM_TARGET, NEIGHBOUR_PROBS_RECORDED)

    def __post_init__(self) -> None:
        if self.window - self.window_counts_refed < 1:
            raise UsageError(f"sjd: window is {self.window}, which leaves no draft; use 2 or more")
        one_of("sjd", "init", self.init, get_args(Init))

    @property
    def requirements(self) -> frozenset[Requirement]:
        return frozenset({Requirement.GRID}) if self.init in VERTICAL else frozenset()

    def start(self, run: Run) -> JacobiWindow:
        return JacobiWindow.empty(run, self.window - self.window_counts_refed, self.init)

    def step(self, run: Run, state: JacobiWindow) -> Acceptance:
        draft = state.propose(run)
        p = run.probs(run.target.forward(draft))
        acceptance = verify_chain(draft.tokens, draft.probs, p, run.draws)
        state.advance(run, p, len(acceptance.read().path), redraw(run.draws) if self.refine else discard)
        return acceptance

    @classmethod
    def variants(cls) -> Sequence[SJD]:
        inits = [cls(window=3, init=init) for init in ("uniform", "random", "h-repeat", "h-sample")]
        return (*inits, cls(window=4, init="v-repeat"), cls(window=4, init="v-sample"), cls(window=3, refine=False))
