"""HumanEval: pass@k from the samples of each problem."""

from __future__ import annotations

import math

import pytest

from stridebench.harness.core.task import Prompt, Scored
from stridebench.tasks.humaneval import HumanEval, pass_at_k


def test_pass_at_k_is_one_less_the_chance_of_k_wrong_samples() -> None:
    passed = {"a": [True] * 3 + [False] * 17, "b": [False] * 12, "c": [True] * 15}
    chances = [1 - math.comb(17, 10) / math.comb(20, 10), 0.0, 1.0]
    scores = pass_at_k(passed)
    assert scores["pass@10"].value == pytest.approx(sum(chances) / 3) and "pass@100" not in scores


def test_a_run_of_ten_repetitions_has_pass_at_10() -> None:
    prompt = Prompt("HumanEval/0")
    outputs = [Scored(prompt, n, "", {"pass@1": float(n == 0)}) for n in range(10)]
    assert HumanEval().score_set(outputs)["pass@10"].value == 1.0
    assert HumanEval().score_set(outputs[:9]) == {}
    assert HumanEval().score_set([Scored(prompt, 0, "", {})]) == {}
