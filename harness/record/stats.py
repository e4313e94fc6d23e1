"""Intervals and tests for the reports, paired by (prompt, repetition) and clustered by prompt.

Repetitions of a prompt, like tokens of an output, are correlated, so a bootstrap resamples whole prompts, and whole
clusters of prompts if the prompts name any. A single prompt is clustered by repetition: its intervals are over seeds,
and say nothing of other prompts. Series and frames are indexed by (prompt, repetition), as in ``metrics.totals``; the
column ``cluster`` of a frame names the cluster of each prompt. The same data and seed always give the same interval.

Intervals of ratios and means are those of the studentized bootstrap (Efron and Tibshirani 1993, section 12.5), which
hold for skew figures of 6 to 40 prompts; the plain percentile interval is too short for them. Medians have a
percentile interval widened to Student's t (Hesterberg 2015, "expanded percentile"). Fewer than six clusters give no
interval, nor do values of which nearly all are equal. Values between 0 and 1 have the interval of `bounded_mean`,
also if they are few or equal. ``python -m tests.power.intervals`` measures how often each covers the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy  # its parts are read when they are used: importing scipy.special takes a fifth of a second
from numpy.typing import NDArray

from stridebench.harness.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

FloatArray = NDArray[np.float64]
Statistic = Callable[[FloatArray], FloatArray]
"""Maps totals of C columns, shape [..., C], to one number each, shape [...]."""

RESAMPLES = 5000
FEWEST = 6
"""Number of clusters (prompts, or repetitions of a single prompt) below which a bootstrap gives no interval."""
WIDENED = 12
"""Number of clusters below which the tails of a studentized interval are smaller, down to two thirds at six clusters:
with the nominal tails, intervals of very skew figures of six prompts cover the truth in 91 of 100 cases."""
FEWEST_TESTED = 4
"""Number of clusters below which there is neither a test nor an interval of `bounded_mean`."""


@lru_cache(maxsize=8)
def resample_counts(n: int, resamples: int, seed: int) -> FloatArray:
    """How often each of n clusters is drawn in each resample, [resamples, n]; read-only."""
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.float64)
    counts.setflags(write=False)
    return counts


@lru_cache(maxsize=8)
def _uniform_weights(n: int, seed: int) -> FloatArray:
    """Weights of n + 1 points, uniform over all that sum to one, [RESAMPLES, n + 1]; read-only."""
    weights = np.random.default_rng(seed).dirichlet(np.ones(n + 1), size=RESAMPLES)
    weights.setflags(write=False)
    return weights


@dataclass(frozen=True)
class Interval:
    """An estimate and its interval; ``low`` and ``high`` are None where n, the number of clusters, is too small."""

    estimate: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class Bootstrap:
    """An estimate and its values over resampled clusters: sorted, finite, empty where clusters are too few.

    ``pivots`` are the errors of the resamples: how far each lies from the estimate, in its standard errors, times the
    standard error of the estimate; sorted. They are None for a figure that is not smooth, such as a median.
    """

    estimate: float
    values: FloatArray
    n: int
    pivots: FloatArray | None = None

    @property
    def error(self) -> float | None:
        """Standard error, corrected for the number of clusters."""
        return float(self.values.std() * np.sqrt(self.n / (self.n - 1))) if len(self.values) else None

    def interval(self, level: float = 0.95, least: float = -np.inf) -> Interval:
        """The two-sided interval, from ``least`` on; each bound alone is a one-sided bound at (1 + level) / 2."""
        if not len(self.values):
            return Interval(self.estimate, None, None, self.n)
        if self.pivots is not None:
            tail = (1 - level) / 2 * min(1.0, (self.n + WIDENED / 2) / (1.5 * WIDENED))
            above, below = np.quantile(self.pivots, [1 - tail, tail], method="inverted_cdf")
            if not np.isfinite([above, below]).all():  # many resamples hold one value alone, so their error is 0
                return Interval(self.estimate, None, None, self.n)
            low, high = max(least, float(self.estimate - above)), float(self.estimate - below)
            return Interval(self.estimate, low, high, self.n)
        tail = scipy.special.ndtr(np.sqrt(self.n / (self.n - 1)) * scipy.special.stdtrit(self.n - 1, (1 - level) / 2))
        low, high = np.quantile(self.values, [tail, 1 - tail])
        return Interval(self.estimate, max(least, float(low)), float(high), self.n)

    def p_below(self, bound: float = 0.0) -> float | None:
        """One-sided p-value of "the truth is at least ``bound``"; a small one means confidently below.

        It is the larger of two: by the resamples, and by Student's t with the bootstrap's standard error. The first
        alone is too small for skew figures of few prompts, and says nothing if no resample reaches ``bound``.
        """
        error = self.error
        if error is None:
            return None
        if not error:
            return float(self.estimate >= bound)
        tail = float(scipy.special.stdtr(self.n - 1, (self.estimate - bound) / error))
        beyond = int((self.values >= bound).sum())
        if not beyond:
            return tail
        share = (beyond + 1) / (len(self.values) + 1)
        by_resamples = scipy.special.ndtri(min(share, 1 - 1e-9)) * np.sqrt((self.n - 1) / self.n)
        return max(tail, float(scipy.special.stdtr(self.n - 1, by_resamples)))


def bootstrap(frame: pd.DataFrame, statistic: Statistic, resamples: int = RESAMPLES, seed: int = 0) -> Bootstrap | None:
    """Resample the clusters of ``frame`` and apply ``statistic`` to the totals of its columns.

    Args:
        frame: rows by (prompt, repetition), columns in the order that ``statistic`` reads them; rows with a
            missing value are left out. A column ``cluster`` is not read by the statistic.

    Returns:
        None if no row is left, or the statistic of all rows is not finite (nothing was tested, for example).
    """
    values = _columns(frame, [str(name) for name in frame if name != "cluster"])
    (table,) = _by_cluster(values, frame.index, frame.get("cluster"), [list(values)])
    return _resampled(table, statistic, resamples, seed)


def _resampled(table: FloatArray, statistic: Statistic, resamples: int = RESAMPLES, seed: int = 0) -> Bootstrap | None:
    """Return `bootstrap` of the totals of clusters, [clusters, columns]."""
    n = len(table)
    with np.errstate(divide="ignore", invalid="ignore"):
        if not n or not np.isfinite(estimate := float(statistic(table.sum(axis=0)))):
            return None
        if n < FEWEST:
            return Bootstrap(estimate, np.empty(0), n)
        counts = resample_counts(n, resamples, seed)
        values = statistic(counts @ table)
        pivots = _pivots(table, statistic, counts, values, estimate)
    return Bootstrap(estimate, _finite(values), n, pivots)


def _pivots(
    table: FloatArray, statistic: Statistic, counts: FloatArray, values: FloatArray, estimate: float
) -> FloatArray:
    """Return the finite errors in standard errors of their resample, times the standard error of all; see `Bootstrap`.

    A standard error is that of the linear part of the statistic, whose slopes are differences of nearby totals. An
    error without a standard error is infinite.
    """
    errors, near = values - estimate, 1e-5 * np.abs(table).sum(axis=0)

    def standard_errors(weights: FloatArray) -> FloatArray:
        sums = weights @ table
        steps = [np.where(np.arange(len(near)) == column, near, 0.0) for column in np.flatnonzero(near)]
        slopes = np.stack([(statistic(sums + step) - statistic(sums - step)) / (2 * step.sum()) for step in steps], -1)
        parts = slopes @ table[:, near > 0].T  # [resamples, clusters]
        means = np.einsum("rc,rc->r", weights, parts) / len(table)  # as many are drawn as there are
        squares: FloatArray = np.einsum("rc,rc->r", weights, (parts - means[:, None]) ** 2)
        return np.sqrt(squares)

    whole = standard_errors(np.ones((1, len(table))))[0]
    spread = standard_errors(counts)
    flat = ~(spread > max(1e-6 * whole, 1e-12 * abs(estimate)))
    pivots = np.where(flat, np.copysign(np.inf, errors), errors / np.where(flat, 1.0, spread) * whole)
    equal = np.abs(errors) <= 1e-9 * abs(estimate)
    return np.sort(np.where(flat & equal, 0.0, pivots)[np.isfinite(errors)])


def clusters(index: pd.Index[Any], named: pd.Series[str] | None = None) -> pd.Index[Any]:
    """Return the named cluster of each row, or else the prompt; the repetition if all rows are of one prompt.

    ``named`` has the names by (prompt, repetition); "" stands for the prompt alone.
    """
    import pandas as pd

    prompts = index.get_level_values("prompt")
    if prompts.nunique() == 1:
        return index.get_level_values("repetition")
    if named is None or not named.any():
        return prompts
    names = pd.Index(named.reindex(index).fillna(""))
    return prompts.where(names == "", "\0" + names)  # the id of a prompt has no NUL, so it is never a cluster's name


def _columns(frame: pd.DataFrame, names: Iterable[str]) -> dict[str, FloatArray]:
    return {name: frame[name].to_numpy(dtype=np.float64) for name in names}


def _by_cluster(
    values: Mapping[str, FloatArray],
    index: pd.Index[Any],
    named: pd.Series[str] | None,
    groups: Iterable[Sequence[str]],
) -> Iterator[FloatArray]:
    """Yield for each group of columns the totals of the complete rows of each cluster, [clusters, columns]."""
    numbers: dict[bytes, NDArray[Any]] = {}  # by complete rows, which are the same for most groups
    for group in groups:
        columns = np.stack([values[name] for name in group], axis=1)
        complete = np.logical_not(np.isnan(columns).any(axis=1), dtype=np.bool_)
        if complete.tobytes() not in numbers:
            numbers[complete.tobytes()] = _cluster_numbers(index, named, complete)
        codes = numbers[complete.tobytes()]
        table = np.zeros((int(codes.max(initial=-1)) + 1, len(group)))
        np.add.at(table, codes, columns[complete])
        yield table


def _cluster_numbers(index: pd.Index[Any], named: pd.Series[str] | None, complete: NDArray[np.bool_]) -> NDArray[Any]:
    """Return the number of each complete row's cluster, in the order of their names (see `clusters`).

    Most runs name no clusters. The numbers of the index's levels serve then, since comparing texts is slow.
    """
    levels = dict(zip(index.names, range(index.nlevels), strict=True))
    sorted_levels = index.nlevels == 2 and all(level.is_monotonic_increasing for level in index.levels)  # type: ignore[attr-defined]
    if not sorted_levels or (named is not None and named.any()):
        return clusters(index[complete], named).factorize(sort=True)[0]
    prompts, repetitions = (index.codes[levels[name]][complete] for name in ("prompt", "repetition"))  # type: ignore[attr-defined]
    first = len(prompts) and (prompts == prompts[0]).all()
    numbers: NDArray[Any] = np.unique(repetitions if first else prompts, return_inverse=True)[1]
    return numbers


def _finite(values: FloatArray) -> FloatArray:
    """Return the sorted finite values; none if one in twenty is not finite, because the others would be biased."""
    finite = np.sort(values[np.isfinite(values)])
    return finite if len(finite) > 0.95 * len(values) else np.empty(0)


def ratio(frame: pd.DataFrame, numerator: str, denominator: str, minus: float = 0.0, seed: int = 0) -> Interval | None:
    """Σ numerator / Σ denominator - minus."""
    values = _columns(frame, {numerator, denominator})
    return ratios(values, frame.index, frame.get("cluster"), [(numerator, denominator, minus)], seed)[0]


def ratios(
    values: Mapping[str, FloatArray],
    index: pd.Index[Any],
    named: pd.Series[str] | None,
    terms: Sequence[tuple[str, str, float]],
    seed: int = 0,
) -> list[Interval | None]:
    """Return ``ratio`` of each numerator, denominator and subtrahend; ``values`` are columns by name."""

    def interval(table: FloatArray, minus: float) -> Interval | None:
        resampled = _resampled(table, lambda s: s[..., 0] / s[..., 1] - minus, seed=seed)
        least = -np.inf if (table[:, 0] < 0).any() else 0.0 - minus  # a sum of times or counts is not negative
        return resampled.interval(least=least) if resampled else None

    tables = _by_cluster(values, index, named, [(numerator, denominator) for numerator, denominator, _ in terms])
    return [interval(table, minus) for table, (_, _, minus) in zip(tables, terms, strict=True)]


def mean(values: pd.Series[float], seed: int = 0, named: pd.Series[str] | None = None) -> Interval | None:
    """Mean over samples; missing values are left out. ``named`` has the clusters as in `clusters`."""
    frame = values.to_frame("value").assign(one=1.0)
    return ratio(frame if named is None else frame.assign(cluster=named), "value", "one", seed=seed)


def score(values: pd.Series[float], seed: int = 0, named: pd.Series[str] | None = None) -> Interval | None:
    """``mean``; where all scores are 0 or 1, with the interval of `bounded_mean`."""
    return (bounded_mean if _is_binary(values.dropna().to_numpy(dtype=np.float64)) else mean)(values, seed, named)


def bounded_mean(values: pd.Series[float], seed: int = 0, named: pd.Series[str] | None = None) -> Interval | None:
    """Mean of values between 0 and 1: with the mid-P interval if each cluster's is 0 or 1, else with `_mean_draws`."""
    return mean_of_groups([values], seed, named)


