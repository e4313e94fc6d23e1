"""Bugs to inject into the predictive stream and its passes."""

from __future__ import annotations

from stridebench.harness.core.method import Mutant

CARRIED_DRAFTS_RESCORED = Mutant(
    "stridebench.methods.drafters.adapters.layouts:joint",
    "nearest = slice(carried, carried + 1)",
    "nearest, q = slice(carried, carried + 1), run.probs(z[1 + carried : 1 + 2 * carried])",
    "drafts carried over are judged by a distribution that they were not drawn from",
)
REJECTED_DRAFT_CARRIED_OVER = Mutant(
    "stridebench.methods.drafters.adapters.predictive_stream:PredictiveStream.advance",
    "self.tokens[emitted:], self.probs[emitted:]",
    "self.tokens[emitted - 1:], self.probs[emitted - 1:]",
    "the rejected draft is carried over",
)
