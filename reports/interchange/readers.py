"""Readers of other tools' results; which one a file is for shows in its content.

Layouts: AIPerf 0.13's `SpecDecodeAcceptanceRecord` as JSON lines; InferenceX' `golden_al_distribution/*.yaml`; `vllm
bench serve --save-result`; folders of specdec_bench, also of its SPEED-Bench runs; answers of Spec-Bench and EAGLE;
`sglang.bench_serving` 0.5 and answers of SGLang's ``/generate``; answers of llama.cpp's server and its log;
`trtllm-bench throughput --report_json`; GuideLLM 0.7's benchmarks.json.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from stridebench.harness.errors import UsageError, printable_line
from stridebench.harness.plan.yaml_lines import load as load_yaml
from stridebench.harness.record.requests import Request
from stridebench.reports.interchange.results import ToolResult, checked

NOT_OF_IT = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What reading a file as another layout raises."""
LONGEST_STEP = 100_000
"""Tokens of one step above which a figure is not a length; a histogram holds an entry for each number below."""
TOOLS = (
    "AIPerf acceptance records, InferenceX golden YAML, vLLM and SGLang bench files, specdec_bench folders, answer "
    "files of Spec-Bench and EAGLE, answers of SGLang and llama.cpp, llama.cpp's log, reports of trtllm-bench and "
    "GuideLLM"
)
LOGGED = re.compile(
    r"draft acceptance(?: rate)? = +[\d.]+ \( *(\d+) accepted / +(\d+) generated\)"
    r"(?:, mean (?:len|acceptance length) = +([\d.]+))?(?:.*?(?:per pos\w*) = \(([\d., ]+)\))?"
)
"""A request in the log of llama.cpp's server: accepted, drafted; newer versions add the length and rates by place."""


def read(path: Path) -> ToolResult:
    """Read a file or folder of another tool, with its flaws."""
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
    if path.suffix in (".log", ".txt"):
        return _llama_cpp_log(path, text)
    if path.suffix in (".yaml", ".yml"):
        document = _object(load_yaml(text))
        return _guidellm(path, document) if "benchmarks" in document else _golden(path, document)
    if path.suffix == ".jsonl":
        return _records(path, [_object(json.loads(line), f"line {number}") for number, line in _lines(text)])
    document = json.loads(text)
    if isinstance(document, list) and document:
        return _records(path, [_object(row, f"entry {number}") for number, row in enumerate(document, 1)])
    if "benchmarks" in _object(document):
        return _guidellm(path, document)
    if "request_info" in document and "performance" in document:
        return _tensorrt_llm(path, document)
    return _vllm_bench(path, document) if _whose([document]) == "AIPerf" else _records(path, [document])


def _whose(rows: list[Any]) -> str:
    """Return the tool that wrote these rows."""
    first = rows[0]
    if "choices" in first and "question_id" in first:
        return "EAGLE" if "idxs" in first["choices"][0] and not _lengths(first["choices"][0]) else "Spec-Bench"
    if "timings" in first:
        return "llama.cpp"
    if "meta_info" in first or "sglext" in first:
        return "SGLang"
    return "SGLang bench" if str(first.get("backend", "")).startswith("sglang") else "AIPerf"


def _records(path: Path, rows: list[Any]) -> ToolResult:
    """Read lines, or entries of a list, one a request, a question or a run."""
    tool = _whose(rows)
    if tool == "SGLang bench":
        return _sglang_bench(path, rows)
    if tool in ("Spec-Bench", "EAGLE"):
        return _answers(path, tool, rows)
    return {"llama.cpp": _llama_cpp, "SGLang": _sglang, "AIPerf": _aiperf}[tool](path, rows)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that hold something, with their numbers from 1."""
    return ((number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip())


def _object(value: Any, place: str = "it") -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{place} holds {value!r:.60} instead of an object")
    return value


def _aiperf(path: Path, rows: list[Any]) -> ToolResult:
    """Records as they are, or each under ``spec_decode_acceptance`` of a request's line."""
    requests: dict[tuple[str, int], Request] = {}
    engines = set()
    for number, row in enumerate(rows):
        facts, record = row.get("metadata") or {}, row.get("spec_decode_acceptance", row) or {}
        fault = row.get("error") or ("cancelled" if facts.get("was_cancelled") else None)
        name = str(facts.get("x_request_id") or row.get("request", number))
        if record:
            engines.add(str(record["engine"]))
        request = Request(
            name,
            _whole(facts.get("turn_index") or 0),
            facts.get("benchmark_phase", "profiling") != "profiling",
            "failed" if fault else "ok",
            error=None if fault is None else str(fault)[:200],
        )
        requests.setdefault(
            (name, request.repetition),
            request if not record and (fault or facts) else _with_acceptance(request, record),
        )
    total = {"twice": float(len(rows) - len(requests))}
    return ToolResult("AIPerf", str(path), ", ".join(sorted(engines)), tuple(requests.values()), total)