def mean_of_groups(
    groups: Sequence[pd.Series[float]], seed: int = 0, named: pd.Series[str] | None = None
) -> Interval | None:
    """Mean of the means of groups of values between 0 and 1, such as GenEval's families; one group: `bounded_mean`.

    It is None if a group is empty, and has no bounds if one has fewer than four clusters.
    """
    if not groups or any(group.isna().all() for group in groups):
        return None
    tables = [_bounded_by_cluster(group, named) for group in groups]
    estimate, n = float(np.mean([group.mean() for group in groups])), sum(map(len, tables))
    if min(map(len, tables)) < FEWEST_TESTED:
        return Interval(estimate, None, None, n)
    if len(tables) == 1 and _is_binary(tables[0]):
        low, high = mid_p(int(tables[0].sum()), n)
    else:
        draws = np.mean([_mean_draws(table, seed + place) for place, table in enumerate(tables)], axis=0)
        low, high = np.quantile(draws, [0.025, 0.975])
    return Interval(estimate, min(float(low), estimate), max(float(high), estimate), n)


def _bounded_by_cluster(values: pd.Series[float], named: pd.Series[str] | None) -> FloatArray:
    """Means of the clusters, or UsageError for a value outside 0 to 1; missing values are left out."""
    numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
    known = ~np.isnan(numbers)
    numbers, codes = numbers[known], _cluster_numbers(values.index, named, known)
    if ((numbers < 0) | (numbers > 1)).any():
        raise UsageError(f"an interval of values between 0 and 1 was asked for {numbers.min()} to {numbers.max()}")
    means: FloatArray = np.bincount(codes, weights=numbers) / np.bincount(codes)
    return means


