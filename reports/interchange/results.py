"""Acceptance in other tools' results: counts of requests or of a run, with known flaws; and ours in their layouts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import yaml

from stridebench.harness.errors import UsageError
from stridebench.harness.record.cell_files import SealedCell
from stridebench.harness.record.requests import Request, acceptance, counted, identities
from stridebench.harness.record.store import Store

LENGTH = "a length here is 1 + accepted / passes with a draft, pooled over requests"
RATE = "a rate here is accepted / drafted"


@dataclass(frozen=True)
class ToolResult:
    """A file or folder of another tool.

    Args:
        label: model, method or engine, as the tool says.
        requests: those that it tells, with fields null if it does not. ``status`` is "failed" if a request failed or
            was cancelled; such requests and warm-ups are in no figure.
        total: the whole run's numbers, if the tool tells them: draft_steps, drafted, accepted, output_tokens,
            seconds, told_length, told_rate, and the numbers that show its flaws.
        golden: reference lengths by (mode, draft length), of a golden-acceptance file.
        flaws: doubts about the numbers, one line each.
    """

    tool: str
    source: str
    label: str = ""
    requests: tuple[Request, ...] = ()
    total: Mapping[str, float] = field(default_factory=dict)
    golden: Mapping[tuple[str, int], float] = field(default_factory=dict)
    flaws: tuple[str, ...] = ()

    @property
    def counted(self) -> list[Request]:
        """The requests that figures are of."""
        return [row for row in self.requests if row.status == "ok" and not row.warmup]

    def sum(self, name: str) -> float | None:
        """Return a total of the tool, else of the requests that tell it, or None if there is none."""
        if name in self.total:
            return self.total[name]
        told = [value for row in self.counted if (value := getattr(row, name, None)) is not None]
        return float(sum(told)) if told else None

    @property
    def length(self) -> float | None:
        """1 + accepted / passes with a draft, pooled."""
        accepted, steps = self.sum("accepted"), self.sum("draft_steps")
        return 1 + accepted / steps if accepted is not None and steps else None

    @property
    def length_of_means(self) -> float | None:
        """Return the mean of the requests' lengths."""
        lengths = [
            1 + row.accepted / row.draft_steps for row in self.counted if row.draft_steps and row.accepted is not None
        ]
        return sum(lengths) / len(lengths) if lengths else None

    @property
    def told_length(self) -> float | None:
        """Return the tool's length, else the mean of its lengths of requests that lack their passes."""
        told = [row.told_length for row in self.counted if row.told_length is not None and row.draft_steps is None]
        return self.total.get("told_length", sum(told) / len(told) if told else None)

    @property
    def rate(self) -> float | None:
        """Accepted / drafted."""
        accepted, drafted = self.sum("accepted"), self.sum("drafted")
        return accepted / drafted if accepted is not None and drafted else None


SLOW_START = 3.0
"""A first request this many times as slow a token as the median was not warmed up."""
ROUNDING = 0.006
"""By how much printed means may differ from their counts."""
DEAD = 1.01


def checked(result: ToolResult) -> ToolResult:
    """The result with its flaws."""
    checks = {
        "Spec-Bench": _spec_bench_lint,
        "specdec_bench": _specdec_bench,
        "vLLM bench": _vllm_bench_lint,
        "InferenceX": _golden_lint,
        "AIPerf": _records,
        "EAGLE": _spec_bench_lint,
        "SGLang bench": _sglang_bench_lint,
        "SGLang": _records,
        "llama.cpp": _llama_cpp_lint,
        "TensorRT-LLM": _tensorrt_llm_lint,
        "GuideLLM": _guidellm_lint,
    }
    return replace(result, flaws=tuple(dict.fromkeys([*checks[result.tool](result), *_any(result)])))