def _with_acceptance(request: Request, record: Mapping[str, Any]) -> Request:
    """Return a request with the counts of a record."""
    told = record.get("acceptance_histogram")
    histogram = None if told is None else _histogram(told, 0)
    tokens = record.get("completion_tokens")
    return replace(
        request,
        draft_steps=_whole(record["num_spec_steps"]),
        drafted=_whole(record["num_draft_tokens"]),
        accepted=_whole(record["num_accepted_draft_tokens"]),
        histogram=None
        if histogram is None
        else tuple(histogram.get(kept, 0) for kept in range(max(histogram, default=-1) + 1)),
        output_tokens=None if tokens is None else _whole(tokens),
        told_length=_number(record["mean_acceptance_length"]),
        told_rate=_number(record["draft_acceptance_rate"]),
    )


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
    total |= {"num_prompts": _number(document.get("num_prompts") or 0)}
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


def _answers(path: Path, tool: str, rows: list[Any]) -> ToolResult:
    """Answers of Spec-Bench, or of EAGLE, whose ``idxs`` count the passes of a turn from 0."""
    requests = []
    for row in rows:
        for choice in row["choices"]:
            lengths = [_whole(length) for length in _lengths(choice)]
            kept = [_step(max(length - 1, 0), 0) for length in lengths]  # a length counts the target's own token too
            tokens, seconds = sum(map(_whole, choice["new_tokens"])), sum(map(_number, choice["wall_time"]))
            steps: int | None = len(lengths) or None
            accepted: int | None = sum(kept) if lengths else None
            if tool == "EAGLE":
                steps = sum(_whole(index) + 1 for index in choice["idxs"])
                accepted = tokens - steps
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
                    draft_steps=steps,
                    accepted=accepted,
                    histogram=tuple(kept.count(number) for number in range(max(kept) + 1)) if kept else None,
                )
            )
    return ToolResult(tool, str(path), str(rows[0].get("model_id") or ""), tuple(requests))


def _lengths(choice: Mapping[str, Any]) -> list[Any]:
    """Return the tokens of each pass, as Spec-Bench or descendants of EAGLE name them."""
    return list(choice.get("accept_lengths") or choice.get("accept_length") or [])


def _sglang_bench(path: Path, rows: list[Any]) -> ToolResult:
    """Read the last run of a file, to which each run appends a line."""
    last = rows[-1]
    total = {"runs": float(len(rows)), "completed": _number(last["completed"]), "seconds": _number(last["duration"])}
    total |= {"failed": float(sum(bool(error) for error in last.get("errors") or []))}
    total |= {"output_tokens": _number(last["total_output_tokens"])}
    if last.get("accept_length") is not None:
        total["told_length"] = _number(last["accept_length"])
    return ToolResult("SGLang bench", str(path), str(last.get("tag") or last.get("dataset_name") or ""), total=total)


def _sglang(path: Path, rows: list[Any]) -> ToolResult:
    """Read answers of ``/generate``, or of the OpenAI interface with ``return_spec_tokens_details``."""
    requests = []
    for number, row in enumerate(rows):
        meta = row.get("meta_info") or (row.get("sglext") or {}).get("spec_tokens_details") or {}
        names = {
            "draft_steps": ("spec_verify_ct",),
            "drafted": ("spec_num_proposed_drafts", "spec_draft_token_num"),
            "accepted": ("spec_num_correct_drafts", "spec_accept_token_num"),
            "output_tokens": ("completion_tokens",),
        }
        told = {field: _first(meta, *each) for field, each in names.items()}
        counts: dict[str, Any] = {field: _whole(count) for field, count in told.items() if count is not None}
        histogram = _first(meta, "spec_correct_drafts_histogram", "spec_accept_histogram")
        requests.append(
            Request(
                str(meta.get("id") or row.get("id") or number),
                0,
                False,
                "ok",
                histogram=None if histogram is None else tuple(map(_whole, histogram)),
                told_length=_optional(meta.get("spec_accept_length")),
                told_rate=_optional(meta.get("spec_accept_rate")),
                **counts,
            )
        )
    return ToolResult("SGLang", str(path), str(rows[0].get("model") or ""), tuple(requests))


