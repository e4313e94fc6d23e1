"""Kernel Inception Distance: squared maximum mean discrepancy under the kernel (x.y / E + 1)^3, without bias.

Source: Binkowski et al. 2018, arXiv:1801.01401, section 4: 100 subsets of 1,000 pictures of each side (here of half the
pictures where that is fewer). Unlike that of FID, its expectation does not depend on the number of pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from stridebench.harness.core.task import SetScore
from stridebench.harness.record.outputs import Picture
from stridebench.tasks.metrics.features import FeatureNet

if TYPE_CHECKING:
    from jaxtyping import Float

SUBSETS, SIZE, ENOUGH = 100, 1_000, 100


def kernel_distance(x: Float[np.ndarray, "n E"], y: Float[np.ndarray, "n E"]) -> float:
    """Return the unbiased estimate for two sets of the same size n; it may be below 0."""
    n, width = x.shape
    xx, yy, xy = ((one @ other.T / width + 1) ** 3 for one, other in ((x, x), (y, y), (x, y)))
    within = (xx.sum() - np.trace(xx) + yy.sum() - np.trace(yy)) / (n * (n - 1))
    return float(within - 2 * xy.mean())


def kid(pictures: Sequence[Picture], reference: Sequence[Picture], net: FeatureNet, failures: int = 0) -> SetScore:
    """Return the mean over subsets; the interval is 1.96 standard deviations of a subset's value on either side.

    Args:
        pictures: the set to measure.
        reference: real pictures.
        net: computes the features.
        failures: number of outputs that are no picture.
    """
    count = min(len(pictures), len(reference))
    size = min(SIZE, count // 2)  # subsets of all pictures would not differ
    if count < ENOUGH:
        reason = f"{len(pictures)} pictures and {len(reference)} reference pictures; at least {ENOUGH} are needed"
        return SetScore(None, len(pictures), failures, reason=reason)
    x, y, random = net.features(pictures), net.features(reference), np.random.default_rng(0)
    values = [
        kernel_distance(x[random.choice(len(x), size, replace=False)], y[random.choice(len(y), size, replace=False)])
        for _ in range(SUBSETS)
    ]
    mean, spread = float(np.mean(values)), 1.96 * float(np.std(values, ddof=1))
    return SetScore(mean, len(pictures), failures, mean - spread, mean + spread)
