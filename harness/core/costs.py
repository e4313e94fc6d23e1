"""What forward passes cost on one machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """What passes took on one machine: milliseconds by the rows fed, ascending; two sizes or more of each.

    Args:
        target, draft: (rows, ms) of the target's passes and of a drafter's.
    """

    target: tuple[tuple[int, float], ...]
    draft: tuple[tuple[int, float], ...]

    @staticmethod
    def at(rows: int, known: Sequence[tuple[int, float]]) -> float:
        """Milliseconds of a pass: on the straight line through the two known sizes beside it."""
        after = next((i for i, (size, _) in enumerate(known) if size >= rows), len(known) - 1)
        (low, first), (high, last) = known[max(after, 1) - 1], known[max(after, 1)]
        return first + (last - first) * (rows - low) / (high - low)
