"""`python -m tests.power.intervals [FILE]`: how often the interval of each kind of figure covers the truth.

Every figure is computed by the function that tables and scores of sets use, from prompts drawn anew in each run. Writes
a results file such as ``reports/data/results/intervals.yaml``; prints each row as it is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binom

from stridebench.harness.record import stats
from stridebench.tasks.metrics import geneval
from stridebench.tasks.metrics.features import by_prompt, mean
from tests.results import document, save

PROMPTS, RUNS, MANY_RUNS = (6, 12, 24), 1000, 4000
COLUMNS = ["figure", "prompts", "has an interval", "covers the truth"]
UNSEEN = ["prompts", "samples without an easy prompt", "of these cover the truth", "of the others"]
SETTING = (
    f"{RUNS} runs a row, {MANY_RUNS} where that is near 98. Covers the truth: percent of the intervals given, "
    "nominally 95; of a share of single outputs it is computed. Skew: of the values of prompts. The other "
    "table is of SCR if one prompt in ten decodes five tokens a step, the others two, and nothing names the kinds."
)
Bounds = tuple[float | None, float | None]


@dataclass(frozen=True)
class Figure:
    """A kind of figure.

    Args:
        name: with its distribution.
        truth: of the distribution.
        draw: the interval of so many new prompts.
        counted: the figure is the share of prompts with one of two outcomes, so that its coverage is a sum.
        runs: more where the coverage is near 98 %.
    """

    name: str
    truth: float
    draw: Callable[[np.random.Generator, int], Bounds]
    counted: bool = False
    runs: int = RUNS


def names(n: int) -> list[str]:
    return [f"p{i:03d}" for i in range(n)]


def of_set(values: Any, ids: list[str] | None = None, within: tuple[float, float] | None = None) -> Bounds:
    score = mean(ids or names(len(values)), [float(value) for value in values], within=within)
    return score.low, score.high


def bounds(interval: stats.Interval | None) -> Bounds:
    return (None, None) if interval is None else (interval.low, interval.high)


def frame(**columns: Any) -> pd.DataFrame:
    first = by_prompt(names(len(next(iter(columns.values())))), next(iter(columns.values())))
    return pd.DataFrame({name: np.asarray(values, dtype=np.float64) for name, values in columns.items()}, first.index)


def share(rng: np.random.Generator, n: int, p: float = 0.95) -> Bounds:
    return of_count(int(rng.binomial(n, p)), n)


def of_count(right: int, n: int) -> Bounds:
    return of_set([1] * right + [0] * (n - right), within=(0, 1))


def share_of_four(rng: np.random.Generator, n: int) -> Bounds:
    """Four pictures a prompt; the chance of a prompt is Beta(19, 1), so its pictures are correlated."""
    chance = rng.beta(9.5, 0.5, size=n)
    return of_set((rng.random((n, 4)) < chance[:, None]).ravel(), [one for one in names(n) for _ in range(4)], (0, 1))


def families(rng: np.random.Generator, n: int) -> Bounds:
    """GenEval's overall score of six families of n prompts, with shares from 0.3 to 0.99."""
    rows = [
        geneval.GenEvalResult(tag, f"{tag}{i}", bool(rng.random() < p))
        for tag, p in zip(geneval.TAGS, SHARES, strict=True)
        for i in range(n)
    ]
    score = geneval.summary(rows)["geneval_overall"]
    return score.low, score.high


SHARES = (0.99, 0.9, 0.6, 0.85, 0.3, 0.5)


def pass_at_ten(rng: np.random.Generator, n: int) -> Bounds:
    """pass@10 of 20 samples of problems whose chance is Beta(0.4, 0.8): many are always solved."""
    right = rng.binomial(20, rng.beta(0.4, 0.8, size=n))
    return of_set(1 - unsolved(right), within=(0, 1))


