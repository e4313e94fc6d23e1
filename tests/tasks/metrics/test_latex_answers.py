"""Answers in LaTeX: boxes, and both sets of rules."""

from __future__ import annotations

import pytest

from stridebench.tasks.metrics import latex_answers as latex


class TestLatex:
    @pytest.mark.parametrize(
        ("text", "content"),
        [
            ("\\boxed{3}", "3"),
            ("first \\boxed{1}, then $\\boxed{\\frac{1}{2}}$.", "\\frac{1}{2}"),
            ("\\boxed{\\text{a {b} c}} and {more}", "\\text{a {b} c}"),
            ("\\boxed{\\{1,2\\}}", "\\{1,2\\}"),
            ("\\boxed 5$ and so on", "5"),
            ("\\boxed{open \\frac{1}{2}", None),
            ("\\boxed{}", ""),
            ("\\boxed", None),
            ("\\boxed3", None),
            ("no box", None),
        ],
    )
    def test_the_last_box_ends_at_its_brace(self, text, content) -> None:
        assert latex.boxed(text) == content

    @pytest.mark.parametrize(
        ("one", "other", "same"),
        [
            ("\\tfrac{1}{2} +\\! \\frac1{72}", "\\\\dfrac{1}{2} +\\frac{1}{72}", True),
            ("\\tfrac{1}{2} + \\frac1{72}", "\\\\frac{1}{2} + 2/3", False),
            ("10, 4, -2", "4, 10, -2", False),
            ("10\\text{ units}", "10 ", True),
            ("10\\text{ units}", "100 ", False),
            ("10", "\\$10", True),
            ("\\left(x-2\\right)\\left(x+2\\right)", "(x-2)(x+2)", True),
            ("0.1", ".1", True),
            ("10\\%", "10", True),
            ("10\\sqrt{3} + \\sqrt4", "10\\sqrt3 + \\sqrt{4}", True),
            ("\\frac34i", "\\frac{3}{4}i", True),
            ("x = 5", "5", True),
            ("xyz = 5", "5", False),
            ("1/2", "\\frac{1}{2}", True),
            ("0.5", "\\frac{1}{2}", True),
            ("0.25", "\\frac{1}{4}", False),
            ("01/2", "\\frac{1}{2}", False),
            ("90^\\circ", "90", True),
            ("\\frac", "\\frac", True),
            ("\\frac", "\\frac ", False),
            ("\\sqrt", "\\sqrt", True),
            ("1\\text{ a}\\text{ b}", "1", False),
            ("\\frac1", "\\frac1", True),
            ("", "", True),
        ],
    )
    def test_answers_are_normalised_by_hendrycks_rules(self, one, other, same) -> None:
        assert latex.equal(one, other) is same and latex.equal(other, one) is same

    @pytest.mark.parametrize(
        ("text", "alike"),
        [
            ("x = 5", "5"),
            ("100,000", "100000"),
            ("$\\frac12$", "\\frac{1}{2}"),
            ("\\sqrt3", "\\sqrt{3}"),
            ("5 \\text{ inches}", "5"),
            ("\\text{Evelyn}", "Evelyn"),
            ("30^\\circ", "30"),
            ("\\$32,\\!348", "32348"),
            ("16 \\text{m}", "16"),
            ("a cube", "cube"),
            ("0.25", "0.25"),
        ],
    )
    def test_answers_are_normalised_by_minervas_rules(self, text, alike) -> None:
        assert latex.minerva(text) == alike

    def test_minervas_sentence_precedes_the_box_and_may_be_cut(self) -> None:
        assert latex.final("\\boxed{1} Final Answer: The final answer is $2$. I hope it is correct.") == "$2$"
        assert latex.final("Final Answer: The final answer is $2$") == "$2$"
        assert latex.final("so \\boxed{1}") == "1" and latex.final("nothing") is None
