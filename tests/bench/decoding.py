"""Decoding: beside transformers, llama.cpp and our own baseline; a step outside its passes; passes by their rows."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
import torch

from stridebench.harness.backbones.base import TYPES
from stridebench.harness.backbones.checkpoints import sources, transformers_models
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.clock import clock_for
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.discover import plain
from stridebench.harness.errors import UsageError
from stridebench.harness.machine.surroundings import quiet
from stridebench.harness.plan import presets
from stridebench.harness.record import stats
from stridebench.harness.run.passes import Threads, measure, timed_pass
from tests.bench.timing import (
    GREEDY,
    LOOKUP,
    NUCLEUS,
    Bench,
    Decoder,
    Row,
    Settings,
    build,
    compare,
    decoded,
    in_turn,
    load,
    paired_index,
    prompt_ids,
    rates_in_turn,
    verdict_of,
)


def decoder(method: str, params: Mapping[str, Any], backbone: Backbone, settings: Settings, forced: bool) -> Decoder:
    """Return a decoder of ours at T = 0."""
    made = build(method, params)
    return lambda ids: decoded(made, backbone, ids, settings.tokens, forced=forced).tokens


def generate(dtype: str, settings: Settings, forced: bool, **more: Any) -> Decoder:
    """Return transformers' `generate` at T = 0 on the same weights; those of a random model are random there too."""
    from transformers import AutoModelForCausalLM

    name = settings.backbone
    source = sources.parse(name, presets.resolve(name).params["source"])
    if source.kind == "random":
        model = transformers_models.make_random(name, source.fields, "sdpa")
    else:
        with quiet():
            model = AutoModelForCausalLM.from_pretrained(
                presets.fetch(name), local_files_only=True, trust_remote_code=False
            )
    model = model.to(device=settings.device, dtype=TYPES[dtype]).eval()
    limits = {"max_new_tokens": settings.tokens, "do_sample": False, "pad_token_id": 0, **more}
    limits |= {"min_new_tokens": settings.tokens} if forced else {}

    def act(ids: list[int]) -> Sequence[int]:
        out: list[int] = model.generate(torch.tensor([ids], device=settings.device), **limits)[0, len(ids) :].tolist()
        return out

    return act


def beside_generate(method: str, dtype: str, goal: float | None, forced: bool = False, **more: Any) -> Bench:
    """Time tokens a second against transformers' `generate` with the same method.

    Args:
        more: options of `generate`.
    """
    lookup = method == "prompt_lookup"
    more |= {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 2} if lookup else {}

    def act(name: str, settings: Settings) -> Iterator[Row]:
        backbone = load(settings.backbone, dtype, settings)
        ours = decoder(method, LOOKUP if lookup else {}, backbone, settings, forced)
        sides = ours, generate(dtype, settings, forced, **more)
        pairs, note = rates_in_turn(sides, prompt_ids(backbone, settings.pairs), settings)
        yield compare(name, pairs, "tokens/s", goal, f"{backbone.name}; {note}")

    return act


def beside_baseline(method: str, params: Mapping[str, Any], goal: float | None) -> Bench:
    """Time a method in bf16 against our autoregressive decoding."""

    def act(name: str, settings: Settings) -> Iterator[Row]:
        backbone = load(settings.backbone, "bf16", settings)
        sides = [decoder(*each, backbone, settings, False) for each in ((method, params), ("autoregressive", {}))]
        pairs, note = rates_in_turn(sides, prompt_ids(backbone, settings.pairs), settings)
        yield compare(name, pairs, "tokens/s", goal, note)

    return act


def quantized(weights: str) -> Bench:
    """Time a format of the weights against bf16 at a forced length (`stride run quantized` has the distributions)."""

    def act(name: str, settings: Settings) -> Iterator[Row]:
        base = plain(settings.backbone)
        backbones = [load(which, "bf16", settings) for which in (f"{base}:weights={weights}", base)]
        sides = [decoder("autoregressive", {}, backbone, settings, True) for backbone in backbones]
        pairs, note = rates_in_turn(sides, prompt_ids(backbones[1], settings.pairs), settings)
        yield compare(name, pairs, "tokens/s", None, note)

    return act


