"""Lookahead decoding: a Jacobi window beside the text produces n-grams, which are tried as guesses where they fit.

Source: Fu et al. 2024, arXiv:2402.02057, Algorithm 2 and, for sampling, Algorithm 4.
Symbols: N n-gram length, W columns of the window, G guesses a step, p the target's distributions.
Guesses are point masses, since the window is decoded greedily at every temperature. Unlike in the released loop, a
guess that is accepted whole is followed by a bonus token, so a step emits up to N tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.jacobi.lookahead import LookaheadWindow
from stridebench.methods.verifiers.mutants import NGRAMS
from stridebench.methods.verifiers.tree import verify_delta


@METHODS.register("lookahead")
@dataclass(frozen=True)
class Lookahead(Method[LookaheadWindow]):
    """One pass reads the guesses and the window: 1 + G (N - 1) + (N - 1) W rows.

    The released code has N = 5, W = 7 and G = 7.

    Args:
        ngram: N.
        window: W.
        guesses: G, the newest ones that follow the last token.
    """

    ngram: int = 5
    window: int = 7
    guesses: int = 7

    claim = Claim.SAME_LAW
    source = "arXiv:2402.02057, Algorithms 2 and 4"
    requirements = frozenset({Requirement.TREE_MASK})
    pinned = frozenset({"init"})
    mutants = NGRAMS

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