def _any(result: ToolResult) -> Iterator[str]:
    length, told = result.length, result.total.get("told_length")
    if result.rate is not None and not 0 <= result.rate <= 1:
        yield f"it accepted {result.rate:.2f} of its drafts, which is not a share"
    if length is not None and length < DEAD:
        yield f"a mean length of {length:.2f}: nothing was drafted, or the drafter is dead; no acceptance was measured"
    if told is not None and length is not None and abs(told - length) > ROUNDING:
        if abs(told - (length - 1)) <= ROUNDING:
            yield f"its length, {told:.3f}, leaves out the target's token of each pass; {LENGTH}: {length:.3f}"
        elif abs(told - (result.length_of_means or length)) <= ROUNDING:
            yield f"its length, {told:.3f}, is a mean over requests; {LENGTH}: {length:.3f}"
        else:
            yield f"it says a mean length of {told:.3f}, and its counts give {length:.3f}; {LENGTH}"
    steps, accepted, tokens = (result.sum(name) for name in ("draft_steps", "accepted", "output_tokens"))
    if tokens and max(steps or 0, accepted or 0) > tokens:
        yield (
            f"{steps or 0:,.0f} passes and {accepted or 0:,.0f} accepted drafts for {tokens:,.0f} tokens: its counters "
            f"run since the server's start, and none of its acceptance is of this run alone"
        )
    told_rate, rate = result.total.get("told_rate"), result.rate
    if told_rate and rate and steps and accepted and abs(told_rate - rate) > ROUNDING:
        budget = accepted / (told_rate * steps)
        if told_rate < rate and abs(budget - round(budget)) < ROUNDING * budget:
            yield (
                f"its rate, {told_rate:.3f}, divides by the draft budget of {budget:.0f}, so it falls if the budget "
                f"grows; {RATE}: {rate:.3f}"
            )
        else:
            yield f"it says an acceptance of {told_rate:.3f}, and its counts give {rate:.3f}; {RATE}"


def _records(result: ToolResult) -> Iterator[str]:
    yield from _left_out(result)
    for row in result.requests:
        yield from (f"request {row.prompt}: {line}" for line in identities(row))


def _left_out(result: ToolResult) -> Iterator[str]:
    """Say which requests are in no figure, or in some only."""
    failed = [row for row in result.requests if row.status != "ok"]
    if failed:
        yield f"{_requests(failed)} failed or cancelled, in no figure"
    if warmups := [row for row in result.requests if row.warmup and row.status == "ok"]:
        yield f"{_requests(warmups)} of the warm-up, in no figure"
    if untold := [row for row in result.counted if row.accepted is None]:
        yield f"{_requests(untold)} without acceptance, in none of its figures"
    elif bare := [row for row in result.counted if row.draft_steps is not None and row.histogram is None]:
        yield f"{_requests(bare)} without a histogram, which nothing can be checked against"
    if result.total.get("twice"):
        yield f"{result.total['twice']:.0f} records repeat a request that stands there already, and are in no figure"


def _requests(rows: list[Request]) -> str:
    return f"{len(rows)} request{'' if len(rows) == 1 else 's'} (such as {rows[0].prompt})"


def _sglang_bench_lint(result: ToolResult) -> Iterator[str]:
    total = result.total
    if total["runs"] > 1:
        yield f"{total['runs']:.0f} runs wrote into this file; the last one is read"
    if total["failed"]:
        yield f"{total['failed']:.0f} requests failed and are in no figure; {total['completed']:.0f} are"
    if "told_length" not in total:
        yield "it tells no length: the server did not speculate, or was asked through another backend than sglang's"
    else:
        yield (
            "its length is the server's mean since its start, over all requests and not of this run alone; it counts "
            "the target's token of each pass, and the tool tells neither passes nor drafted tokens"
        )


def _llama_cpp_lint(result: ToolResult) -> Iterator[str]:
    yield from _left_out(result)
    accepted, tokens = result.sum("accepted"), result.sum("output_tokens")
    if result.sum("draft_steps") is None and accepted is not None:
        passes = f"; per pass of the target it is {tokens / (tokens - accepted):.3f}" if tokens else ""
        mean = "" if result.told_length is None else " Its length is a mean over requests;"
        yield f"it does not tell the passes with a draft, so no length can be pooled{passes}.{mean} {LENGTH}"