def _mean_draws(values: FloatArray, seed: int) -> FloatArray:
    """Return draws of the mean of a distribution on [0, 1], [RESAMPLES], whose quantiles are bounds of it.

    The values and one more have uniform weights. With that one at 0 or at 1 the quantiles are Gaffke's wide bounds
    (Learned-Miller and Thomas 2019, arXiv:1905.06208, section 3). Here it lies at both equally often if all values are
    0 or 1, which gives mid-P bounds, and else between them, most often near an end (the arcsine distribution).
    """
    rng = np.random.default_rng([seed, len(values)])
    sides = rng.permutation(np.arange(RESAMPLES) % 2) if _is_binary(values) else rng.beta(0.5, 0.5, size=RESAMPLES)
    weights = _uniform_weights(len(values), seed)
    draws: FloatArray = weights[:, :-1] @ values + weights[:, -1] * sides
    return draws


def _is_binary(values: NDArray[Any]) -> bool:
    return bool(np.isin(values, (0.0, 1.0)).all())


def mid_p(k: int, n: int, alpha: float = 0.025) -> tuple[float, float]:
    """Return mid-P bounds (Lancaster 1961): at the lower one P(more than k of n) + P(k) / 2 is alpha."""

    def lower(k: int) -> float:
        low, high = 0.0, 1.0
        for _ in range(50 if k else 0):
            p = (low + high) / 2
            beyond = (scipy.special.bdtrc(k - 1, n, p) + scipy.special.bdtrc(k, n, p)) / 2
            low, high = (p, high) if beyond < alpha else (low, p)
        return low

    return lower(k), 1 - lower(n - k)


