"""Inception Score: exp of the mean divergence between the class distribution of a picture and that of its split.

Source: Salimans et al. 2016, arXiv:1606.03498, and its code openai/improved-gan, inception_score/model.py: logits
without bias over all 1008 classes of the 2015 net, ten splits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stridebench.harness.core.task import SetScore
from stridebench.tasks.metrics.features import Inception
from stridebench.tasks.metrics.image_stats import PictureSet

if TYPE_CHECKING:
    from jaxtyping import Float

SPLITS = 10
ENOUGH = 1_000


def split_scores(logits: Float[np.ndarray, "N C"], splits: int = SPLITS) -> Float[np.ndarray, " splits"]:
    """Return the score of each of ``splits`` parts of the rows."""
    log_probs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    scores = []
    for split in np.array_split(log_probs, splits):
        log_mean = np.log(np.exp(split).mean(0))
        scores.append(np.exp((np.exp(split) * (split - log_mean)).sum(1).mean()))
    return np.array(scores)


def inception_score(picture_set: PictureSet, net: Inception, minimum: int = ENOUGH, splits: int = SPLITS) -> SetScore:
    """Return the mean over the splits with Student's interval.

    Pictures are split at random (fixed seed), so that pictures of one prompt do not share a split.

    Args:
        picture_set: the pictures.
        net: computes the features.
        minimum: fewest pictures; a score of n pictures cannot exceed n / splits, so few pictures bias it downwards.
        splits: number of splits.
    """
    n = len(picture_set.pictures)
    if n < max(minimum, splits):
        reason = f"{n} pictures; at least {max(minimum, splits)} are asked for, because fewer bound the score"
        return SetScore(None, n, picture_set.failures, reason=reason)
    logits = net.logits(net.features(picture_set.pictures))
    scores = split_scores(logits[np.random.default_rng(0).permutation(n)], splits)
    value = float(scores.mean())
    if splits < 2:
        return SetScore(value, n, picture_set.failures)
    from scipy.stats import t as student  # slow to import and rarely needed

    half = float(student.ppf(0.975, splits - 1) * scores.std(ddof=1) / np.sqrt(splits))
    return SetScore(value, n, picture_set.failures, value - half, value + half)
