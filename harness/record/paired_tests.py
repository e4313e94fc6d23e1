"""Tests over pairs of outputs: equivalence within a margin, two samples by swapped labels, and Holm's adjustment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy  # its parts are read when they are used: importing scipy.stats takes half a second

from stridebench.harness.errors import UsageError
from stridebench.harness.record.stats import FEWEST_TESTED, FloatArray, Statistic, clusters

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Equivalence:
    """Two one-sided t-tests of a paired difference against a margin (Schuirmann 1987).

    Args:
        difference: mean over clusters.
        low: lower bound of its two-sided interval at 1 - 2 alpha, which lies inside the margin exactly where both tests
            reject; None where n is too small.
        high: its upper bound.
        margin: the largest absolute difference that counts as none.
        p: the larger of the two p-values.
        n: number of clusters.
        verdict: equivalent, different (the interval lies outside the margin), or inconclusive.
    """

    difference: float
    low: float | None
    high: float | None
    margin: float
    p: float | None
    n: int
    verdict: str


def equivalence(a: pd.Series[float], b: pd.Series[float], margin: float, alpha: float = 0.05) -> Equivalence | None:
    """Whether the mean of ``b`` less that of ``a`` lies within the margin; pairs are averaged by cluster.

    Rows in only one of the two, or without a value, are left out.

    Returns:
        None if no row is left.

    Raises:
        UsageError: the margin is not above 0, or alpha not between 0 and 0.5.
    """
    if not (0 < margin < np.inf and 0 < alpha < 0.5):
        raise UsageError(
            f"an equivalence test was asked for with margin={margin}, alpha={alpha}; give 0 < both, alpha < 0.5"
        )
    paired = (b - a).dropna()
    gaps = paired.groupby(clusters(paired.index)).mean().to_numpy(dtype=np.float64)
    n = len(gaps)
    if n < FEWEST_TESTED:
        return Equivalence(float(gaps.mean()), None, None, margin, None, n, "inconclusive") if n else None
    mean, spread = float(gaps.mean()), float(gaps.std())
    if spread <= 1e-12 * max(abs(mean), margin):  # t is 0 / 0 where all differences are one number
        low, high, p = mean, mean, float(abs(mean) >= margin)
    else:
        tested = scipy.stats.ttest_1samp
        above, below = tested(gaps, -margin, alternative="greater"), tested(gaps, margin, alternative="less")
        bounds = tested(gaps, 0.0).confidence_interval(1 - 2 * alpha)
        low, high, p = float(bounds.low), float(bounds.high), float(max(above.pvalue, below.pvalue))
    outside = low >= margin or high <= -margin
    verdict = "equivalent" if p < alpha else "different" if outside else "inconclusive"
    return Equivalence(mean, low, high, margin, p, n, verdict)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given: below alpha with family-wise error at most alpha."""
    order = np.argsort(p, kind="stable")
    scaled = np.asarray(p, dtype=np.float64)[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0) if len(p) else scaled
    return [float(one) for one in adjusted]


@dataclass(frozen=True)
class TwoSample:
    """A two-sample statistic over n pairs; ``p`` is None if there are too few clusters."""

    statistic: float
    p: float | None
    n: int


def unigram_test(a: pd.Series[Any], b: pd.Series[Any], seed: int = 0) -> TwoSample | None:
    """Total variation between the pooled token histograms of two sets of outputs.

    Args:
        a: token lists; rows in only one of the two sets are left out.
        b: as ``a``.

    Returns:
        p by swapping the labels of pairs. It is valid if the two outputs are exchangeable given the prompt. The
        statistic's noise grows with the vocabulary used, so compare it with that of two autoregressive sets.
    """
    if not a.index.equals(b.index):
        a, b = a.align(b, join="inner")
    shared = a.index
    if not len(shared):
        return None
    outputs = [np.asarray(one, dtype=np.int64) for half in (a, b) for one in half]
    tokens = np.unique(np.concatenate(outputs), return_inverse=True)[1]
    rows = np.repeat(np.arange(len(outputs)), [len(one) for one in outputs])
    shape = (len(outputs), int(tokens.max(initial=-1)) + 1)
    counts = scipy.sparse.csr_array((np.ones(len(tokens)), (rows, tokens)), shape=shape)
    if not counts[: len(shared)].sum() or not counts[len(shared) :].sum():
        return None

    def variation(swaps: FloatArray) -> FloatArray:
        first = (counts.T @ np.concatenate([1 - swaps, swaps], axis=1).T).T
        second = np.asarray(counts.sum(axis=0)) - first
        gap: FloatArray = first / first.sum(axis=1, keepdims=True) - second / second.sum(axis=1, keepdims=True)
        distances: FloatArray = np.abs(gap).sum(axis=1) / 2
        return distances

    return _swap_test(shared, variation, seed)


def ks_test(a: pd.Series[float], b: pd.Series[float], seed: int = 0) -> TwoSample | None:
    """Kolmogorov-Smirnov distance of one number an output, such as mean log-probability; p as in `unigram_test`."""
    if not a.index.equals(b.index):
        a, b = a.align(b, join="inner")
    both = np.stack([a.to_numpy(dtype=np.float64), b.to_numpy(dtype=np.float64)])
    known = ~np.isnan(both).any(axis=0)
    if not known.any():
        return None
    values = both[:, known].ravel()
    order = np.argsort(values, kind="stable")
    last = np.append(np.diff(values[order]) > 0, True)  # ties are compared after the last of them

    def distance(swaps: FloatArray) -> FloatArray:
        signs = np.concatenate([1 - 2 * swaps, 2 * swaps - 1], axis=1)[:, order]
        gaps: FloatArray = np.abs(np.cumsum(signs, axis=1))[:, last].max(axis=1) / known.sum()
        return gaps

    return _swap_test(a.index[known], distance, seed)


def _swap_test(index: pd.Index[Any], statistic: Statistic, seed: int) -> TwoSample:
    """p of ``statistic(swaps)``, swaps [B, n] in {0, 1}, by 2,000 random swaps within the pairs."""
    n = len(index)
    actual = float(statistic(np.zeros((1, n)))[0])
    if clusters(index).nunique() < FEWEST_TESTED:
        return TwoSample(actual, None, n)
    rng = np.random.default_rng(seed)
    beyond = sum(
        int((statistic(rng.integers(0, 2, size=(100, n)).astype(np.float64)) >= actual - 1e-12).sum())
        for _ in range(20)
    )
    return TwoSample(actual, (beyond + 1) / 2001, n)