def difference(a: pd.DataFrame, b: pd.DataFrame, numerator: str, denominator: str, seed: int = 0) -> Interval | None:
    """The ratio in ``b`` less that in ``a``, over the (prompt, repetition) rows in both."""

    def gap(s: FloatArray) -> FloatArray:
        less: FloatArray = s[..., 2] / s[..., 3] - s[..., 0] / s[..., 1]
        return less

    resampled = _paired(a, b, (numerator, denominator), gap, RESAMPLES, seed)
    return resampled.interval() if resampled else None


def change(a: pd.DataFrame, b: pd.DataFrame, numerator: str, denominator: str, minus: float = 0.0) -> Bootstrap | None:
    """(ratio in b - minus) / (ratio in a - minus) - 1, over the rows in both, by 10,000 resamples."""

    def relative(s: FloatArray) -> FloatArray:
        moved: FloatArray = (s[..., 2] / s[..., 3] - minus) / (s[..., 0] / s[..., 1] - minus) - 1
        return moved

    return _paired(a, b, (numerator, denominator), relative, resamples=10_000)


def _paired(
    a: pd.DataFrame, b: pd.DataFrame, names: tuple[str, str], statistic: Statistic, resamples: int, seed: int = 0
) -> Bootstrap | None:
    """Return `bootstrap` of the two columns of ``a`` and the two of ``b``, over the rows in both."""
    if not a.index.equals(b.index):
        a, b = a.align(b, join="inner", axis=0)
    sides = {"a": a, "b": b}
    values = {f"{end}.{name}": side[name].to_numpy(dtype=np.float64) for end, side in sides.items() for name in names}
    (table,) = _by_cluster(values, a.index, a.get("cluster"), [list(values)])
    return _resampled(table, statistic, resamples, seed)


def median_ratio(
    above: pd.Series[float], below: pd.Series[float], seed: int = 0, named: pd.Series[str] | None = None
) -> Interval | None:
    """Median of above / below over (prompt, repetition) pairs: the speed-up, for times of AR and method.

    ``named`` has the clusters as in `clusters`.
    """
    if not above.index.equals(below.index):
        above, below = above.align(below, join="inner")
    with np.errstate(divide="ignore", invalid="ignore"):
        values = above.to_numpy(dtype=np.float64) / below.to_numpy(dtype=np.float64)
    known = np.isfinite(values)
    if not known.any():
        return None
    codes, values = _cluster_numbers(above.index, named, known), values[known]
    order = np.argsort(values)
    codes, values, n = codes[order], values[order], int(codes.max()) + 1
    if n < FEWEST:
        return Interval(float(np.median(values)), None, None, n)
    upto = np.cumsum(resample_counts(n, RESAMPLES, seed)[:, codes], axis=1)
    half = upto[:, -1:] / 2
    low, high = (upto < half).sum(axis=1), (upto <= half).sum(axis=1)  # the two middle ones where n is even
    resampled = (values[low] + values[high]) / 2
    return Bootstrap(float(np.median(values)), np.sort(resampled), n).interval()
