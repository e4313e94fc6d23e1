"""Known flaws of other tools' results, each looked for in the figures themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from stridebench.harness.record.requests import identities
from stridebench.reports.interchange.acceptance import Result

SLOW_START = 3.0
"""A first request this many times as slow a token as the median was not warmed up."""
ROUNDING = 0.006
"""By how much printed means may differ from their counts."""
DEAD = 1.01


def checked(result: Result) -> Result:
    """The result with its flaws."""
    checks = {
        "Spec-Bench": _spec_bench,
        "specdec_bench": _specdec_bench,
        "vLLM bench": _vllm_bench,
        "InferenceX": _golden,
        "AIPerf": _records,
    }
    return replace(result, flaws=tuple(dict.fromkeys([*checks[result.tool](result), *_any(result)])))


def _any(result: Result) -> Iterator[str]:
    length, told = result.length, result.total.get("told_length")
    if result.rate is not None and not 0 <= result.rate <= 1:
        yield f"it accepted {result.rate:.2f} of its drafts, which is no share"
    if length is not None and length < DEAD:
        yield f"a mean length of {length:.2f}: nothing was drafted, or the drafter is dead; no acceptance was measured"
    if told is not None and length is not None and abs(told - length) > ROUNDING:
        yield f"it says a mean length of {told:.3f}, and its counts give {length:.3f}, as a mean of means may differ"


def _records(result: Result) -> Iterator[str]:
    for row in result.requests:
        yield from (f"request {row.prompt}: {line}" for line in identities(row))


def _golden(result: Result) -> Iterator[str]:
    yield "one figure each with two decimals and no interval: a gate against it knows nothing of its noise"
    for (mode, k), length in result.golden.items():
        if not 1 <= length <= k + 1:
            yield f"{mode}, {k} drafts: a length of {length:g} lies outside of 1 to {k + 1}"
    for mode in dict.fromkeys(mode for mode, _ in result.golden):
        curve = sorted((k, length) for (name, k), length in result.golden.items() if name == mode)
        falls = [f"{k}" for (_, before), (k, after) in pairwise(curve) if after < before]
        if falls:
            yield f"{mode}: longer drafts have a shorter length at {', '.join(falls)}, which is noise of that size"


def _vllm_bench(result: Result) -> Iterator[str]:
    total = result.total
    if total["failed"]:
        yield f"{total['failed']:.0f} requests failed and are in no figure, beside {total['completed']:.0f} that are"
    if "accepted" not in total:
        yield "it tells no acceptance: the server did not speculate, or its counters were off"
        return
    places = [total[f"place_{place}"] for place in range(len(total)) if f"place_{place}" in total]
    if any(after > before + ROUNDING for before, after in pairwise(places)):
        yield "its rates by position rise; each must be at most the one before"
    if places and result.length is not None and abs(sum(places) - (result.length - 1)) > ROUNDING:
        yield f"its rates by position add up to {sum(places):.3f}, and its length less 1 is {result.length - 1:.3f}"
    if result.rate is not None and abs(total.get("told_rate", result.rate) - result.rate) > ROUNDING:
        yield f"it says an acceptance of {total['told_rate']:.3f}, and its counts give {result.rate:.3f}"


def _specdec_bench(result: Result) -> Iterator[str]:
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


def _spec_bench(result: Result) -> Iterator[str]:
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
