"""One row of a comparison: a ratio in two runs, and how far it differs."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from stridebench.harness.record import stats


def row_of(
    metric: str, before: pd.DataFrame, after: pd.DataFrame, ratio: tuple[str, str], minus: float = 0.0
) -> dict[str, Any] | None:
    """Return metric, a, b, difference with its bounds, prompts and evidence, or None if the runs share no value.

    Args:
        before: of run a, by (prompt, repetition).
        after: of the other run.
        ratio: the columns of numerator and denominator.
        minus: subtracted from the metric's level.
    """
    gap = stats.difference(before, after, *ratio)
    if gap is None:
        return None
    sides = {"a": stats.ratio(before, *ratio, minus), "b": stats.ratio(after, *ratio, minus)}
    levels = {side: interval.estimate if interval else None for side, interval in sides.items()}
    bounds = {"difference": gap.estimate, "low": gap.low, "high": gap.high, "prompts": gap.n}
    return {"metric": metric, **levels, **bounds, "evidence": evidence(gap)}


def evidence(gap: stats.Interval) -> float | None:
    """Return how many standard errors the difference is from zero, by its 95 % interval, or None if it lacks one.

    A difference that is the same for every prompt has standard error zero, and is infinitely far from zero.
    """
    if gap.low is None or gap.high is None:
        return None
    error = (gap.high - gap.low) / (2 * 1.96)
    if error == 0:
        return math.inf if gap.estimate else 0.0
    return abs(gap.estimate) / error
