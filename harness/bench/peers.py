"""Our speed beside a peer's or our own baseline's (`stridebench.harness.bench.paired`), and our overhead.

Overhead is a step's wall time outside target and drafter passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd
import torch

from stridebench.harness.bench import llama, scale
from stridebench.harness.bench.paired import (
    LOOKUP,
    PAIRS,
    Result,
    Settings,
    at_most,
    build,
    compare,
    decoded,
    in_turn,
    prompt_ids,
)
from stridebench.harness.bench.quantized import quantized
from stridebench.harness.bench.startup import first_token, peak_memory, startup
from stridebench.harness.bench.trees import fastest, large
from stridebench.harness.bench.windows import windows
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import decode
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.errors import UsageError
from stridebench.harness.plan import presets
from stridebench.harness.platform.quiet import quiet
from stridebench.harness.record import stats

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
__all__ = ["BENCHMARKS", "PAIRS", "Result", "Settings", "run"]


def run(settings: Settings, only: str, say: Callable[[str], None]) -> Iterator[Result]:
    """Every benchmark whose name holds ``only``, one after the other.

    Raises:
        UsageError: no benchmark has such a name.
    """
    benchmarks = BENCHMARKS | NAMED
    chosen = {name: act for name, act in (benchmarks if only else BENCHMARKS).items() if only in name}
    if not chosen:
        raise UsageError(f"no benchmark is called {only!r}; there are {', '.join(benchmarks)}")
    torch.set_num_threads(settings.threads)
    for name, act in chosen.items():
        say(name)
        with torch.inference_mode():
            yield act(name, settings)


def _peer(settings: Settings, dtype: str) -> Any:
    """The same weights, loaded by transformers."""
    from transformers import AutoModelForCausalLM

    folder = presets.fetch(settings.backbone)
    if folder is None:
        raise UsageError(f"{settings.backbone} has random weights, which transformers cannot load beside us")
    with quiet():
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=DTYPES[dtype], local_files_only=True, trust_remote_code=False
        ).eval()


def rates(method: str, dtype: str, goal: float | None, forced: bool = False) -> Callable[[str, Settings], Result]:
    """Tokens a second against transformers' `generate` with the same method."""
    params = LOOKUP if method == "prompt_lookup" else {}
    extra = {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 2} if params else {}

    def act(name: str, settings: Settings) -> Result:
        backbone, peer = presets.load(settings.backbone, dtype), _peer(settings, dtype)
        decoder = build(method, dict(params))
        limits = {"max_new_tokens": settings.tokens, "do_sample": False, "pad_token_id": 0}
        limits |= {"min_new_tokens": settings.tokens} if forced else {}

        def with_stridebench(ids: list[int]) -> Sequence[int]:
            return decoded(decoder, backbone, ids, settings.tokens, forced).tokens

        def with_transformers(ids: list[int]) -> Sequence[int]:
            out: list[int] = peer.generate(torch.tensor([ids]), **limits, **extra)[0, len(ids) :].tolist()
            return out

        rows = in_turn((with_stridebench, with_transformers), prompt_ids(backbone, settings.pairs))
        return compare(name, rows, "tokens/s", goal)

    return act


def overhead(
    method: str, backbone: str, dtype: str, sampling: Sampling, goal: float, unit: str
) -> Callable[[str, Settings], Result]:
    """Wall time of a step outside target and drafter passes: its share of the step, or its ms."""

    def act(name: str, settings: Settings) -> Result:
        model = presets.load(backbone or settings.backbone, dtype)
        decoder = build(method, dict(LOOKUP) if method == "prompt_lookup" else {})
        count = settings.pairs
        prompts = [[7, 8, 9, i % 500 + 10] for i in range(count)] if backbone else prompt_ids(model, count)
        rows = []
        for index, ids in enumerate([prompts[0], *prompts]):
            draws = SeededDraws(0, "bench", str(index), 0)
            run = open_run(model, lambda name: model, ids, sampling, settings.tokens, draws)
            steps = decode(decoder, run).steps
            wall = sum(step.wall_ns for step in steps) / 1e6
            passes = sum(step.target_ns + step.draft_ns for step in steps) / 1e6
            rows.append({"outside": wall - passes, "wall": wall, "passes": passes, "steps": len(steps)})
        frame = pd.DataFrame(rows[1:])
        frame.index = pd.MultiIndex.from_product([range(len(frame)), [0]], names=["prompt", "repetition"])
        interval = stats.ratio(frame, "outside", "wall" if unit == "share" else "steps")
        assert interval is not None
        outside, inside = (frame[key].sum() / frame["steps"].sum() for key in ("outside", "passes"))
        verdict = at_most(interval.low, interval.high, goal, len(frame))
        note = "ours: ms a step outside passes; peer: ms a step inside them"
        ratio = interval.estimate, interval.low, interval.high
        return Result(name, outside, inside, *ratio, unit, f"<= {goal:g}", verdict, len(frame), note)

    return act


GREEDY, NUCLEUS = Sampling(0.0), Sampling(1.0, top_p=0.95)
BENCHMARKS: dict[str, Callable[[str, Settings], Result]] = {
    "autoregressive bf16": rates("autoregressive", "bf16", 0.97),
    "autoregressive fp32": rates("autoregressive", "fp32", 0.97),
    "prompt_lookup bf16": rates("prompt_lookup", "bf16", 1.1),
    "prompt_lookup fp32": rates("prompt_lookup", "fp32", 1.1),
    "prompt_lookup bf16, forced length": rates("prompt_lookup", "bf16", None, forced=True),
    "overhead autoregressive T=0 bf16": overhead("autoregressive", "", "bf16", GREEDY, 0.02, "share"),
    "overhead prompt_lookup T=0 bf16": overhead("prompt_lookup", "", "bf16", GREEDY, 0.02, "share"),
    "overhead autoregressive T=1 top_p bf16": overhead("autoregressive", "", "bf16", NUCLEUS, 0.04, "share"),
    "overhead prompt_lookup T=1 top_p bf16": overhead("prompt_lookup", "", "bf16", NUCLEUS, 0.04, "share"),
    "overhead autoregressive random-llama-5m": overhead(
        "autoregressive", "random-llama-5m", "fp32", GREEDY, 0.25, "ms"
    ),
    "trees, best drafter bf16": fastest("bf16", 1.3),
    "trees, 60 nodes bf16": large("bf16"),
    "overhead sjd random-llama-5m": overhead("sjd", "random-llama-5m", "fp32", NUCLEUS, 0.5, "ms"),
}
NAMED = {
    "windows bf16": windows("bf16"),
    "quantized int8": quantized("int8"),
    "quantized int4": quantized("int4"),
    "llama-bench int4 autoregressive": llama.beside("autoregressive"),
    "llama-bench int4 window of 8": llama.beside("window"),
    **scale.BENCHMARKS,
    "startup list": startup(("list",), 1.0),
    "startup dry run": startup(("run", "quick", "--dry-run"), 1.5),
    "startup first token": first_token(4.0),
    "startup peak memory": peak_memory,
}
"""Benchmarks that run only when they are named: windows stores what it measures, quantized loads a model twice,
llama-bench is another project's program, the others time no decoding."""
