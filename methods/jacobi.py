"""Jacobi decoding: guess a window, and guess it again from the model's predictions until it is stable.

Source: Santilli et al. 2023, arXiv:2305.10427, Algorithm 1; with sampling: the Jacobi rows of SJD's comparison.
Symbols: d drafts, p the target's distributions.
At T = 0 a draft is kept when it is the argmax. At T > 0 it is kept with p(d), as if compared with a fresh draw from p.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError, one_of
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.jacobi_window import JacobiWindow, redraw
from stridebench.methods.verifiers.rejection import GUESS_KEPT_TOO_OFTEN, verify_chain

Starts = Literal["random", "h-repeat"]


@METHODS.register("jacobi")
@dataclass(frozen=True)
class Jacobi(Method[JacobiWindow]):
    """Verify the window's guesses by equality, commit the prefix that is stable, redraw the rest.

    Args:
        window: rows a pass, the re-fed token included.
        init: random ids, or copies of the last token.
    """

    window: int = 16
    init: Starts = "random"

    claim = Claim.SAME_LAW
    source = "arXiv:2305.10427, Algorithm 1"
    mutants = (GUESS_KEPT_TOO_OFTEN,)

    def __post_init__(self) -> None:
        if self.window < 2:
            raise UsageError(f"jacobi: window is {self.window}; it holds the re-fed token and at least one guess")
        one_of("jacobi", "init", self.init, get_args(Starts))

    def start(self, run: Run) -> JacobiWindow:
        return JacobiWindow.empty(run, self.window - 1, self.init)

    def step(self, run: Run, state: JacobiWindow) -> Acceptance:
        draft = state.propose(run)
        p = run.probs(run.target.forward(draft))
        acceptance = verify_chain(draft.tokens, None, p, run.draws)
        state.advance(run, p, len(acceptance.read().path), redraw(run.draws))
        return acceptance

    @classmethod
    def variants(cls) -> Sequence[Jacobi]:
        return (cls(window=3), cls(window=3, init="h-repeat"))
