"""Readers of other tools' results; which one a file is for shows in its content.

Layouts: AIPerf 0.13's `SpecDecodeAcceptanceRecord` as JSON lines; InferenceX' `golden_al_distribution/*.yaml`; `vllm
bench serve --save-result`; folders of specdec_bench, also of its SPEED-Bench runs; Spec-Bench's answer files.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from stridebench.harness.errors import UsageError, printable_line
from stridebench.harness.plan.yaml_lines import load as load_yaml
from stridebench.harness.record.requests import Request, identities

# What results of every tool are read into: acceptance of requests, or of a whole run where a tool tells no more.


@dataclass(frozen=True)
class ToolResult:
    """A file or folder of another tool.

    Args:
        tool: whose layout it is.
        source: its path.
        label: model, method or engine, as the tool says.
        requests: those that it tells, with fields null if it does not; ``status`` is "failed" if it failed.
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

    def sum(self, name: str) -> float | None:
        """Return a total of the tool, else of the requests, or None if one of them does not tell it."""
        if name in self.total:
            return self.total[name]
        values = [getattr(row, name, None) for row in self.requests if row.status == "ok"]
        told = [value for value in values if value is not None]
        return float(sum(told)) if told and len(told) == len(values) else None

    @property
    def length(self) -> float | None:
        """1 + accepted / passes with a draft, pooled."""
        accepted, steps = self.sum("accepted"), self.sum("draft_steps")
        return 1 + accepted / steps if accepted is not None and steps else None

    @property
    def length_of_means(self) -> float | None:
        """Return the mean of the requests' lengths."""
        own = [
            1 + row.accepted / row.draft_steps
            for row in self.requests
            if row.status == "ok" and row.draft_steps and row.accepted is not None
        ]
        return sum(own) / len(own) if own else None

    @property
    def rate(self) -> float | None:
        """Accepted / drafted."""
        accepted, drafted = self.sum("accepted"), self.sum("drafted")
        return accepted / drafted if accepted is not None and drafted else None


# Known flaws of other tools' results, each looked for in the figures themselves.


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
    }
    return replace(result, flaws=tuple(dict.fromkeys([*checks[result.tool](result), *_any(result)])))


def _any(result: ToolResult) -> Iterator[str]:
    length, told = result.length, result.total.get("told_length")
    if result.rate is not None and not 0 <= result.rate <= 1:
        yield f"it accepted {result.rate:.2f} of its drafts, which is not a share"
    if length is not None and length < DEAD:
        yield f"a mean length of {length:.2f}: nothing was drafted, or the drafter is dead; no acceptance was measured"
    if told is not None and length is not None and abs(told - length) > ROUNDING:
        yield f"it says a mean length of {told:.3f}, and its counts give {length:.3f}, as a mean of means may differ"


def _records(result: ToolResult) -> Iterator[str]:
    for row in result.requests:
        yield from (f"request {row.prompt}: {line}" for line in identities(row))


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