def _tensorrt_llm_lint(result: ToolResult) -> Iterator[str]:
    if "accepted" not in result.total:
        yield "it tells no acceptance: the run did not speculate"
        return
    yield f"its drafted tokens are the draft budget of every pass, so its rate falls if the budget grows; {RATE}"
    yield f"its length is a mean over requests, and counts passes without a draft; {LENGTH}"


def _guidellm_lint(result: ToolResult) -> Iterator[str]:
    yield from _left_out(replace(result, requests=tuple(row for row in result.requests if row.status != "ok")))
    if result.total["runs"] > 1:
        yield f"it holds {result.total['runs']:.0f} benchmarks of different loads, read together"
    yield "it measures no acceptance: `stride engine watch URL` reads it from the server's counters while GuideLLM runs"


def _golden_lint(result: ToolResult) -> Iterator[str]:
    yield "one figure each with two decimals and no interval: a gate against it knows nothing of its noise"
    for (mode, k), length in result.golden.items():
        if not 1 <= length <= k + 1:
            yield f"{mode}, {k} drafts: a length of {length:g} lies outside of 1 to {k + 1}"
    for mode in dict.fromkeys(mode for mode, _ in result.golden):
        curve = sorted((k, length) for (name, k), length in result.golden.items() if name == mode)
        falls = [f"{k}" for (_, before), (k, after) in pairwise(curve) if after < before]
        if falls:
            yield f"{mode}: longer drafts have a shorter length at {', '.join(falls)}, which is noise of that size"


def _vllm_bench_lint(result: ToolResult) -> Iterator[str]:
    total = result.total
    if total["failed"]:
        yield f"{total['failed']:.0f} requests failed and are in no figure; {total['completed']:.0f} are"
    if total["completed"] + total["failed"] < total["num_prompts"]:
        yield f"{total['completed']:.0f} of {total['num_prompts']:.0f} prompts were completed, and the rest is nowhere"
    if "accepted" not in total:
        yield "it tells no acceptance: the server did not speculate, or its counters were off"
        return
    places = [total[f"place_{place}"] for place in range(len(total)) if f"place_{place}" in total]
    if any(after > before + ROUNDING for before, after in pairwise(places)):
        yield "its rates by position rise; each must be at most the one before"
    if places and result.length is not None and abs(sum(places) - (result.length - 1)) > ROUNDING:
        yield f"its rates by position add up to {sum(places):.3f}, and its length less 1 is {result.length - 1:.3f}"


def _specdec_bench(result: ToolResult) -> Iterator[str]:
    total = result.total
    if total["runs"] > 1:
        yield f"{total['runs']:.0f} runs wrote into this folder; the last one is read"
    requests = total["requests"]
    if requests and total["single"] >= requests and total["longest"] > 1:
        steps, accepted = total["draft_steps"] - requests, total["accepted"]
        corrected = f"{1 + accepted / steps:.3f}" if steps > 0 else "nothing"
        yield (
            f"{total['single']:.0f} chunks of 1 token in {requests:.0f} turns: older versions count the chunk of the "
            f"prefill as a step; without one a turn the length is {corrected}"
        )
    if total.get("step_times"):
        yield "its step times hold the time to the first token of every request"
    yield "it makes no warm-up requests"


def _spec_bench_lint(result: ToolResult) -> Iterator[str]:
    keys = Counter((row.prompt, row.repetition) for row in result.requests)
    twice = [prompt for (prompt, _), count in keys.items() if count > 1]
    if twice:
        yield f"{len(twice)} questions stand there twice, such as {twice[0]}: a second run was appended to the file"
    failed = [row.prompt for row in result.requests if row.status != "ok"]
    if failed:
        yield f"{len(failed)} turns are ERROR and hold the figures of the turn before, such as question {failed[0]}"
    rows = [row for row in result.requests if row.status == "ok" and row.output_tokens]
    emitted = {row: row.draft_steps + row.accepted for row in rows if row.draft_steps and row.accepted is not None}
    over = [(row, count) for row, count in emitted.items() if row.output_tokens != count]
    if over:
        row, count = over[0]
        yield (
            f"{len(over)} outputs have another number of tokens than their steps emitted, such as question "
            f"{row.prompt}: {row.output_tokens}, and {count}"
        )
    speeds = [row.ended_ns / row.output_tokens for row in rows if row.output_tokens]
    if len(speeds) > 2 and speeds[0] > SLOW_START * float(np.median(speeds)):
        yield "its first question is three times as slow a token as the median: nothing was warmed up"
    if rows and all(row.draft_steps and not row.accepted for row in rows):
        yield (
            "it is a baseline: the tool counts its tokens from the text, less 1, and a method's by new_tokens; compare "
            "new_tokens of both"
        )


