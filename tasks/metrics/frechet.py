"""Distances between two sets of pictures on a named feature network.

FID: Heusel et al. 2017, arXiv:1706.08500, eq. 6; pytorch-fid ``calculate_frechet_distance``.
KID: Binkowski et al. 2018, arXiv:1801.01401, section 4, by torchmetrics: squared maximum mean discrepancy under the
kernel (x.y / E + 1)^3 of 100 subsets of 1,000 pictures of each side (here of half the pictures if that is fewer).
Unlike that of FID, its expectation does not depend on the number of pictures.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stridebench.harness.core.task import SetScore
from stridebench.harness.errors import UsageError
from stridebench.harness.record.outputs import Picture
from stridebench.harness.record.stats import resample_counts
from stridebench.tasks.metrics.features import INSTALL, FeatureNet, imported

if TYPE_CHECKING:
    from jaxtyping import Float

RESAMPLES = 50
SUBSETS, SIZE, ENOUGH = 100, 1_000, 100
"""KID: subsets, pictures of a subset, and the fewest of a side."""


@dataclass(frozen=True, eq=False)
class Gaussian:
    """Mean and covariance of the features of ``n`` pictures; n is 0 if a file of statistics does not say."""

    mean: Float[np.ndarray, " E"]
    covariance: Float[np.ndarray, "E E"]
    n: int


def gaussian(features: Float[np.ndarray, "N E"]) -> Gaussian:
    """Return the sample mean and the unbiased covariance, as pytorch-fid does."""
    return Gaussian(features.mean(0), np.cov(features, rowvar=False), len(features))


def distance(one: Gaussian, other: Gaussian) -> float:
    """Return pytorch-fid's squared Frechet distance."""
    formula: Any = imported("pytorch_fid.fid_score", INSTALL).calculate_frechet_distance
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # SciPy's warning about an argument; pytorch-fid's note on singular products
        return float(formula(one.mean, one.covariance, other.mean, other.covariance))


def statistics(path: Path) -> Gaussian:
    """Read a file of statistics as pytorch-fid saves it: arrays ``mu`` and ``sigma``."""
    try:
        with np.load(path) as arrays:
            return Gaussian(arrays["mu"], arrays["sigma"], 0)
    except (OSError, KeyError, ValueError) as error:
        raise UsageError(
            f"{path} cannot be read as statistics ({type(error).__name__}: {error}). "
            f"It must be an .npz with arrays mu and sigma, as pytorch-fid saves it, or a folder of pictures"
        ) from error


def frechet(
    pictures: Sequence[Picture],
    reference: Sequence[Picture] | Gaussian,
    net: FeatureNet,
    *,
    minimum: int = 0,
    failures: int = 0,
) -> SetScore:
    """Return the Frechet distance of pictures to a reference set. Few pictures bias it upwards: compare at equal n.

    The interval is of the distance that so many pictures have on average, not of the distance of the distributions:
    the value plus and minus 1.96 standard deviations over resamples of the pictures; the reference is fixed. A
    percentile interval would be biased, because a resample repeats pictures and so has a larger distance. If
    ``minimum`` asks for fewer pictures than the network needs, the bias is larger than the interval and there is none.

    Args:
        minimum: fewest pictures on either side; 0 takes the network's number.

    Raises:
        UsageError: pytorch-fid is not installed, or the statistics have another width.
    """
    least = max(minimum or net.enough, 2)
    reference_count = reference.n or least if isinstance(reference, Gaussian) else len(reference)
    for name, n in (("pictures", len(pictures)), ("reference pictures", reference_count)):
        if n < least:
            reason = f"{n} {name}; at least {least} are asked for, because fewer bias the distance upwards"
            return SetScore(None, len(pictures), failures, reason=reason)
    features = net.features(pictures)
    other = reference if isinstance(reference, Gaussian) else gaussian(net.features(reference))
    if other.mean.shape != (net.width,):
        raise UsageError(f"the statistics have {other.mean.size} features and {net.name} gives {net.width}")
    try:
        value = distance(gaussian(features), other)
    except ValueError as error:
        return SetScore(None, len(pictures), failures, reason=f"the distance is not defined here: {error}")
    if min(len(pictures), reference_count) < net.enough:
        reason = f"under {net.enough} pictures the bias is larger than any interval"
        return SetScore(value, len(pictures), failures, reason=reason)
    spread = 1.96 * float(np.std(resampled_distances(features, other), ddof=1))
    return SetScore(value, len(pictures), failures, value - spread, value + spread)


def resampled_distances(
    features: Float[np.ndarray, "N E"], reference: Gaussian, times: int = RESAMPLES, seed: int = 0
) -> Float[np.ndarray, " times"]:
    """Return the distances of resamples of the features.

    tr sqrt(S T) is the sum of the square roots of the eigenvalues of R S R with R R = T. So a resample needs one
    symmetric problem of order min(N, E) and no general matrix root.
    """
    values, vectors = np.linalg.eigh(reference.covariance)
    half = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    turned = features @ half
    draws = resample_counts(len(features), times, seed)
    return np.array([_weighted(features, turned, draw, reference) for draw in draws])


def _weighted(
    features: Float[np.ndarray, "N E"],
    turned: Float[np.ndarray, "N E"],
    counts: Float[np.ndarray, " N"],
    reference: Gaussian,
) -> float:
    """Return the distance of the set that contains picture i counts[i] times."""
    n = counts.sum()
    weight = np.sqrt(counts / (n - 1))[:, None]
    centre = counts @ features / n
    spread = float((weight**2 * (features - centre) ** 2).sum())
    rows = weight * (turned - counts @ turned / n)
    gram = rows @ rows.T if len(rows) < rows.shape[1] else rows.T @ rows
    root = float(np.sqrt(np.maximum(np.linalg.eigvalsh(gram), 0)).sum())
    offset = centre - reference.mean
    return float(offset @ offset) + spread + float(np.trace(reference.covariance)) - 2 * root


def kid(pictures: Sequence[Picture], reference: Sequence[Picture], net: FeatureNet, failures: int = 0) -> SetScore:
    """Return the mean over subsets; the interval is 1.96 standard deviations of a subset's value on either side.

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
