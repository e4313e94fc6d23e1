"""Autoregressive decoding: one token a pass. The reference of every other method.

Symbols: p target's law.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.contracts import Path, Verdict
from harness.method import Claim, Method, Plant, Run
from harness.registry import METHODS


@METHODS.register("autoregressive")
@dataclass(frozen=True)
class Autoregressive(Method[None]):
    """Sample the next token from the target, and feed it back."""

    claim = Claim.SAME_LAW
    source = "the chain rule"
    plants = (
        Plant(
            "methods.autoregressive:Autoregressive.step",
            "run.law(run.target.forward())",
            "run.target.forward().softmax(-1)",
            "the token is drawn from the unwarped law",
        ),
    )

    def start(self, run: Run) -> None:
        return None

    def step(self, run: Run, state: None) -> Verdict:
        p = run.law(run.target.forward())
        return Verdict(Path.root(p), run.draws.categorical(p, "resid")[0])