def overhead(method: str, dtype: str, sampling: Sampling, goal: float, unit: str, backbone: str = "") -> Bench:
    """Time a step outside target and drafter passes: its share of the step, or its milliseconds."""

    def act(name: str, settings: Settings) -> Iterator[Row]:
        made = build(method, LOOKUP if method == "prompt_lookup" else {})
        model = load(backbone or settings.backbone, dtype, settings)
        prompts = prompt_ids(model, settings.pairs)
        rows: list[dict[str, float]] = []
        for ids in [prompts[0], *prompts]:
            if len(rows) > 1 and settings.over:
                break
            steps = decoded(made, model, ids, settings.tokens, sampling).steps
            wall = sum(step.wall_ns for step in steps) / 1e6
            passes = sum(step.target_ns + step.draft_ns for step in steps) / 1e6
            rows.append({"outside": wall - passes, "wall": wall, "passes": passes, "steps": len(steps)})
        frame = pd.DataFrame(rows[1:], paired_index(len(rows) - 1))
        interval = stats.ratio(frame, "outside", "wall" if unit == "share" else "steps")
        assert interval is not None
        outside, inside = (float(frame[key].sum() / frame["steps"].sum()) for key in ("outside", "passes"))
        verdict = verdict_of(interval.low, interval.high, goal, len(frame), most=True)
        note = "ours: ms a step outside passes; peer: ms a step inside them"
        figures = outside, inside, interval.estimate, interval.low, interval.high
        yield Row(name, *figures, unit, f"<= {goal:g}", verdict, len(frame), note)

    return act


def windows(dtype: str) -> Bench:
    """Time passes by their rows."""

    def act(name: str, settings: Settings) -> Iterator[Row]:
        backbone = load(settings.backbone, dtype, settings)
        prompt = Prompt("windows", tokens=tuple(prompt_ids(backbone, 1)[0]))
        passes = measure(backbone, prompt, Threads(torch.get_num_threads(), choose=False), busy=False)
        first = passes.rows[0][1]
        for rows, ms in passes.rows:
            yield Row(f"{name}: {rows} rows", ms, first, ms / first, unit="ms", note="peer: one row")

    return act


VARIABLE = "STRIDE_LLAMA_BENCH"
"""Names llama.cpp's program if it is not on the path."""
WINDOW, DEPTH = 8, 64
"""Rows of a window, and the tokens before what is timed on both sides."""


def beside_llama(what: str, goal: float) -> Bench:
    """Time int4 beside `llama-bench` on a 4-bit file of the same model.

    The rate of one row is that of whole steps, host included; the rate of a window is its rows over a pass's time.
    """
    stepwise = what == "autoregressive"

    def act(name: str, settings: Settings) -> Iterator[Row]:
        base = plain(settings.backbone)
        program, source = llama_bench(), presets.resolve(base).params.get("source")
        file = sources.gguf(base, sources.parse(base, source))
        if file is None:
            raise UsageError(f"{base} comes from no GGUF file, which llama-bench reads; take smollm2-135m")
        command = [program, "-m", str(file), "-t", str(settings.threads), "-d", str(DEPTH), "-r", "1", "-o", "json"]
        command += ["-p", "0", "-n", str(settings.tokens)] if stepwise else ["-p", str(WINDOW), "-n", "0"]
        command += without_amx(command)
        backbone = load(f"{base}:weights=int4", "bf16", settings)
        ids = (prompt_ids(backbone, 1)[0] * DEPTH)[:DEPTH]
        ours = partial(steps_a_second, backbone, ids, settings) if stepwise else rows_a_second(backbone, ids)
        pairs = in_turn((lambda _: ours(), lambda _: rate_of(command)), range(settings.pairs + 1), settings)
        note = "; its AMX kernels crash here" if "--repack" in command else ""
        yield compare(name, pairs, "tokens/s", goal, f"llama-bench {' '.join(command[3:])} of {file.name}{note}")

    return act


