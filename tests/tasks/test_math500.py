"""MATH-500 over a small file of the published format."""

from __future__ import annotations

from pathlib import Path

import pytest

from stridebench.harness.errors import UsageError
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
            ("So $\\boxed{\\frac12}$.", (1, 1, 1)),
            ("So $\\boxed{0.5}$.", (1, 0, 1)),
            ("Final Answer: The final answer is $\\frac12$. I hope it is correct.", (0, 1, 0)),
            ("\\boxed{\\frac{1}{2}} no, \\boxed{2}", (0, 0, 1)),
            ("\\boxed{\\frac{1}{2}", (0, 0, 0)),
            ("one half", (0, 0, 0)),
            ("", (0, 0, 0)),
        ],
    )
    def test_each_rule_gives_its_score(self, text_files: Path, output, scores) -> None:
        result = Math500().score(Math500().prompts()[0], output, ())
        assert tuple(result.values()) == scores and tuple(result) == Math500.metrics

    def test_every_reference_is_right_by_both_rules(self, text_files: Path) -> None:
        for prompt, row in zip(Math500().prompts(), MATH, strict=True):
            assert set(Math500().score(prompt, row["solution"], ()).values()) == {1.0}

    def test_nothing_after_the_stop_counts(self, text_files: Path) -> None:
        task = Math500(form="minerva")
        text = "\\boxed{\\frac{1}{2}}\n\nProblem:\nAnother.\n\nSolution: \\boxed{9}"
        assert task.score(task.prompts()[0], text, ())["exact_match"] == 1
        assert Math500().score(task.prompts()[0], text, ())["exact_match"] == 0
