"""Bugs to inject into the trees of a feature drafter."""

from __future__ import annotations

from stridebench.harness.core.method import Mutant

SIBLINGS_SORTED_BY_CONFIDENCE = Mutant(
    "stridebench.methods.drafters.eagle.trees:sample_level",
    "return Level(drawn.tokens[parents, ranks], ",
    "drawn = drawn._replace(tokens=drawn.tokens.gather(1, run.probs(logits).gather(1, drawn.tokens).argsort(1, "
    "descending=True))); return Level(drawn.tokens[parents, ranks], ",
    "sampled siblings are put in the order of their confidence",
)
