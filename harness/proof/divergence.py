"""The first difference of two outputs of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Divergence:
    """Where two outputs diverge.

    Args:
        at: first differing index; None: they are equal.
        agreement: longest common prefix / the longer length, 1 if equal.
    """

    at: int | None
    agreement: float


def diverge(output: Sequence[int], baseline: Sequence[int]) -> Divergence:
    """Compare an output with the baseline's. One that ends early differs at its end."""
    longest = max(len(output), len(baseline))
    for index in range(longest):
        if index >= min(len(output), len(baseline)) or output[index] != baseline[index]:
            return Divergence(index, index / longest)
    return Divergence(None, 1.0)
