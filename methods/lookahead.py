"""Lookahead decoding: a Jacobi window beside the text writes n-grams, which are tried as guesses where they fit.

Source: Fu et al. 2024, arXiv:2402.02057, Algorithm 2 and, for sampling, Algorithm 4.
Symbols: N n-gram length, W columns of the window, G guesses a step, p target's law. Guesses are point masses, since
the window is decoded greedily at every temperature. Unlike the released loop, a guess kept whole is followed by a token
of its own, so a step emits up to N tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.core.capabilities import Requirement
from harness.core.draft import Acceptance
from harness.core.method import Claim, Method, Mutant
from harness.core.run import Run
from harness.errors import UsageError
from harness.registry import METHODS
from methods.drafters.jacobi.lookahead import LookaheadWindow
from methods.verifiers.tree import verify_delta

VERIFIER = "methods.verifiers.tree:"


@METHODS.register("lookahead")
@dataclass(frozen=True)
class Lookahead(Method[LookaheadWindow]):
    """One pass reads the guesses and the window: 1 + G (N - 1) + (N - 1) W rows.

    Args:
        ngram: N. window: W. guesses: G, the newest ones behind the last token. The released code has 5, 7 and 7.
    """

    ngram: int = 5
    window: int = 7
    guesses: int = 7

    claim = Claim.SAME_LAW
    source = "arXiv:2402.02057, Algorithms 2 and 4"
    requirements = frozenset({Requirement.TREE_MASK})
    pinned = frozenset({"init"})
    mutants = (
        Mutant(VERIFIER + "delta_acceptance", "px / rest", "px", "elder siblings that were refused are forgotten"),
        Mutant(VERIFIER + "verify_delta", "row.where(refused == 0, 0.0)", "row", "a refused guess can be drawn again"),
        Mutant(
            VERIFIER + "verify_delta",
            "Acceptance(path, draws.categorical(probs, ",
            "Acceptance(path, draws.categorical(probs.sqrt(), ",
            "the closing token is drawn before the temperature",
        ),
    )

    def __post_init__(self) -> None:
        if self.ngram < 3 or self.window < 2 or self.guesses < 1:
            raise UsageError(
                f"lookahead: ngram is {self.ngram}, window {self.window}, guesses {self.guesses}; give an ngram from "
                f"3, a window from 2 and a guess or more"
            )

    def start(self, run: Run) -> LookaheadWindow:
        return LookaheadWindow.begin(run, self.ngram, self.window, self.guesses)

    def step(self, run: Run, state: LookaheadWindow) -> Acceptance:
        draft, last = state.propose(run), run.target.tokens[-1]
        logits = run.target.forward(draft)
        p = run.probs(logits[: 1 + draft.proposed])
        acceptance = verify_delta(draft, p, run.draws, state.newest(logits))
        state.advance(run, last, acceptance.read().extra_ids)
        return acceptance

    @classmethod
    def variants(cls) -> Sequence[Lookahead]:
        return (cls(ngram=3, window=2, guesses=2),)
