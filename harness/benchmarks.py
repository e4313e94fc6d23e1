"""Our speed beside a peer's, pair by pair in one process, so that a machine's drift hits both alike.

Rates are output tokens over the whole call, prefill included, at T = 0, stopping where the model stops. The order
of a pair alternates. Overhead is a step's wall time outside target and drafter passes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from harness import presets, stats
from harness.backbone import Backbone
from harness.draws import SeededDraws
from harness.errors import UsageError
from harness.law import Sampling
from harness.loop import Decode, decode, open_run
from harness.method import Method
from harness.registry import METHODS, TASKS

PAIRS = 24
"""Pairs below which a result is called inconclusive."""
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
LOOKUP = {"length": 10, "max_ngram": 2}


@dataclass(frozen=True)
class Result:
    """One benchmark.

    Args:
        ours, peer: medians of each side, in ``unit``. ratio: median of ours / peer over pairs, with an interval.
        goal: what is asked of the ratio, such as ">= 0.97"; empty: reported only. verdict: pass, fail or
        inconclusive; "" without a goal. pairs: how many. note: what else was seen.
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


@dataclass(frozen=True)
class Settings:
    """What to time: a backbone, prompts of HumanEval, tokens a prompt, threads."""

    backbone: str = "smollm2-135m"
    pairs: int = PAIRS
    tokens: int = 32
    threads: int = 2


def run(settings: Settings, only: str, say: Callable[[str], None]) -> Iterator[Result]:
    """Every benchmark whose name holds ``only``, one after the other.

    Raises:
        UsageError: no benchmark has such a name.
    """
    chosen = {name: act for name, act in BENCHMARKS.items() if only in name}
    if not chosen:
        raise UsageError(f"no benchmark is called {only!r}; there are {', '.join(BENCHMARKS)}")
    torch.set_num_threads(settings.threads)
    for name, act in chosen.items():
        say(name)
        with torch.inference_mode():
            yield act(name, settings)


