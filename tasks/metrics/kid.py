"""Kernel Inception Distance by torchmetrics: squared maximum mean discrepancy under the kernel (x.y / E + 1)^3.

Source: Binkowski et al. 2018, arXiv:1801.01401, section 4: 100 subsets of 1,000 pictures of each side (here of half the
pictures if that is fewer). Unlike that of FID, its expectation does not depend on the number of pictures.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from stridebench.harness.core.task import SetScore
from stridebench.harness.record.outputs import Picture
from stridebench.tasks.metrics.features import INSTALL, FeatureNet, imported

SUBSETS, SIZE, ENOUGH = 100, 1_000, 100


def kid(pictures: Sequence[Picture], reference: Sequence[Picture], net: FeatureNet, failures: int = 0) -> SetScore:
    """Return the mean over subsets; the interval is 1.96 standard deviations of a subset's value on either side.

    Args:
        pictures: the set to measure.
        reference: real pictures.
        net: computes the features.
        failures: number of outputs that are not pictures.

    Raises:
        UsageError: torchmetrics is not installed.
    """
    count = min(len(pictures), len(reference))
    if count < ENOUGH:
        reason = f"{len(pictures)} pictures and {len(reference)} reference pictures; at least {ENOUGH} are needed"
        return SetScore(None, len(pictures), failures, reason=reason)
    import torch

    module: Any = imported("torchmetrics.image.kid", INSTALL)
    size = min(SIZE, count // 2)  # subsets of all pictures would not differ
    with warnings.catch_warnings(action="ignore"):  # it says that it keeps the features
        distance = module.KernelInceptionDistance(torch.nn.Identity(), subsets=SUBSETS, subset_size=size)
    distance.set_dtype(torch.float64)
    distance.update(torch.from_numpy(net.features(reference)), real=True)
    distance.update(torch.from_numpy(net.features(pictures)), real=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mean, spread = map(float, distance.compute())
    return SetScore(mean, len(pictures), failures, mean - 1.96 * spread, mean + 1.96 * spread)
