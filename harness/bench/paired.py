"""Pairs of decodes timed in turn in one process, so that a machine's drift affects both sides alike.

A rate is output tokens over the time of the whole call, prefill included, at T = 0. A decode stops where the model
stops. The order of a pair alternates.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import pandas as pd

from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import Decode, decode
from stridebench.harness.core.method import Method
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.plan import presets
from stridebench.harness.record import stats
from stridebench.harness.registry import METHODS, TASKS

PAIRS = 24
"""Pairs below which a result is called inconclusive."""
LOOKUP = {"length": 10, "max_ngram": 2}


@dataclass(frozen=True)
class Result:
    """One benchmark.

    Args:
        ours: our median, in ``unit``.
        peer: the peer's median, in ``unit``.
        ratio: median of ours / peer over pairs.
        low: lower bound of the ratio.
        high: its upper bound.
        goal: what the ratio must reach, such as ">= 0.97"; empty: reported only.
        verdict: pass, fail or inconclusive; "" without a goal.
        pairs: number of pairs.
        note: other observations.
        points: (size, seconds, MB more than before) of a benchmark of growth; a size may be measured several times.
    """

    name: str
    ours: float
    peer: float | None
    ratio: float
    low: float | None
    high: float | None
    unit: str
    goal: str
    verdict: str
    pairs: int
    note: str = ""
    points: tuple[tuple[float, float, float], ...] = ()


@dataclass(frozen=True)
class Settings:
    """What to time: a backbone, prompts of HumanEval, tokens a prompt, threads."""

    backbone: str = "smollm2-135m"
    pairs: int = PAIRS
    tokens: int = 32
    threads: int = 2


def prompt_ids(backbone: Backbone, count: int) -> list[list[int]]:
    """HumanEval prompts, evenly spread over the set."""
    prompts = TASKS.get("humaneval")().prompts()
    return [backbone.encode(prompts[(i * len(prompts)) // count].text or "") for i in range(count)]


def decoded(method: Method[Any], backbone: Backbone, ids: list[int], tokens: int, forced: bool) -> Decode:
    """Decode at T = 0; ``forced``: always ``tokens`` tokens, also behind an end of text."""
    run = open_run(backbone, _drafters(backbone), ids, Sampling(0.0), tokens, SeededDraws(0, "bench", "", 0))
    run.eos = frozenset() if forced else run.eos
    return decode(method, run)


@lru_cache(maxsize=1)
def _drafters(backbone: Backbone) -> Callable[[str], Backbone]:
    """Its drafters by name, each loaded once."""
    return cache(lambda name: presets.drafter(backbone, name))


def build(name: str, params: dict[str, Any]) -> Method[Any]:
    """A method by name."""
    method: Method[Any] = METHODS.get(name)(**params)
    return method


def in_turn(sides: Sequence[Callable[[list[int]], Sequence[int]]], prompts: list[list[int]]) -> pd.DataFrame:
    """Time both sides on every prompt, after a warm-up of each; which one goes first alternates."""
    for side in sides:
        side(prompts[0])
    rows: list[dict[str, float]] = []
    for index, ids in enumerate(prompts):
        row: dict[str, float] = {}
        for which in order(index):
            begin = time.perf_counter()
            tokens = sides[which](ids)
            row[f"rate{which}"] = len(tokens) / (time.perf_counter() - begin)
            row[f"repeats{which}"] = _repeats(tokens)
            row[f"tokens{which}"] = len(tokens)
        rows.append(row)
    return pd.DataFrame(rows)


def order(index: int) -> tuple[int, int]:
    """Which of two sides goes first in a pair, and which second."""
    return (0, 1) if index % 2 == 0 else (1, 0)


def _repeats(tokens: Sequence[int]) -> float:
    """Share of 4-grams that occurred before in the same output. Forced lengths raise it, and with it lookup's rate."""
    grams = Counter(tuple(tokens[i : i + 4]) for i in range(len(tokens) - 3))
    total = sum(grams.values())
    return 1 - len(grams) / total if total else 0.0


def compare(name: str, rows: pd.DataFrame, unit: str, goal: float | None) -> Result:
    """Rates of both sides of ``in_turn``, the median of their ratios, and whether that reaches the goal."""
    index = pd.MultiIndex.from_product([range(len(rows)), [0]], names=["prompt", "repetition"])
    above, below = (rows[key].set_axis(index) for key in ("rate0", "rate1"))
    interval = stats.median_ratio(above, below)
    assert interval is not None
    note = f"median output {rows['tokens0'].median():.0f} tokens, repeated 4-grams {rows['repeats0'].mean():.0%}"
    ask = "" if goal is None else f">= {goal:g}"
    verdict = "" if goal is None else at_least(interval.low, interval.high, goal, len(rows))
    medians = rows["rate0"].median(), rows["rate1"].median()
    return Result(name, *medians, interval.estimate, interval.low, interval.high, unit, ask, verdict, len(rows), note)


def at_least(low: float | None, high: float | None, goal: float, pairs: int) -> str:
    """The verdict on an interval that must lie above the goal."""
    if pairs < PAIRS or low is None or high is None:
        return "inconclusive"
    return "pass" if low >= goal else "fail" if high < goal else "inconclusive"


def at_most(low: float | None, high: float | None, goal: float, pairs: int) -> str:
    """The verdict on an interval that must lie below the goal."""
    if pairs < PAIRS or low is None or high is None:
        return "inconclusive"
    return "pass" if high <= goal else "fail" if low > goal else "inconclusive"
