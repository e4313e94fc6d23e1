"""The costs of passes, from timed steps."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable

from harness.core.costs import Costs
from harness.errors import UsageError
from harness.record.columns import Step


def table(steps: Iterable[tuple[int, Step]]) -> Costs:
    """The median time of a pass for each number of rows.

    Args:
        steps: each with the rows that a pass of its drafter read.

    Raises:
        UsageError: fewer than two sizes of the target's passes or of the drafter's were timed.
    """
    target: dict[int, list[float]] = defaultdict(list)
    draft: dict[int, list[float]] = defaultdict(list)
    for width, step in steps:
        target[step.rows].append(step.target_ns / step.nfe / 1e6)
        if step.draft_nfe:
            draft[width].append(step.draft_ns / step.draft_nfe / 1e6)
    sides = [tuple((rows, statistics.median(side[rows])) for rows in sorted(side)) for side in (target, draft)]
    if min(map(len, sides)) < 2:
        raise UsageError(f"passes of {len(target)} and {len(draft)} sizes were timed; time two or more of each")
    return Costs(*sides)
