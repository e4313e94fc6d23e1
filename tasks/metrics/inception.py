"""Inception Score: exp of the mean divergence between the class law of a picture and that of its split.

Source: Salimans et al. 2016, arXiv:1606.03498, and its code openai/improved-gan, inception_score/model.py: logits
without bias over all 1008 classes of the 2015 net, ten splits.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from harness.core.task import SetScore
from tasks.metrics.features import Inception
from tasks.metrics.image_stats import Shown

SPLITS = 10
ENOUGH = 1_000


def split_scores(logits: Float[np.ndarray, "N C"], splits: int = SPLITS) -> Float[np.ndarray, " splits"]:
    """The score of each of ``splits`` runs of rows."""
    law = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    scores = []
    for part in np.array_split(law, splits):
        middle = np.log(np.exp(part).mean(0))
        scores.append(np.exp((np.exp(part) * (part - middle)).sum(1).mean()))
    return np.array(scores)


def inception_score(seen: Shown, net: Inception, minimum: int = ENOUGH, splits: int = SPLITS) -> SetScore:
    """Mean over the splits, with Student's interval over them.

    Pictures are dealt to the splits at random (fixed seed), so that those of one prompt do not share one.

    Args:
        minimum: fewest pictures; a score of n pictures cannot exceed n / splits, so few bias it downwards.
    """
    n = len(seen.pictures)
    if n < max(minimum, splits):
        reason = f"{n} pictures; at least {max(minimum, splits)} are asked for, because fewer bound the score"
        return SetScore(None, n, seen.failures, reason=reason)
    logits = net.logits(net.features(seen.pictures))
    scores = split_scores(logits[np.random.default_rng(0).permutation(n)], splits)
    value = float(scores.mean())
    if splits < 2:
        return SetScore(value, n, seen.failures)
    from scipy.stats import t as student  # slow to import, and few need it

    half = float(student.ppf(0.975, splits - 1) * scores.std(ddof=1) / np.sqrt(splits))
    return SetScore(value, n, seen.failures, value - half, value + half)