def unsolved(right: Any) -> Any:
    """1 - pass@10 for so many of 20 samples that are right: C(20 - c, 10) / C(20, 10)."""
    return np.prod([(20 - right - k) / (20 - k) for k in range(10)], axis=0)


def tokens(rng: np.random.Generator, n: int) -> pd.DataFrame:
    """Output and steps of prompts whose tokens a step are 1 + gamma(2, 0.5), skew 1.4."""
    steps = rng.integers(20, 60, size=n)
    return frame(output=steps * (1 + rng.gamma(2.0, 0.5, size=n)), steps=steps)


def clustered(rng: np.random.Generator, n: int) -> Bounds:
    """The same with three prompts a cluster, equal up to 10 %, and n clusters."""
    steps, rate = rng.integers(20, 60, size=3 * n), np.repeat(rng.gamma(2.0, 0.5, size=n), 3)
    rows = frame(output=steps * (1 + rate * rng.uniform(0.9, 1.1, size=3 * n)), steps=steps)
    rows["cluster"] = [f"c{i // 3}" for i in range(3 * n)]
    return bounds(stats.ratio(rows, "output", "steps"))


def easy(rng: np.random.Generator, n: int, named: bool = False) -> Bounds:
    """One prompt in ten decodes five tokens a step and the others two; ``named`` prompts say which they are."""
    return of_kinds(rng, rng.random(n) < 0.1, named)


def of_kinds(rng: np.random.Generator, is_easy: Any, named: bool = False) -> Bounds:
    n = len(is_easy)
    steps = rng.integers(20, 60, size=n)
    rate = np.where(is_easy, 5.0, 2.0) * rng.uniform(0.9, 1.1, size=n)
    rows = frame(output=steps * rate, steps=steps)
    if named:
        rows["cluster"] = np.where(is_easy, "easy", "hard")
    return bounds(stats.ratio(rows, "output", "steps"))


def paired(rng: np.random.Generator, n: int) -> Bounds:
    """Log-probability less that of plain decoding, over the same prompts; it moves by 0.02 on average."""
    plain, length = rng.normal(-1, 0.4, size=n), rng.integers(20, 60, size=n)
    moved = plain + rng.gamma(1.0, 0.02, size=n)
    before, after = (frame(logprob=value * length, output=length) for value in (plain, moved))
    return bounds(stats.difference(before, after, "logprob", "output"))


def speed(rng: np.random.Generator, n: int) -> Bounds:
    above, below = by_prompt(names(n), rng.lognormal(0.5, 0.4, size=n)), by_prompt(names(n), np.ones(n))
    return bounds(stats.median_ratio(above, below))


def word_errors(rng: np.random.Generator, n: int) -> Bounds:
    """A rate of 10 %, with a rate of each utterance that is gamma(1)."""
    words = rng.integers(10, 40, size=n)
    errors = rng.poisson(words * rng.gamma(1.0, 0.1, size=n))
    return bounds(stats.ratio(frame(errors=errors, words=words), "errors", "words"))


