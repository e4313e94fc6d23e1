"""Bugs to inject into a method's own step."""

from __future__ import annotations

from stridebench.harness.core.method import Mutant

UNWARPED_TOKEN = Mutant(
    "stridebench.methods.autoregressive:Autoregressive.step",
    "run.probs(run.target.forward())",
    "run.target.forward().softmax(-1)",
    "the token is drawn from the unwarped distribution",
)
PROPOSALS_JUDGED_BY_NEIGHBOUR_ROW = Mutant(
    "stridebench.methods.blockwise:Blockwise.accept_probs",
    "accept_probs = acceptance_probs(x, None, p)",
    "accept_probs = acceptance_probs(x, None, p.roll(1, 0))",
    "proposals are compared with the row of their neighbour",
)
