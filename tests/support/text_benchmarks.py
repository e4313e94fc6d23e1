"""Small files of GSM8K, MBPP, MATH-500, MT-Bench and Spec-Bench in the published formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stridebench.harness.registry import TASKS
from stridebench.tasks.spec_bench import CATEGORIES as SIX

NAMES = ("gsm8k", "mbpp", "math500", "mt_bench", "spec_bench")


PLACES = {
    "gsm8k": "gsm8k/test.jsonl",
    "mbpp": "mbpp/mbpp.jsonl",
    "math500": "math500/test.jsonl",
    "mt_bench": "mt_bench/question.jsonl",
    "spec_bench": "spec_bench/question.jsonl",
}


GSM8K = [
    {"question": "Two hens lay 3 eggs each. How many?", "answer": "2 * 3 = <<2*3=6>>6 eggs.\n#### 6"},
    {"question": "A car costs $1,200 less $100. How much?", "answer": "It is 1200-100.\n#### 1,100"},
]


def problem(number: int, question: str, code: str, tests: list[str], setup: str = "") -> dict[str, Any]:
    """A line of mbpp.jsonl."""
    more = {"test_setup_code": setup, "test_list": tests, "challenge_test_list": []}
    return {"text": question, "code": code, "task_id": number, **more}


MBPP = [
    *(
        problem(n, f"Write the {n} function.", f"def f{n}():\r\n  return {n}", [f"assert f{n}() == {n}"])
        for n in (1, 2)
    ),
    *(
        problem(n, f"Write the {n} function.", f"def f{n}():\r\n  return {n}", [f"assert f{n}() == {n}"])
        for n in (3, 4)
    ),
    problem(
        11,
        "Write a function to add.",
        "def add(a, b): return a + b",
        ["assert add(1, 2) == 3", "assert add(0, 0) == 0"],
    ),
    problem(12, "Write a root.", "def root(x): return sqrt(x)", ["assert root(4) == 2"], "from math import sqrt"),
    problem(511, "Not for evaluation.", "def no(): pass", ["assert no() is None"]),
]


SANITIZED = [
    {
        "source_file": "notebook",
        "task_id": n,
        "prompt": f"Write the {n} function.",
        "code": f"def f{n}():\n  return math.inf",
        "test_imports": ["import math"],
        "test_list": [f"assert math.isinf(f{n}())"],
    }
    for n in (2, 3, 4, 20)
]


MATH = [
    {
        "problem": "What is half of $\\{1\\}$?",
        "solution": "It is $\\boxed{\\frac{1}{2}}$.",
        "answer": "\\frac{1}{2}",
        "subject": "Algebra",
        "level": 1,
        "unique_id": "test/algebra/1.json",
    },
    {
        "problem": "How many?",
        "solution": "\\boxed{1{,}100}",
        "answer": "1{,}100",
        "subject": "Number Theory",
        "level": 5,
        "unique_id": "test/number_theory/2.json",
    },
]


MT = [
    {"question_id": 81, "category": "writing", "turns": ["Write a blog.", "Again, with A."]},
    {"question_id": 111, "category": "math", "turns": ["What is 2 + 2?", "Double it."], "reference": ["4", "8"]},
]


SPEC = [
    *MT,
    *(
        {"question_id": 300 + place, "category": name, "turns": [f"a question of {name}"], "reference": ["an answer"]}
        for place, name in enumerate(SIX[1:])
    ),
]


FILES: dict[str, list[dict[str, Any]]] = dict(zip(NAMES, (GSM8K, MBPP, MATH, MT, SPEC), strict=True))


ANSWERS = [
    {"question_id": 81, "model_id": "m", "choices": [{"index": 0, "turns": ["My blog.", "And again."]}]},
    {"question_id": 111, "model_id": "m", "choices": [{"index": 0, "turns": ["4", "8"]}]},
]


def write_rows(path: Path, rows: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(rows if isinstance(rows, str) else "\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


def task_of(name: str, path: Path, rows: Any, **more: Any) -> Any:
    """A task over a file of its own."""
    return TASKS.get(name)(file=write_rows(path / Path(PLACES[name]).name, rows), **more)
