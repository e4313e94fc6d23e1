"""Where two outputs of token ids differ first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Divergence:
    """Where two outputs part.

    Args:
        at: first differing index, or None. agreement: longest common prefix / the longer length, 1 if equal.
    """

    at: int | None
    agreement: float


def diverge(ours: Sequence[int], theirs: Sequence[int]) -> Divergence:
    """Compare an output with the baseline's. One that ends early differs at its end."""
    longest = max(len(ours), len(theirs))
    for index in range(longest):
        if index >= min(len(ours), len(theirs)) or ours[index] != theirs[index]:
            return Divergence(index, index / longest)
    return Divergence(None, 1.0)
