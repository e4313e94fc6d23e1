"""Bugs to inject into the drawing of siblings."""

from __future__ import annotations

from stridebench.harness.core.method import Mutant

SIBLINGS = "stridebench.methods.trees.sampled:siblings"

EARLIER_SIBLINGS_NOT_REMOVED = Mutant(
    SIBLINGS,
    "left = q[:, None].where(drawn.cumsum(1) - drawn == 0, 0.0)",
    "left = q[:, None].expand_as(drawn)",
    "siblings without replacement are recorded with the whole distribution",
)
MOST_PROBABLE_SIBLINGS = Mutant(
    SIBLINGS,
    'draws.distinct(q, count, "draft")',
    "q.topk(count).indices",
    "the ratio test on the k best tokens, which nobody drew",
)
SIBLINGS_SORTED_BY_CONFIDENCE = Mutant(
    SIBLINGS,
    'draws.distinct(q, count, "draft")',
    '(lambda t: t.gather(1, q.gather(1, t).argsort(1, descending=True)))(draws.distinct(q, count, "draft"))',
    "sampled siblings are put in the order of their confidence",
)