FIGURES = (
    Figure("share of 0.95, one output a prompt", 0.95, share, counted=True),
    Figure("share of 0.5, one output a prompt", 0.5, lambda rng, n: share(rng, n, 0.5), counted=True),
    Figure("share of 0.95, four correlated outputs a prompt", 0.95, share_of_four, runs=MANY_RUNS),
    Figure("GenEval overall, prompts a family", float(np.mean(SHARES)), families),
    Figure("pass@10, many problems always solved", float("nan"), pass_at_ten, runs=MANY_RUNS),
    Figure(
        "T2I-CompBench, DPG: values from 0 to 1, skew -1.9",
        5 / 5.5,
        lambda rng, n: of_set(rng.beta(5, 0.5, n), None, (0, 1)),
        runs=MANY_RUNS,
    ),
    Figure(
        "judge: whole numbers from 1 to 10",
        float("nan"),
        lambda rng, n: of_set(graded(rng, n), None, (1, 10)),
        runs=MANY_RUNS,
    ),
    Figure("CLIP score, aesthetic: normal", 30.0, lambda rng, n: of_set(rng.normal(30, 3, n))),
    Figure("LPIPS, Chamfer: gamma, skew 1.2", 0.3, lambda rng, n: of_set(rng.gamma(3.0, 0.1, n))),
    Figure("perplexity: exponential nats, skew 2", 1.0, lambda rng, n: of_set(rng.exponential(size=n))),
    Figure("word error rate of a corpus", 0.1, word_errors),
    Figure(
        "SCR, tau: ratio of sums, skew 1.4", 2.0, lambda rng, n: bounds(stats.ratio(tokens(rng, n), "output", "steps"))
    ),
    Figure("SCR of clusters of three prompts, clusters", 2.0, clustered),
    Figure("SCR, one prompt in ten is easy, kinds named as clusters", 2.3, lambda rng, n: easy(rng, n, named=True)),
    Figure("log-prob - AR, paired", 0.02, paired),
    Figure("speed-up: median of ratios", float(np.exp(0.5)), speed, runs=MANY_RUNS),
)


def graded(rng: np.random.Generator, n: int) -> Any:
    return np.clip(np.round(rng.normal(8.5, 2.0, size=n)), 1, 10)


def truth_of(figure: Figure) -> float:
    """The truth, for two figures the mean of many prompts."""
    if np.isfinite(figure.truth):
        return figure.truth
    rng = np.random.default_rng(9)
    if figure.draw is pass_at_ten:
        return float(1 - unsolved(rng.binomial(20, rng.beta(0.4, 0.8, size=400_000))).mean())
    return float(graded(rng, 400_000).mean())


def row(figure: Figure, n: int) -> list[str]:
    """Return one row of the table."""
    truth, rng = truth_of(figure), np.random.default_rng([n, FIGURES.index(figure)])
    if figure.counted:
        drawn, weights = [of_count(right, n) for right in range(n + 1)], binom.pmf(np.arange(n + 1), n, truth)
    else:
        drawn, weights = [figure.draw(rng, n) for _ in range(figure.runs)], np.full(figure.runs, 1 / figure.runs)
    given, hits = (sum(weights[k] for k, one in enumerate(drawn) if has(one)) for has in (is_given, covering(truth)))
    cells = [figure.name, str(n), f"{100 * given:.1f}", f"{100 * hits / given:.1f}" if given else "-"]
    print(*cells, sep="\t", flush=True)
    return cells


def is_given(drawn: Bounds) -> bool:
    return drawn[0] is not None


def covering(truth: float) -> Callable[[Bounds], bool]:
    def covers(drawn: Bounds) -> bool:
        low, high = drawn
        return low is not None and high is not None and low - 1e-12 <= truth <= high + 1e-12

    return covers


def unseen(n: int, runs: int = RUNS) -> list[str]:
    """Return one row of the table of samples with and without an easy prompt."""
    rng = np.random.default_rng([n, len(FIGURES)])
    kinds = [rng.random(n) < 0.1 for _ in range(runs)]
    hits = [[covering(2.3)(of_kinds(rng, kind)) for kind in kinds if kind.any() == some] for some in (False, True)]
    cells = [str(n), f"{100 * 0.9**n:.1f}", *(f"{100 * np.mean(one):.1f}" for one in hits)]
    print(*cells, sep="\t", flush=True)
    return cells


def results(path: Path | None) -> None:
    """Measure, and write the file."""
    tables = [
        {"name": "coverage", "columns": COLUMNS, "rows": [row(figure, n) for figure in FIGURES for n in PROMPTS]},
        {"name": "unseen", "columns": UNSEEN, "rows": [unseen(n) for n in PROMPTS]},
    ]
    command = "tests.power.intervals reports/data/results/intervals.yaml"
    save(path, document("How often intervals cover the truth", command, SETTING, tables))


if __name__ == "__main__":
    results(Path(sys.argv[1]) if sys.argv[1:] else None)