def _prompts(backbone: Backbone, count: int) -> list[list[int]]:
    """HumanEval prompts, evenly spread over the set."""
    found = TASKS.get("humaneval")().prompts()
    return [backbone.encode(found[(i * len(found)) // count].text or "") for i in range(count)]


def _peer(settings: Settings, dtype: str) -> Any:
    """The same weights as transformers loads them."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = presets.fetch(settings.backbone)
    if folder is None:
        raise UsageError(f"{settings.backbone} has random weights, which transformers cannot load beside us")
    return AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype], local_files_only=True).eval()


def _ours(method: Method[Any], backbone: Backbone, ids: list[int], tokens: int, forced: bool) -> Decode:
    run = open_run(backbone, lambda name: backbone, ids, Sampling(0.0), tokens, SeededDraws(0, "bench", "", 0))
    run.eos = frozenset() if forced else run.eos
    return decode(method, run)


def _method(name: str, params: dict[str, Any]) -> Method[Any]:
    made: Method[Any] = METHODS.get(name)(**params)
    return made


def rates(method: str, dtype: str, goal: float | None, forced: bool = False) -> Callable[[str, Settings], Result]:
    """Tokens a second against transformers' `generate` with the same method."""
    params = LOOKUP if method == "prompt_lookup" else {}
    extra = {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 2} if params else {}

    def act(name: str, settings: Settings) -> Result:
        backbone, peer = presets.load(settings.backbone, dtype), _peer(settings, dtype)
        made = _method(method, dict(params))
        limits = {"max_new_tokens": settings.tokens, "do_sample": False, "pad_token_id": 0}
        limits |= {"min_new_tokens": settings.tokens} if forced else {}

        def ours(ids: list[int]) -> Sequence[int]:
            return _ours(made, backbone, ids, settings.tokens, forced).tokens

        def theirs(ids: list[int]) -> Sequence[int]:
            out: list[int] = peer.generate(torch.tensor([ids]), **limits, **extra)[0, len(ids) :].tolist()
            return out

        rows = _pairs((ours, theirs), _prompts(backbone, settings.pairs))
        return _compare(name, rows, "tokens/s", goal)

    return act


def _pairs(sides: Sequence[Callable[[list[int]], Sequence[int]]], prompts: list[list[int]]) -> pd.DataFrame:
    """Both sides on every prompt, the first in turn; a warm-up of each before."""
    for side in sides:
        side(prompts[0])
    rows: list[dict[str, float]] = []
    for index, ids in enumerate(prompts):
        row: dict[str, float] = {}
        for which in (0, 1) if index % 2 == 0 else (1, 0):
            begin = time.perf_counter()
            tokens = sides[which](ids)
            row[f"rate{which}"] = len(tokens) / (time.perf_counter() - begin)
            row[f"repeats{which}"] = _repeats(tokens)
            row[f"tokens{which}"] = len(tokens)
        rows.append(row)
    return pd.DataFrame(rows)


def _repeats(tokens: Sequence[int]) -> float:
    """Share of 4-grams that occurred before in the same output: forced lengths inflate lookup's numbers."""
    grams = Counter(tuple(tokens[i : i + 4]) for i in range(len(tokens) - 3))
    total = sum(grams.values())
    return 1 - len(grams) / total if total else 0.0


def _compare(name: str, rows: pd.DataFrame, unit: str, goal: float | None) -> Result:
    index = pd.MultiIndex.from_product([range(len(rows)), [0]], names=["prompt", "repetition"])
    above, below = (rows[key].set_axis(index) for key in ("rate0", "rate1"))
    found = stats.median_ratio(above, below)
    assert found is not None
    note = f"median output {rows['tokens0'].median():.0f} tokens, repeated 4-grams {rows['repeats0'].mean():.0%}"
    ask = "" if goal is None else f">= {goal:g}"
    verdict = "" if goal is None else _at_least(found.low, found.high, goal, len(rows))
    medians = rows["rate0"].median(), rows["rate1"].median()
    return Result(name, *medians, found.estimate, found.low, found.high, unit, ask, verdict, len(rows), note)


def _at_least(low: float | None, high: float | None, goal: float, pairs: int) -> str:
    if pairs < PAIRS or low is None or high is None:
        return "inconclusive"
    return "pass" if low >= goal else "fail" if high < goal else "inconclusive"


def overhead(
    method: str, backbone: str, dtype: str, sampling: Sampling, goal: float, unit: str
) -> Callable[[str, Settings], Result]:
    """Wall time of a step outside target and drafter passes: its share of the step, or its ms."""

    def act(name: str, settings: Settings) -> Result:
        model = presets.load(backbone or settings.backbone, dtype)
        made = _method(method, dict(LOOKUP) if method == "prompt_lookup" else {})
        small = bool(backbone)
        prompts = [[7, 8, 9, i % 500 + 10] for i in range(settings.pairs)] if small else _prompts(model, settings.pairs)
        rows = []
        for index, ids in enumerate([prompts[0], *prompts]):
            draws = SeededDraws(0, "bench", str(index), 0)
            run = open_run(model, lambda name: model, ids, sampling, settings.tokens, draws)
            steps = decode(made, run).steps
            wall = sum(step.wall_ns for step in steps) / 1e6
            passes = sum(step.target_ns + step.draft_ns for step in steps) / 1e6
            rows.append({"outside": wall - passes, "wall": wall, "passes": passes, "steps": len(steps)})
        frame = pd.DataFrame(rows[1:])
        frame.index = pd.MultiIndex.from_product([range(len(frame)), [0]], names=["prompt", "repetition"])
        found = stats.ratio(frame, "outside", "wall" if unit == "share" else "steps")
        assert found is not None
        ours, theirs = (frame[key].sum() / frame["steps"].sum() for key in ("outside", "passes"))
        verdict = _at_most(found.low, found.high, goal, len(frame))
        note = "ours: ms a step outside passes; peer: ms a step inside them"
        low, high = found.low, found.high
        return Result(name, ours, theirs, found.estimate, low, high, unit, f"<= {goal:g}", verdict, len(frame), note)

    return act


def _at_most(low: float | None, high: float | None, goal: float, pairs: int) -> str:
    if pairs < PAIRS or low is None or high is None:
        return "inconclusive"
    return "pass" if high <= goal else "fail" if low > goal else "inconclusive"


GREEDY, NUCLEUS = Sampling(0.0), Sampling(1.0, top_p=0.95)
BENCHMARKS: dict[str, Callable[[str, Settings], Result]] = {
    "autoregressive bf16": rates("autoregressive", "bf16", 0.97),
    "autoregressive fp32": rates("autoregressive", "fp32", 0.97),
    "prompt_lookup bf16": rates("prompt_lookup", "bf16", 1.1),
    "prompt_lookup fp32": rates("prompt_lookup", "fp32", 1.1),
    "prompt_lookup bf16, forced length": rates("prompt_lookup", "bf16", None, forced=True),
    "overhead autoregressive T=0 bf16": overhead("autoregressive", "", "bf16", GREEDY, 0.05, "share"),
    "overhead prompt_lookup T=0 bf16": overhead("prompt_lookup", "", "bf16", GREEDY, 0.05, "share"),
    "overhead autoregressive T=1 top_p bf16": overhead("autoregressive", "", "bf16", NUCLEUS, 0.15, "share"),
    "overhead prompt_lookup T=1 top_p bf16": overhead("prompt_lookup", "", "bf16", NUCLEUS, 0.15, "share"),
    "overhead autoregressive random-llama-5m": overhead("autoregressive", "random-llama-5m", "fp32", GREEDY, 0.8, "ms"),
    "overhead sjd random-llama-5m": overhead("sjd", "random-llama-5m", "fp32", NUCLEUS, 0.8, "ms"),
}
