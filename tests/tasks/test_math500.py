"""MATH-500 over a small file of the published format."""

from __future__ import annotations

from pathlib import Path

import pytest

from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError
from stridebench.tasks import math500
from stridebench.tasks.math500 import Math500
from tests.support.text_benchmarks import MATH


class TestMath500:
    def test_categories_are_the_subjects(self, text_files: Path) -> None:
        one, two = Math500().prompts()
        assert (one.id, one.category, two.category) == ("math500/test/algebra/1", "Algebra", "Number Theory")
        assert one.text == (
            "What is half of $\\{1\\}$?\nPlease reason step by step, and put your final answer within \\boxed{}."
        )
        assert Math500(form="minerva").prompts()[1].text == "Problem:\nHow many?\n\nSolution:"
        assert Math500(form="chat").prompts()[1].text == "How many?"
        with pytest.raises(UsageError, match="choose one of boxed, minerva, chat"):
            Math500(form="few")

    @pytest.mark.parametrize(
        ("output", "scores"),
        [
            ("So $\\boxed{\\frac12}$.", (1, 1)),
            ("So $\\boxed{0.5}$.", (1, 1)),
            ("So $\\boxed{x = \\dfrac{2}{4}}$.", (1, 1)),
            ("Final Answer: The final answer is $\\frac12$. I hope it is correct.", (1, 1)),
            ("\\boxed{\\frac{1}{2}} no, \\boxed{2}", (0, 1)),
            ("\\boxed{\\text{one}}", (0, 1)),
            ("one half", (0, 0)),
            ("", (0, 0)),
        ],
    )
    def test_the_score_is_that_of_math_verify(self, text_files: Path, output, scores) -> None:
        result = Math500().score(Math500().prompts()[0], output, ())
        assert tuple(result.values()) == scores and tuple(result) == Math500.metrics

    @pytest.mark.parametrize("answer", ["\\text{Al}", "10\\%", "(3, \\frac{\\pi}{2})", "x^2+1", "1{,}100", "\\frac34i"])
    def test_a_reference_is_right_in_a_box_and_another_is_not(self, answer: str) -> None:
        prompt = Prompt("p", "", data={"answer": answer})
        assert Math500().score(prompt, f"So $\\boxed{{{answer}}}$.", ())["math_verify"] == 1
        assert Math500().score(prompt, "So $\\boxed{17}$.", ())["math_verify"] == 0

    def test_an_answer_that_takes_too_long_is_wrong(self, monkeypatch) -> None:
        monkeypatch.setattr(math500, "LIMIT_S", 1)
        prompt = Prompt("p", "", data={"answer": "3"})
        assert Math500().score(prompt, "\\boxed{9^{9^{9^9}}}", ()) == {"math_verify": 0.0, "answered": 1.0}

    def test_every_reference_is_right(self, text_files: Path) -> None:
        for prompt, row in zip(Math500().prompts(), MATH, strict=True):
            assert set(Math500().score(prompt, row["solution"], ()).values()) == {1.0}

    def test_nothing_after_the_stop_counts(self, text_files: Path) -> None:
        task = Math500(form="minerva")
        text = "\\boxed{\\frac{1}{2}}\n\nProblem:\nAnother.\n\nSolution: \\boxed{9}"
        assert task.score(task.prompts()[0], text, ())["math_verify"] == 1
        assert Math500().score(task.prompts()[0], text, ())["math_verify"] == 0
