"""Readers of other tools' results; which one a file is for shows in its content.

Layouts: AIPerf 0.13's `SpecDecodeAcceptanceRecord` as JSON lines; InferenceX' `golden_al_distribution/*.yaml`; `vllm
bench serve --save-result`; folders of specdec_bench, also of its SPEED-Bench runs; Spec-Bench's answer files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from stridebench.harness.errors import UsageError, printable_line
from stridebench.harness.plan.yaml_lines import load as load_yaml
from stridebench.harness.record.requests import Request
from stridebench.reports.interchange import lint
from stridebench.reports.interchange.acceptance import Result

NOT_OF_IT = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What reading a file as another layout raises."""
LONGEST_STEP = 100_000
"""Tokens of one step above which a figure is no length; a histogram holds an entry for each number below."""
TOOLS = "AIPerf acceptance records, InferenceX golden YAML, vLLM bench JSON, specdec_bench folders, Spec-Bench JSONL"


def read(path: Path) -> Result:
    """Read a file or folder of another tool, with its flaws.

    Raises:
        UsageError: it is of no known layout, or a value is not what the layout says.
    """
    try:
        result = _folder(path) if path.is_dir() else _file(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    except (*NOT_OF_IT, yaml.YAMLError) as error:
        detail = printable_line(_what(error))[:200]
        raise UsageError(f"{path} is of no layout that can be read ({detail}). Known: {TOOLS}") from error
    return lint.checked(result)


def _what(error: Exception) -> str:
    """What is wrong with a file, in words."""
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    if isinstance(error, TypeError | AttributeError):
        return f"a value is of another type: {error}"
    return str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"


def _file(path: Path) -> Result:
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
        raise ValueError(f"{place} holds {value!r:.60} where an object belongs")
    return value


def _aiperf(path: Path, rows: list[Any]) -> Result:
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
    return Result("AIPerf", str(path), ", ".join(sorted(engines)), tuple(requests))


def _golden(path: Path, document: Any) -> Result:
    models = {key: value for key, value in document.items() if not str(key).startswith("_")}
    if len(models) != 1:
        raise ValueError(f"it holds {len(models)} models; a file holds one")
    ((label, modes),) = models.items()
    lengths = {(str(mode), int(k)): _number(value) for mode, curve in modes.items() for k, value in curve.items()}
    return Result("InferenceX", str(path), str(label), golden=lengths)


def _vllm_bench(path: Path, document: Any) -> Result:
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
    return Result("vLLM bench", str(path), str(document.get("model_id") or ""), total=total)


def _folder(path: Path) -> Result:
    """Of specdec_bench: acceptance_rate.json holds a list, one entry a run that wrote into the folder."""
    runs = json.loads((path / "acceptance_rate.json").read_text(encoding="utf-8-sig"))
    if not isinstance(runs, list) or not runs:
        raise ValueError(f"acceptance_rate.json holds {runs!r:.60} where a list of runs belongs")
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
    return Result("specdec_bench", str(path), label, total=total)


def _spec_bench(path: Path, rows: list[Any]) -> Result:
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
    return Result("Spec-Bench", str(path), str(rows[0].get("model_id") or ""), tuple(requests))


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
        raise ValueError(f"found {value!r:.60} where a number belongs")
    return number


def _whole(value: Any) -> int:
    number = _number(value)
    if number != int(number) or number < 0:
        raise ValueError(f"found {value!r:.60} where a count belongs")
    return int(number)


def table(results: list[Result]) -> list[Mapping[str, Any]]:
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
