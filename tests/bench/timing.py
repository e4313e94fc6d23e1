"""Rows of results, and pairs of decodes timed in turn in one process, so that a machine's drift affects both alike.

A rate is output tokens over the time of the whole call, prefill included. The order of a pair alternates.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from typing import Any

import pandas as pd

from stridebench.harness.backbones.base import Adapter
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.clock import Stopwatch, clock_for
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import Decode, decode
from stridebench.harness.core.method import Method
from stridebench.harness.core.models import Models
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError
from stridebench.harness.machine.device import native_dtype
from stridebench.harness.plan import presets
from stridebench.harness.record import stats
from stridebench.harness.registry import METHODS, TASKS

PAIRS = 24
"""Pairs below which a result is called inconclusive."""
LOOKUP = {"length": 10, "max_ngram": 2}
GREEDY, NUCLEUS = Sampling(0.0), Sampling(1.0, top_p=0.95)
Decoder = Callable[[Any], Sequence[int]]
"""Returns the output tokens of a prompt."""


@dataclass(frozen=True)
class Row:
    """One result.

    Args:
        ours: our median, in ``unit``; None if it was skipped.
        peer: the peer's median, in ``unit``.
        ratio: median of ours / peer over pairs, and the bounds ``low`` and ``high`` of its interval.
        goal: what the ratio must reach, such as ">= 0.97"; empty if it is reported only.
        verdict: pass, fail or inconclusive; "" without a goal; skipped or error, with the reason as the note.
        points: (size, seconds, MB more than before) of a benchmark of growth.
    """

    name: str
    ours: float | None = None
    peer: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    goal: str = ""
    verdict: str = ""
    pairs: int = 1
    note: str = ""
    points: tuple[tuple[float, float, float], ...] = ()


Bench = Callable[[str, "Settings"], Iterator[Row]]
"""Yields the rows of a benchmark of this name."""


@dataclass(frozen=True)
class Settings:
    """What is timed and for how long.

    Args:
        tokens: output tokens of a prompt.
        graphs: capture passes of fixed shapes: CUDA graphs, or on a CPU a recorder that checks them.
        tiny: stand-ins in place of published models in ``gpu methods``.
        seconds: after which no further row or pair begins.
        suites: whose methods ``gpu methods`` times.
    """

    backbone: str = "smollm2-135m"
    pairs: int = PAIRS
    tokens: int = 32
    threads: int = 2
    device: str = "cpu"
    graphs: bool = False
    tiny: bool = False
    seconds: float = 540.0
    suites: tuple[str, ...] = ("trees", "embedded")
    begin: float = field(default_factory=time.monotonic)

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.begin + self.seconds


def check_type(dtype: str, device: str) -> None:
    """Refuse a type that this processor emulates: its passes take several times as long.

    Raises:
        UsageError: it is bf16, and the device does not multiply it.
    """
    if dtype == "bf16" and native_dtype(device) != "bf16":
        raise UsageError(f"{device} does not multiply bf16, and its emulation would take several times as long")


@lru_cache(maxsize=3)
def _loaded(name: str, dtype: str, device: str, graphs: bool) -> Backbone:
    backbone = presets.load(name, dtype, device)
    if graphs and isinstance(backbone, Adapter):
        backbone.use_graphs()
    return backbone


def load(name: str, dtype: str, settings: Settings) -> Backbone:
    """Return a backbone.

    Raises:
        UsageError: the device emulates the type. WeightsError: the weights are missing.
    """
    check_type(dtype, settings.device)
    return _loaded(name, dtype, settings.device, settings.graphs)


def prompt_ids(backbone: Backbone, count: int) -> list[list[int]]:
    """Return HumanEval prompts, evenly spread over the set, or arbitrary ids for a model without a tokenizer."""
    prompts = TASKS.get("humaneval")().prompts()
    try:
        return [backbone.encode(prompts[(i * len(prompts)) // count].text or "") for i in range(count)]
    except UsageError:
        return [[7, 8, 9, i % 500 + 10] for i in range(count)]


def build(name: str, params: Mapping[str, Any] | None = None) -> Method[Any]:
    """Return a method by name."""
    method: Method[Any] = METHODS.get(name)(**params or {})
    return method


@lru_cache(maxsize=1)
def _drafters(backbone: Backbone) -> Callable[[str], Backbone]:
    """Return a loader of its drafters that loads each once."""
    return cache(partial(presets.drafter, backbone))


def decoded(
    method: Method[Any],
    backbone: Backbone,
    prompt: Prompt | Sequence[int],
    budget: int,
    sampling: Sampling = GREEDY,
    forced: bool = False,
) -> Decode:
    """Decode on the clock of the device; ``forced``: go on behind an end of text."""
    models = Models(backbone, _drafters(backbone), prompt, Stopwatch(clock_for(backbone.device)))
    run = Run.of(models, sampling, budget, SeededDraws(0, "bench", "", 0, backbone.device), not forced)
    return decode(method, run)


def in_turn(sides: Sequence[Callable[[Any], float]], inputs: Sequence[Any], settings: Settings) -> list[list[float]]:
    """Return a figure of each of two sides for every input but the first, which warms both up.

    Which side goes first alternates. No pair begins when the time is over, except the first.
    """
    pairs: list[list[float]] = []
    for index, each in enumerate(inputs):
        if len(pairs) > 1 and settings.over:
            break
        figures = [0.0, 0.0]
        for which in (1, 0) if index % 2 == 0 else (0, 1):
            figures[which] = sides[which](each)
        pairs.append(figures)
    return pairs[1:]


def rates_in_turn(sides: Sequence[Decoder], inputs: Sequence[Any], settings: Settings) -> tuple[list[list[float]], str]:
    """Return the tokens a second of two decoders by pair, and a note on the outputs of the first.

    The share of 4-grams that occurred before in an output raises the rate of lookup.
    """
    outputs: list[Sequence[int]] = []

    def rate(side: int, ids: Any) -> float:
        begin = time.perf_counter()
        tokens = sides[side](ids)
        seconds = time.perf_counter() - begin
        if side == 0:
            outputs.append(tokens)
        return len(tokens) / seconds

    pairs = in_turn((partial(rate, 0), partial(rate, 1)), [inputs[0], *inputs], settings)
    grams = [Counter(tuple(each[i : i + 4]) for i in range(len(each) - 3)) for each in outputs[1:]]
    repeated = pd.Series([1 - len(each) / max(1, each.total()) for each in grams if each]).mean()
    length = pd.Series([len(each) for each in outputs[1:]]).median()
    return pairs, f"median output {length:.0f} tokens, repeated 4-grams {repeated:.0%}"


def paired_index(count: int) -> pd.MultiIndex:
    """Return an index of prompts, as the statistics of a run have it."""
    return pd.MultiIndex.from_product([range(count), [0]], names=["prompt", "repetition"])


def compare(name: str, pairs: Sequence[Sequence[float]], unit: str, goal: float | None = None, note: str = "") -> Row:
    """Return medians of both sides, the median of their ratios, and whether that reaches the goal."""
    above, below = (pd.Series(side, paired_index(len(pairs))) for side in zip(*pairs, strict=True))
    interval = stats.median_ratio(above, below)
    assert interval is not None
    verdict = "" if goal is None else verdict_of(interval.low, interval.high, goal, len(pairs))
    ask = "" if goal is None else f">= {goal:g}"
    figures = float(above.median()), float(below.median()), interval.estimate, interval.low, interval.high
    return Row(name, *figures, unit, ask, verdict, len(pairs), note)


def verdict_of(low: float | None, high: float | None, goal: float, pairs: int, most: bool = False) -> str:
    """Return the verdict on an interval that must lie above the goal, or below it with ``most``."""
    if pairs < PAIRS or low is None or high is None:
        return "inconclusive"
    if most:
        return "pass" if high <= goal else "fail" if low > goal else "inconclusive"
    return "pass" if low >= goal else "fail" if high < goal else "inconclusive"


def limited(name: str, value: float, goal: float, unit: str, note: str) -> Row:
    """Return the row of one measurement that must not be above its goal."""
    verdict = "pass" if value <= goal else "fail"
    return Row(name, value, None, value / goal, None, None, unit, f"<= {goal:g} {unit}", verdict, 1, note)
