"""Autoregressive decoding: one token a pass. The reference of every other method.

Symbols: p the target's distribution.
"""

from __future__ import annotations

from dataclasses import dataclass

from stridebench.harness.core.draft import Acceptance, Path
from stridebench.harness.core.method import Claim, Method, Mutant
from stridebench.harness.core.run import Run
from stridebench.harness.registry import METHODS

UNWARPED_TOKEN = Mutant(
    f"{__name__}:Autoregressive.step",
    "run.probs(run.target.forward())",
    "run.target.forward().softmax(-1)",
    "the token is drawn from the unwarped distribution",
)


@METHODS.register("autoregressive")
@dataclass(frozen=True)
class Autoregressive(Method[None]):
    """Sample the next token from the target, and feed it back."""

    claim = Claim.SAME_LAW
    source = "the chain rule"
    mutants = (UNWARPED_TOKEN,)

    def start(self, run: Run) -> None:
        return None

    def step(self, run: Run, state: None) -> Acceptance:
        p = run.probs(run.target.forward())
        return Acceptance(Path.root(p), run.draws.categorical(p, "resid")[0])
