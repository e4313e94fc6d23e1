"""How much the pictures of one prompt differ when only the seed does: mean distance of every two.

Two decoders that sample the same law have the same diversity at each prompt; one that collapses has less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from stridebench.harness.core.task import SetScore
from stridebench.harness.record.outputs import Picture
from stridebench.tasks.metrics.image_stats import mean

if TYPE_CHECKING:
    from jaxtyping import Float


class Distance(Protocol):
    """A named distance between pictures: LPIPS, or the cosine distance of a feature network."""

    @property
    def name(self) -> str:
        """Return the name that its scores have."""

    def pairwise(self, pictures: Sequence[Picture]) -> Float[np.ndarray, " pairs"]:
        """Return the distance of every two pictures."""


def diversity(groups: Mapping[str, Sequence[Picture]], net: Distance, failures: int = 0) -> SetScore:
    """Return the mean over prompts of the mean distance between two pictures of one; the interval resamples prompts.

    Args:
        groups: pictures by prompt id; prompts with fewer than two are left out.
        net: measures the distance.
        failures: number of outputs that are no picture.
    """
    several = {name: groups[name] for name in sorted(groups) if len(groups[name]) > 1}
    n = sum(map(len, several.values()))
    if not several:
        reason = "no prompt has two pictures; ask for two repetitions or more, at a temperature above 0"
        return SetScore(None, 0, failures, reason=reason)
    score = mean(tuple(several), [float(net.pairwise(group).mean()) for group in several.values()], failures)
    return SetScore(score.value, n, failures, score.low, score.high)