def table(results: list[ToolResult]) -> list[Mapping[str, Any]]:
    """One row a result, as JSON values."""
    return [
        {
            "tool": result.tool,
            "source": result.source,
            "label": result.label,
            "requests": len(result.counted) or result.total.get("completed") or result.total.get("requests"),
            "length_per_draft_pooled": result.length,
            "length_per_draft_mean": result.length_of_means,
            "told_length": result.told_length,
            "acceptance": result.rate,
            "golden": {f"{mode}, {k}": value for (mode, k), value in result.golden.items()} or None,
            "flaws": list(result.flaws),
        }
        for result in results
    ]


def aiperf(store: Store) -> str:
    """Return AIPerf's record of each request that tells its steps as JSON lines, with the cell and the prompt."""
    lines = [json.dumps(line, allow_nan=False) for cell in _cells(store) for line in _aiperf_records(cell)]
    if not lines:
        raise UsageError(f"no request of {store.path} tells steps with a draft and a histogram; see docs/engines.md")
    return "\n".join(lines) + "\n"


def _aiperf_records(cell: SealedCell) -> Iterator[dict[str, object]]:
    for row in counted(cell.requests).to_dict("records"):
        if row["histogram"] is None or pd.isna(row["draft_steps"]) or not row["drafted"]:
            continue
        steps, drafted, accepted = (int(row[name]) for name in ("draft_steps", "drafted", "accepted"))
        yield {
            "cell": cell.name,
            "request": f"{row['prompt']}#{row['repetition']}",
            "engine": cell.meta.engine,
            "mean_acceptance_length": 1 + accepted / steps,
            "draft_acceptance_rate": accepted / drafted,
            "acceptance_histogram": {str(kept): int(count) for kept, count in enumerate(row["histogram"]) if count},
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": drafted,
            "num_spec_steps": steps,
            "num_spec_tokens": None,
            "completion_tokens": None if pd.isna(row["output_tokens"]) else int(row["output_tokens"]),
        }


def golden(store: Store, drafts: int) -> str:
    """InferenceX' YAML: the mean length a draft step of each speculative entry, at one draft length.

    Args:
        drafts: the draft length that the servers were started with, which no engine tells.
    """
    curves: dict[str, dict[str, Any]] = {}
    for cell in _cells(store):
        growth = cell.meta.growth
        length = acceptance(counted(cell.requests), growth)["length_per_draft_pooled"]
        if length is not None:
            mode = f"{cell.meta.label}, T = {cell.meta.sampling.temperature:g}, {cell.meta.load}"
            curves.setdefault(cell.meta.backbone, {})[mode] = {drafts: round(length, 2)}
    if not curves:
        raise UsageError(f"no engine of {store.path} tells its steps with a draft; see docs/engines.md")
    head = "# Mean acceptance lengths: 1 + accepted / passes with a draft. key = num_speculative_tokens\n"
    return head + yaml.safe_dump(curves, sort_keys=False)


def _cells(store: Store) -> Iterator[SealedCell]:
    for name in store.engine_cells():
        cell = store.cell(name)
        if cell.meta.role == "speculative":
            yield cell


def lengths(store: Store) -> dict[str, pd.DataFrame]:
    """Accepted drafts and steps with a draft of each request, by the label of its cell, if it tells them."""
    out = {}
    for cell in _cells(store):
        rows = counted(cell.requests).set_index(["prompt", "repetition"])
        told = rows[["accepted", "draft_steps"]].dropna().astype(float)
        if len(told) and told["draft_steps"].sum():
            out[f"{cell.meta.label}, T = {cell.meta.sampling.temperature:g}, {cell.meta.load}"] = told
    return out