NOT_OF_IT = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What reading a file as another layout raises."""
LONGEST_STEP = 100_000
"""Tokens of one step above which a figure is not a length; a histogram holds an entry for each number below."""
TOOLS = "AIPerf acceptance records, InferenceX golden YAML, vLLM bench JSON, specdec_bench folders, Spec-Bench JSONL"


def read(path: Path) -> ToolResult:
    """Read a file or folder of another tool, with its flaws.

    Raises:
        UsageError: its layout is not known, or a value does not fit the layout.
    """
    try:
        result = _folder(path) if path.is_dir() else _file(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    except (*NOT_OF_IT, yaml.YAMLError) as error:
        detail = printable_line(_what(error))[:200]
        raise UsageError(f"{path} is of no layout that can be read ({detail}). Known: {TOOLS}") from error
    return checked(result)


def _what(error: Exception) -> str:
    """Return the problem of a file, in words."""
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    if isinstance(error, TypeError | AttributeError):
        return f"a value is of another type: {error}"
    return str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"


def _file(path: Path) -> ToolResult:
    text = path.read_text(encoding="utf-8-sig")  # Windows' programs write a byte order mark
    if not text.strip():
        raise ValueError("it is empty")
    if path.suffix in (".yaml", ".yml"):
        return _golden(path, _object(load_yaml(text)))
    if path.suffix == ".jsonl":
        rows = [_object(json.loads(line), f"line {number}") for number, line in _lines(text)]
        return _spec_bench(path, rows) if "choices" in rows[0] else _aiperf(path, rows)
    return _vllm_bench(path, _object(json.loads(text)))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that hold something, with their numbers from 1."""
    return ((number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip())


def _object(value: Any, place: str = "it") -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{place} holds {value!r:.60} instead of an object")
    return value


def _aiperf(path: Path, rows: list[Any]) -> ToolResult:
    """Records as they are, or each under ``spec_decode_acceptance`` of a request's line."""
    requests, engines = [], set()
    for number, row in enumerate(rows):
        record = row.get("spec_decode_acceptance", row)
        histogram = _histogram(record["acceptance_histogram"], 0)
        engines.add(str(record["engine"]))
        requests.append(
            Request(
                str(row.get("request", number)),
                0,
                False,
                "ok",
                draft_steps=_whole(record["num_spec_steps"]),
                drafted=_whole(record["num_draft_tokens"]),
                accepted=_whole(record["num_accepted_draft_tokens"]),
                histogram=tuple(histogram.get(kept, 0) for kept in range(max(histogram, default=0) + 1)),
                output_tokens=None if record.get("completion_tokens") is None else _whole(record["completion_tokens"]),
                told_length=_number(record["mean_acceptance_length"]),
                told_rate=_number(record["draft_acceptance_rate"]),
            )
        )
    return ToolResult("AIPerf", str(path), ", ".join(sorted(engines)), tuple(requests))


def _golden(path: Path, document: Any) -> ToolResult:
    models = {key: value for key, value in document.items() if not str(key).startswith("_")}
    if len(models) != 1:
        raise ValueError(f"it holds {len(models)} models; a file holds one")
    ((label, modes),) = models.items()
    lengths = {(str(mode), int(k)): _number(value) for mode, curve in modes.items() for k, value in curve.items()}
    return ToolResult("InferenceX", str(path), str(label), golden=lengths)


def _vllm_bench(path: Path, document: Any) -> ToolResult:
    total = {"seconds": _number(document["duration"]), "output_tokens": _number(document["total_output_tokens"])}
    names = {
        "draft_steps": "spec_decode_num_drafts",
        "drafted": "spec_decode_draft_tokens",
        "accepted": "spec_decode_accepted_tokens",
        "told_length": "spec_decode_acceptance_length",
        "told_rate": "spec_decode_acceptance_rate",
    }
    total |= {own_name: _number(document[name]) for own_name, name in names.items() if document.get(name) is not None}
    total |= {"completed": _number(document["completed"]), "failed": _number(document.get("failed") or 0)}
    places = [_number(value) for value in document.get("spec_decode_per_position_acceptance_rates") or []]
    total |= {f"place_{place}": value for place, value in enumerate(places)}
    if "told_rate" in total:
        total["told_rate"] /= 100  # vLLM prints per cent
    return ToolResult("vLLM bench", str(path), str(document.get("model_id") or ""), total=total)


def _folder(path: Path) -> ToolResult:
    """Of specdec_bench: acceptance_rate.json holds a list, one entry a run that wrote into the folder."""
    runs = json.loads((path / "acceptance_rate.json").read_text(encoding="utf-8-sig"))
    if not isinstance(runs, list) or not runs:
        raise ValueError(f"acceptance_rate.json holds {runs!r:.60} instead of a list of runs")
    last = _object(runs[-1], "the last run")
    histogram = _histogram(last["Acceptance_Length_Histogram"], 1)
    steps = sum(histogram.values())
    accepted = sum((length - 1) * count for length, count in histogram.items())
    total = {"draft_steps": float(steps), "accepted": float(accepted), "told_length": _number(last["Average_AL"])}
    total |= {"runs": float(len(runs)), "single": float(histogram.get(1, 0)), "longest": float(max(histogram))}
    total["requests"] = float(sum(len(turns) for turns in (last.get("Request_AL") or {}).values()))
    label, timing = "", path / "timing.json"
    if timing.is_file():
        total["tokens_per_second"] = _number(json.loads(timing.read_text(encoding="utf-8"))[-1]["Output TPS"])
        total["step_times"] = 1.0
    if (path / "configuration.json").is_file():
        settings = json.loads((path / "configuration.json").read_text(encoding="utf-8"))
        label = str(settings.get("model") or settings.get("model_dir") or "")
    return ToolResult("specdec_bench", str(path), label, total=total)


def _spec_bench(path: Path, rows: list[Any]) -> ToolResult:
    requests = []
    for row in rows:
        for choice in row["choices"]:
            lengths = [_whole(length) for length in choice.get("accept_lengths") or []]
            kept = [_step(max(length - 1, 0), 0) for length in lengths]  # a length counts the target's own token too
            tokens, seconds = sum(map(_whole, choice["new_tokens"])), sum(map(_number, choice["wall_time"]))
            failed = "ERROR" in choice["turns"]
            requests.append(
                Request(
                    str(row["question_id"]),
                    int(choice.get("index", 0)),
                    False,
                    "failed" if failed else "ok",
                    error="the tool wrote ERROR and repeated the figures of the turn before" if failed else None,
                    category=str(row.get("category", "")),
                    output_tokens=tokens,
                    ended_ns=int(seconds * 1e9),
                    draft_steps=len(lengths) if lengths else None,
                    accepted=sum(kept) if lengths else None,
                    histogram=tuple(kept.count(number) for number in range(max(kept) + 1)) if kept else None,
                )
            )
    return ToolResult("Spec-Bench", str(path), str(rows[0].get("model_id") or ""), tuple(requests))


def _histogram(told: Any, least: int) -> dict[int, int]:
    """Steps by their number of tokens."""
    return {_step(int(number), least): _whole(count) for number, count in told.items()}


def _step(number: int, least: int) -> int:
    if not least <= number <= LONGEST_STEP:
        raise ValueError(f"found a step of {number:.3g} tokens; it is {least} to {LONGEST_STEP}")
    return number


def _number(value: Any) -> float:
    """A finite number, of a layout that writes some as texts."""
    number = float(value)
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError(f"found {value!r:.60} instead of a number")
    return number


def _whole(value: Any) -> int:
    number = _number(value)
    if number != int(number) or number < 0:
        raise ValueError(f"found {value!r:.60} instead of a count")
    return int(number)


def table(results: list[ToolResult]) -> list[Mapping[str, Any]]:
    """One row a result, as JSON values."""
    return [
        {
            "tool": result.tool,
            "source": result.source,
            "label": result.label,
            "requests": len(result.requests) or result.total.get("completed") or result.total.get("requests"),
            "length_per_draft_pooled": result.length,
            "length_per_draft_mean": result.length_of_means,
            "told_length": result.total.get("told_length"),
            "acceptance": result.rate,
            "golden": {f"{mode}, {k}": value for (mode, k), value in result.golden.items()} or None,
            "flaws": list(result.flaws),
        }
        for result in results
    ]