def steps_a_second(backbone: Backbone, ids: list[int], settings: Settings) -> float:
    """Return the rate of whole steps."""
    steps = decoded(build("autoregressive"), backbone, ids, settings.tokens, forced=True).steps
    return 1e9 * len(steps) / sum(step.wall_ns for step in steps)


def rows_a_second(backbone: Backbone, ids: list[int]) -> Callable[[], float]:
    """Return a function that returns the rows of a window over the time of its pass."""
    one = timed_pass(backbone, Prompt("llama-bench", tokens=(*ids, ids[0])), clock_for(backbone.device))
    return lambda: 1e3 * WINDOW / min(one(WINDOW) for _ in range(3))


def llama_bench() -> str:
    """Return the path of llama-bench.

    Raises:
        UsageError: it is not there.
    """
    program = shutil.which(os.environ.get(VARIABLE) or "llama-bench")
    if program is None:
        raise UsageError(f"llama-bench is not there: build llama.cpp, and name the program in {VARIABLE}")
    return program


def without_amx(command: list[str]) -> list[str]:
    """Return options with which llama-bench lives here: some builds have AMX kernels that some processors refuse."""
    tried = subprocess.run(command, capture_output=True, check=False).returncode
    return ["--repack", "0"] if tried in (-signal.SIGILL, -signal.SIGSEGV) else []


def rate_of(command: list[str]) -> float:
    """Return the tokens a second of one run of llama-bench.

    Raises:
        UsageError: it failed.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return float(json.loads(done.stdout)[0]["avg_ts"])
    except (ValueError, LookupError, TypeError) as error:
        last = done.stderr.strip()[-200:]
        raise UsageError(f"{' '.join(command)} ended with {done.returncode} and no rate: {last}") from error


SMALL = "random-llama-5m"
BENCHMARKS: dict[str, Bench] = {
    "autoregressive bf16": beside_generate("autoregressive", "bf16", 0.97),
    "autoregressive fp32": beside_generate("autoregressive", "fp32", 0.97),
    "prompt_lookup bf16": beside_generate("prompt_lookup", "bf16", 1.1),
    "prompt_lookup fp32": beside_generate("prompt_lookup", "fp32", 1.1),
    "prompt_lookup bf16, forced length": beside_generate("prompt_lookup", "bf16", None, forced=True),
    "overhead autoregressive T=0 bf16": overhead("autoregressive", "bf16", GREEDY, 0.02, "share"),
    "overhead prompt_lookup T=0 bf16": overhead("prompt_lookup", "bf16", GREEDY, 0.02, "share"),
    "overhead autoregressive T=1 top_p bf16": overhead("autoregressive", "bf16", NUCLEUS, 0.04, "share"),
    "overhead prompt_lookup T=1 top_p bf16": overhead("prompt_lookup", "bf16", NUCLEUS, 0.04, "share"),
    "overhead autoregressive random-llama-5m": overhead(
        "autoregressive", "fp32", GREEDY, 0.25, "ms", "random-llama-5m"
    ),
    "overhead sjd random-llama-5m": overhead("sjd", "fp32", NUCLEUS, 0.5, "ms", "random-llama-5m"),
}
TREE_60 = {"depth": 5, "width": 10, "nodes": 60}
NAMED: dict[str, Bench] = {
    "trees eagle2, 4 nodes": beside_baseline("eagle2", {"depth": 2, "width": 2, "nodes": 4}, 1.3),
    "trees eagle3, 6 nodes": beside_baseline("eagle3", {"depth": 2, "width": 3, "nodes": 6}, None),
    "trees medusa, 8 nodes": beside_baseline("medusa", {"nodes": 8}, None),
    "trees prompt_lookup": beside_baseline("prompt_lookup", LOOKUP, None),
    "trees eagle2, 60 nodes": beside_baseline("eagle2", TREE_60, None),
    "trees eagle3, 60 nodes": beside_baseline("eagle3", TREE_60, None),
    "windows bf16": windows("bf16"),
    "quantized int8": quantized("int8"),
    "quantized int4": quantized("int4"),
    "llama-bench int4 autoregressive": beside_llama("autoregressive", 0.9),
    "llama-bench int4 window of 8": beside_llama("window", 1.3),
}
