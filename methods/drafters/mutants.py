"""Bugs to inject into the drafters that belong to no family."""

from __future__ import annotations

from stridebench.harness.core.method import Mutant

OTHER_PROBS_RECORDED = Mutant(
    "stridebench.methods.drafters.draft_model:ModelDrafter.propose",
    "probs.append(q)",
    "probs.append((q + 0.1) / (q + 0.1).sum())",
    "the recorded distribution is not the one that was sampled",
)
