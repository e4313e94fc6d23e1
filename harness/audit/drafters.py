"""Compares the draft of a step with one that the drafter makes of the same text anew, with empty caches.

A drafter that reads stale rows drafts worse, and the output stays exact. Only this comparison, and acceptance, show it.

Symbols: K nodes, V vocabulary, M positions from the first token of the step on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from stridebench.harness.core.draft import Draft
from stridebench.harness.core.loop import KeptDraft

LIMITS = {"fp64": 0.002, "fp32": 0.002, "fp16": 0.02, "bf16": 0.06}
"""Mean total variation, by type, up to which rounding alone may set two distributions of a drafter apart."""
FLIPS = {"fp64": 0.02, "fp32": 0.02, "fp16": 0.05, "bf16": 0.15}
"""The same of point masses, where rounding decides between ids of nearly equal probability."""


class DraftComparison(NamedTuple):
    """The drafts of one place: the recorded ones and those made again.

    Attributes:
        distance: total variation of both distributions; of point masses the share of ids that only one draft has.
        recorded: probability that the target accepts the recorded draft, its mean over the drafter's distribution.
        anew: the same of the draft that was made anew.
        points: 1 if the drafts are point masses, else 0.
    """

    distance: float
    recorded: float
    anew: float
    points: int


def compare(kept: KeptDraft, anew: Draft, p: Float[Tensor, "M V"]) -> list[DraftComparison]:
    """Compare the drafts of every place that the step tested, until the two drafts part.

    Of siblings that were drawn, only the first one counts, because the others depend on it. Siblings of two drafts that
    are not equally many are left out.

    Args:
        anew: of the same text and the same draws.
        p: row m is the target's distribution after the first m tokens that the step emitted.
    """
    places: list[DraftComparison] = []
    parent = twin = -1
    for depth, row in enumerate(p[: len(kept.path) + 1]):
        children, others = _children(kept.draft, parent), _children(anew, twin)
        if len(children) == len(others) > 0:
            places.append(_compared(kept.draft, children, anew, others, row))
        if depth == len(kept.path):
            break
        parent = kept.path[depth]
        same = [node for node in others if anew.tokens[node] == kept.draft.tokens[parent]]
        if not same:
            break
        twin = same[0]
    return places


def _children(draft: Draft, parent: int) -> list[int]:
    """Return proposed nodes below a node, without repeats; below -1 those after the last emitted token."""
    below = draft.explicit_parents[: draft.proposed] == parent
    if draft.repeats is not None:
        below &= ~draft.repeats[: draft.proposed]
    return [int(node) for node in below.nonzero()[:, 0]]


def _compared(
    draft: Draft, children: Sequence[int], anew: Draft, others: Sequence[int], p: Float[Tensor, " V"]
) -> DraftComparison:
    if draft.probs is None or anew.probs is None:
        ids, again_ids = set(draft.tokens[list(children)].tolist()), set(anew.tokens[list(others)].tolist())
        distance = 1 - len(ids & again_ids) / max(len(ids), len(again_ids))
        return DraftComparison(distance, float(p[sorted(ids)].sum()), float(p[sorted(again_ids)].sum()), 1)
    q, again = (rows[nodes[0]].to(p.dtype) for rows, nodes in ((draft.probs, children), (anew.probs, others)))
    distance, points = float((q - again).abs().sum() / 2), int(bool((draft.probs == 1).any(1).all()))
    return DraftComparison(distance, float(torch.minimum(p, q).sum()), float(torch.minimum(p, again).sum()), points)


def limit(dtype: str, places: int, points: int) -> float:
    """Return the largest mean distance that rounding explains, over so many places, some of them of point masses.

    One point mass may differ in any type.
    """
    expected = (places - points) * LIMITS[dtype] + points * FLIPS[dtype]
    return (expected + (points > 0)) / places