def _llama_cpp(path: Path, rows: list[Any]) -> ToolResult:
    """Read answers of the server; those without a draft lack the keys of drafts."""
    requests = []
    for number, row in enumerate(rows):
        timings = _object(row.get("timings"), f"timings of answer {number + 1}")
        tokens, drafted, accepted = (
            _whole(timings.get(key, 0)) for key in ("predicted_n", "draft_n", "draft_n_accepted")
        )
        name = str(row.get("id") or number)
        requests.append(Request(name, 0, False, "ok", output_tokens=tokens, drafted=drafted, accepted=accepted))
    return ToolResult("llama.cpp", str(path), str(rows[0].get("model") or ""), tuple(requests))


def _llama_cpp_log(path: Path, text: str) -> ToolResult:
    """Read a log, which tells of each request that drafted its counts and, in newer versions, its length."""
    lines = re.sub(r"\n[^\n]*?acc per pos = ", " acc per pos = ", text).split("\n")
    matches = [match for line in lines if (match := LOGGED.search(line))]
    if not matches:
        raise ValueError("no line holds 'draft acceptance = ...' of llama.cpp's server")
    requests = [
        Request(str(at), 0, False, "ok", accepted=int(match[1]), drafted=int(match[2]), told_length=_optional(match[3]))
        for at, match in enumerate(matches)
    ]
    return ToolResult("llama.cpp", str(path), "", tuple(requests), _places(matches))


def _places(matches: list[re.Match[str]]) -> dict[str, float]:
    """Return the mean rate of each place over the requests of a log that tell it."""
    rates = [[_number(rate) for rate in match[4].split(",")] for match in matches if match[4]]
    deepest = max(map(len, rates), default=0)
    told = [[row[place] for row in rates if place < len(row)] for place in range(deepest)]
    return {f"place_{place}": sum(row) / len(row) for place, row in enumerate(told)}


def _tensorrt_llm(path: Path, document: Any) -> ToolResult:
    """Read a report, whose percentiles are over requests; their averages times the requests are the run's counts."""
    number = _number(document["request_info"]["num_requests"])
    tokens = number * _number(document["request_info"]["avg_output_length"])
    total = {"completed": number, "output_tokens": tokens}
    stats = document.get("decoding_stats") or {}
    means = {
        name: _number(stats[f"{name}_percentiles"]["average"])
        for name in ("num_draft_tokens", "num_accepted_draft_tokens", "draft_acceptance_rate", "acceptance_length")
        if stats.get(f"{name}_percentiles")
    }
    if {"num_draft_tokens", "num_accepted_draft_tokens"} <= set(means):
        total |= {
            "drafted": number * means["num_draft_tokens"],
            "accepted": number * means["num_accepted_draft_tokens"],
        }
        total["draft_steps"] = tokens - total["accepted"]  # each pass makes one token besides the accepted ones
    if "acceptance_length" in means:
        total["told_length"] = means["acceptance_length"]
    return ToolResult("TensorRT-LLM", str(path), str(document["engine"].get("model") or ""), total=total)


def _guidellm(path: Path, document: Any) -> ToolResult:
    """Read the requests of a report by their status."""
    requests = []
    for benchmark in document["benchmarks"]:
        for status in ("successful", "errored", "incomplete"):
            for row in benchmark["requests"].get(status) or ():
                tokens = (row.get("output_metrics") or {}).get("text_tokens")
                fault = None if status == "successful" else status
                requests.append(
                    Request(
                        str(row["request_id"]),
                        0,
                        False,
                        "failed" if fault else "ok",
                        error=fault,
                        output_tokens=None if tokens is None else _whole(tokens),
                    )
                )
    total = {"runs": float(len(document["benchmarks"]))}
    return ToolResult("GuideLLM", str(path), "", tuple(requests), total)


def _first(fields: Mapping[str, Any], *names: str) -> Any:
    """Return the value of the first name that is there, or None if there is none."""
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _optional(value: Any) -> float | None:
    return None if value is None else _number(value)


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
