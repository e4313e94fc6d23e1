"""Results of other tools, in small files of their layouts: what is read, and which flaws are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from stridebench.harness.errors import UsageError
from stridebench.reports.interchange.readers import read
from stridebench.reports.interchange.results import table
from tests.support.cli import refused, stride

RECORD = {
    "engine": "vllm",
    "mean_acceptance_length": 2.0,
    "draft_acceptance_rate": 0.25,
    "acceptance_histogram": {"0": 1, "2": 1},
    "num_accepted_draft_tokens": 2,
    "num_draft_tokens": 8,
    "num_spec_steps": 2,
    "completion_tokens": 5,
}
BENCH = {
    "model_id": "m",
    "duration": 2.0,
    "completed": 3,
    "failed": 0,
    "total_output_tokens": 30,
    "spec_decode_acceptance_rate": 25.0,
    "spec_decode_acceptance_length": 2.0,
    "spec_decode_num_drafts": 10,
    "spec_decode_draft_tokens": 40,
    "spec_decode_accepted_tokens": 10,
    "spec_decode_per_position_acceptance_rates": [0.6, 0.3, 0.1, 0.0],
}


def write(path: Path, value: Any, lines: bool = False) -> Path:
    path.write_text("\n".join(map(json.dumps, value)) if lines else json.dumps(value))
    return path


def answer(
    question: int, tokens: int = 4, lengths: tuple[int, ...] = (1, 3), seconds: float = 1.0, turn: str = "x"
) -> Any:
    choice = {"index": 0, "turns": [turn], "decoding_steps": [2], "new_tokens": [tokens], "wall_time": [seconds]}
    return {
        "question_id": question,
        "category": "qa",
        "model_id": "m",
        "choices": [{**choice, "accept_lengths": lengths}],
    }


def test_aiperf_records_are_read_and_their_identities_checked(tmp_path: Path) -> None:
    wrong = {**RECORD, "num_accepted_draft_tokens": 3}
    bare = read(write(tmp_path / "a.jsonl", [RECORD, {"spec_decode_acceptance": RECORD}], lines=True))
    assert (bare.tool, bare.label, bare.length, bare.rate, bare.flaws) == ("AIPerf", "vllm", 2.0, 0.25, ())
    assert bare.requests[0].histogram == (1, 0, 1) and bare.length_of_means == 2.0
    (first, *_) = read(write(tmp_path / "b.jsonl", [wrong], lines=True)).flaws
    assert "the histogram holds 2 accepted drafts, and there were 3" in first


def test_a_golden_file_gives_its_curve_and_what_it_cannot_say(tmp_path: Path) -> None:
    path = tmp_path / "g.yaml"
    path.write_text(yaml.safe_dump({"_metadata": {}, "m": {"on": {1: 1.8, 2: 2.4, 3: 2.3, 4: 6.0}}}))
    result = read(path)
    assert result.golden["on", 2] == 2.4 and result.label == "m" and result.length is None
    assert "no interval" in result.flaws[0] and "lies outside of 1 to 5" in result.flaws[1]
    assert "shorter length at 3" in result.flaws[2]


def test_vllm_bench_counts_must_give_what_it_says(tmp_path: Path) -> None:
    good = read(write(tmp_path / "a.json", BENCH))
    assert (good.length, good.rate, good.flaws) == (2.0, 0.25, ())
    assert table([good])[0]["requests"] == 3
    bad = {**BENCH, "failed": 2, "spec_decode_acceptance_length": 2.5}
    bad["spec_decode_per_position_acceptance_rates"] = [0.3, 0.6]
    text = " | ".join(read(write(tmp_path / "b.json", bad)).flaws)
    assert "2 requests failed" in text and "rates by position rise" in text and "says a mean length of 2.500" in text
    assert "add up to 0.900" in text
    plain = {key: value for key, value in BENCH.items() if not key.startswith("spec")}
    assert "tells no acceptance" in read(write(tmp_path / "c.json", plain)).flaws[0]


def test_specdec_bench_folders_may_hold_two_runs_and_the_chunk_of_the_prefill(tmp_path: Path) -> None:
    run = {
        "Acceptance_Length_Histogram": {"1": 2, "3": 2},
        "Average_AL": 2.0,
        "Request_AL": {"0": {"0": 2.0}, "1": {"0": 2.0}},
    }
    write(tmp_path / "acceptance_rate.json", [run, run])
    write(tmp_path / "timing.json", [{"Output TPS": 10.0}])
    result = read(tmp_path)
    assert (result.length, result.total["tokens_per_second"]) == (2.0, 10.0)
    text = " | ".join(result.flaws)
    assert "2 runs wrote into this folder" in text and "without one a turn the length is 3.000" in text
    assert "time to the first token" in text


def test_spec_bench_answers_are_checked_for_repeats_errors_and_lengths(tmp_path: Path) -> None:
    rows = [answer(1, seconds=9.0), answer(2), answer(3, tokens=9), answer(3), answer(4, turn="ERROR")]
    result = read(write(tmp_path / "a.jsonl", rows, lines=True))
    assert result.length == 2.0 and result.requests[0].category == "qa"
    text = " | ".join(result.flaws)
    assert "1 questions stand there twice, such as 3" in text and "1 turns are ERROR" in text
    assert "such as question 3: 9, and 4" in text and "nothing was warmed up" in text
    baseline = read(write(tmp_path / "b.jsonl", [answer(1, 2, (1, 1)), answer(2, 2, (1, 1))], lines=True))
    assert "it is a baseline" in " | ".join(baseline.flaws)


def aiperf(name: str = "r-0", record: Any = RECORD, error: Any = None, **metadata: Any) -> dict[str, Any]:
    """A record of AIPerf, which holds the counts of a request."""
    return {"metadata": {"x_request_id": name, **metadata}, "error": error, "spec_decode_acceptance": record}


REAL = aiperf()
CUT = aiperf("r-1", None, {"code": 499}, was_cancelled=True)
WARM, UNTOLD = aiperf("w", benchmark_phase="warmup"), aiperf("u", None)
BONUS = {**BENCH, "spec_decode_acceptance_length": 1.0}
BARE = {key: value for key, value in RECORD.items() if key != "acceptance_histogram"}
EAGLE = {
    "question_id": 81,
    "choices": [{"index": 0, "turns": ["a", "b"], "idxs": [39, 19], "new_tokens": [120, 60], "wall_time": [3.0, 2.0]}],
}
SGLANG = {
    "backend": "sglang",
    "dataset_name": "random",
    "duration": 12.3,
    "completed": 8,
    "total_output_tokens": 512,
    "accept_length": 3.1,
}
GENERATED = {
    "meta_info": {
        "id": "g",
        "completion_tokens": 9,
        "spec_verify_ct": 4,
        "spec_num_correct_drafts": 4,
        "spec_num_proposed_drafts": 8,
        "spec_accept_length": 2.0,
    }
}
LLAMA = {"id": "l", "timings": {"predicted_n": 12, "draft_n": 8, "draft_n_accepted": 6}}
LOG = """slot print_timing: id 0 | draft acceptance = 0.75000 (    6 accepted /     8 generated), mean len =  2.50
slot print_timing: id 0 |      acc per pos = (0.750, 0.750)
slot print_timing: id 1 | draft acceptance rate = 0.25000 (    2 accepted /     8 generated)
"""
TENSORRT = {
    "engine": {"model": "m"},
    "request_info": {"num_requests": 2, "avg_output_length": 15.0},
    "performance": {},
    "decoding_stats": {
        "num_draft_tokens_percentiles": {"average": 30.0},
        "num_accepted_draft_tokens_percentiles": {"average": 5.0},
        "draft_acceptance_rate_percentiles": {"average": 0.2},
        "acceptance_length_percentiles": {"average": 1.7},
    },
}
GUIDELLM = {
    "benchmarks": [
        {
            "requests": {
                "successful": [{"request_id": "a", "output_metrics": {"text_tokens": 4}}],
                "errored": [{"request_id": "b", "output_metrics": {}}],
                "incomplete": [],
            }
        }
    ]
}
BUDGET = {**BENCH, "spec_decode_draft_tokens": 20, "spec_decode_acceptance_rate": 25.0}
READ = {
    "repeated.jsonl": ([REAL, REAL], "AIPerf", 1, 2.0, 0.25, "1 records repeat a request"),
    "cancelled.jsonl": ([REAL, CUT], "AIPerf", 1, 2.0, 0.25, "1 request (such as r-1) failed or cancelled"),
    "warm-up.jsonl": ([REAL, WARM], "AIPerf", 1, 2.0, 0.25, "1 request (such as w) of the warm-up"),
    "untold.jsonl": ([REAL, UNTOLD], "AIPerf", 2, 2.0, 0.25, "1 request (such as u) without acceptance"),
    "bare.jsonl": ([RECORD, BARE], "AIPerf", 2, 2.0, 0.25, "1 request (such as 1) without a histogram"),
    "eagle.jsonl": ([EAGLE], "EAGLE", 1, 3.0, None, ""),
    "sglang.json": (SGLANG, "SGLang bench", 8, None, None, "server's mean since its start"),
    "sglang.jsonl": ([SGLANG, {**SGLANG, "errors": ["", "x"]}], "SGLang bench", 8, None, None, "2 runs wrote into"),
    "generate.jsonl": ([GENERATED], "SGLang", 1, 2.0, 0.5, "without a histogram"),
    "llama.jsonl": ([LLAMA, LLAMA], "llama.cpp", 2, None, 0.75, "per pass of the target it is 2.000"),
    "server.log": (LOG, "llama.cpp", 2, None, 0.5, "no length can be pooled"),
    "trt.json": (TENSORRT, "TensorRT-LLM", 2, 1.5, 1 / 6, "drafted tokens are the draft budget of every pass"),
    "guide.json": (GUIDELLM, "GuideLLM", 1, None, None, "it measures no acceptance"),
    "counters.json": ({**BENCH, "total_output_tokens": 8}, "vLLM bench", 3, 2.0, 0.25, "since the server's start"),
    "prompts.json": ({**BENCH, "num_prompts": 5}, "vLLM bench", 3, 2.0, 0.25, "3 of 5 prompts were completed"),
    "bonus.json": (
        BONUS,
        "vLLM bench",
        3,
        2.0,
        0.25,
        "leaves out the target's token of each pass; a length here is 1 +",
    ),
    "budget.json": (BUDGET, "vLLM bench", 3, 2.0, 0.5, "divides by the draft budget of 4"),
}


@pytest.mark.parametrize("name", READ)
def test_each_layout_gives_its_figures_and_the_known_flaw(tmp_path: Path, name: str) -> None:
    content, tool, requests, length, rate, flaw = READ[name]
    path = tmp_path / name
    path.write_text(content) if isinstance(content, str) else write(path, content, lines=isinstance(content, list))
    result = read(path)
    (row,) = table([result])
    assert (result.tool, row["requests"]) == (tool, requests)
    assert (row["length_per_draft_pooled"], row["acceptance"]) == pytest.approx((length, rate))
    assert flaw in " | ".join(result.flaws) if flaw else result.flaws == ()


def test_a_log_tells_the_mean_of_its_lengths_and_its_rates_by_place(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(LOG)
    result = read(tmp_path / "server.log")
    assert result.told_length == 2.5 and result.total == {"place_0": 0.75, "place_1": 0.75}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.json", "", "it is empty"),
        ("x.jsonl", "\n\n", "it is empty"),
        ("x.yaml", "null", "it holds None instead of an object"),
        ("x.json", "3", "it holds 3 instead of an object"),
        ("x.jsonl", f"{json.dumps(RECORD)}\n\n[1]\n", r"line 3 holds \[1\] instead of an object"),
        ("x.json", '{"a": 1}', "it lacks 'duration'"),
        ("acceptance_rate.json", "[]", r"holds \[\] instead of a list of runs"),
        ("acceptance_rate.json", "[3]", "the last run holds 3 instead of an object"),
        ("x.json", "{", ""),
        ("x.log", "{", ""),
        ("x.yaml", "{", ""),
        ("x.jsonl", '{"choices": 3}', ""),
        ("x.json", '{"choices": 3}', ""),
        ("x.jsonl", '{"choices": [3], "question_id": 1}', "a value is of another type"),
        ("negative.jsonl", json.dumps({**RECORD, "num_spec_steps": -1}), ""),
        ("huge.jsonl", json.dumps({**RECORD, "acceptance_histogram": {"1000000000000": 1}}), ""),
        ("negative.jsonl", json.dumps({**RECORD, "acceptance_histogram": {"-1": 2}}), ""),
        ("digits.jsonl", json.dumps({**RECORD, "num_spec_steps": 10**400}), ""),
        ("digits.json", json.dumps({**BENCH, "duration": 10**400}), ""),
        ("no-model.yaml", "_comment: only", ""),
    ],
    ids=range(20),
)
def test_what_is_wrong_with_a_file_is_said_in_words(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=f"no layout that can be read .*{said}"):
        read(tmp_path if name == "acceptance_rate.json" else tmp_path / name)


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps(RECORD) + "\n", encoding="utf-8-sig")
    assert read(tmp_path / "x.jsonl").tool == "AIPerf"


def test_the_verb_prints_a_table_and_the_flaws(tmp_path: Path) -> None:
    path = write(tmp_path / "b.json", {**BENCH, "failed": 1})
    out = stride("exchange", "import", path).out
    assert "| b.json | vLLM bench | m | 3 | 2.000 |" in out and "b.json: 1 requests failed" in out
    (row,) = stride("exchange", "import", path, "--json").document["results"]
    assert row["length_per_draft_pooled"] == 2.0
    assert "cannot be read" in refused("exchange", "import", tmp_path / "none.json")


def test_control_characters_of_a_file_are_not_printed(tmp_path: Path) -> None:
    record = {**RECORD, "request": "\x1b[31mred", "num_accepted_draft_tokens": 9}
    (tmp_path / "a.jsonl").write_text(json.dumps(record))
    done = stride("exchange", "import", tmp_path / "a.jsonl")
    assert done.code == 0 and "request" in done.out and "\x1b" not in done.out
