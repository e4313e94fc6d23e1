"""Change points of a series, by the exact search of ruptures (PELT) with a cost of squared deviations.

A night's noise is estimated from the differences of neighbouring nights, which one step does not move. A change is
reported where it explains more than ``PENALTY`` times that noise's variance, and the medians on both sides differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import ruptures
from numpy.typing import NDArray

from stridebench.reports.history.series import Night, Series

FEWEST = 6
"""Nights below which no change is looked for."""
SHORTEST = 3
"""Nights on each side of a change: a step is seen on its third night, and one odd night is none."""
PENALTY = 25.0
"""Least gain of a change in units of the noise's variance: five standard errors."""
NEGLIGIBLE = 0.002
"""Relative noise that is assumed at least: figures of equal runs that differ less say nothing."""


@dataclass(frozen=True)
class Change:
    """A step of a series.

    Args:
        before: mean of the nights since the change before.
        after: mean of the nights up to the next change.
        last: the last night before the step.
        first: the first night after it.
    """

    before: float
    after: float
    last: Night
    first: Night

    @property
    def relative(self) -> float | None:
        """The step as a share of the size before; None where that is 0."""
        return (self.after - self.before) / abs(self.before) if self.before else None

    @property
    def commits(self) -> str:
        """The range of commits in which the change lies."""
        return f"{self.last.commit or 'unknown'}..{self.first.commit or 'unknown'}"


def changes(series: Series) -> list[Change]:
    """The change points of a series, in the order of time; none in fewer than six nights."""
    values = np.array(series.values, dtype=np.float64)
    if len(values) < FEWEST:
        return []
    scaled = (values - np.median(values)) / noise(values)
    search = ruptures.Pelt(model="l2", min_size=SHORTEST, jump=1).fit(scaled[:, None])
    ends = [0, *search.predict(pen=PENALTY)]
    ends = _without_odd_nights(scaled, ends)
    parts = [values[begin:end] for begin, end in pairwise(ends)]
    return [
        Change(float(left.mean()), float(right.mean()), series.nights[place - 1], series.nights[place])
        for (left, right), place in zip(pairwise(parts), ends[1:-1], strict=True)
    ]


def noise(values: NDArray[np.float64]) -> float:
    """Standard deviation of a night, from the median of the absolute differences of neighbours; above 0."""
    steps = np.abs(np.diff(values))
    spread = 1.4826 * float(np.median(steps)) / 2**0.5
    return max(spread, NEGLIGIBLE * float(np.median(np.abs(values))), 1e-12)


def _without_odd_nights(scaled: NDArray[np.float64], ends: list[int]) -> list[int]:
    """The ends of parts whose medians differ by two standard deviations; others are joined with the part before."""
    kept = [0]
    for place, end in pairwise(ends[1:]):
        if abs(np.median(scaled[place:end]) - np.median(scaled[kept[-1] : place])) >= 2.0:
            kept.append(place)
    return [*kept, ends[-1]]
