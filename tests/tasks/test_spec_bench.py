"""Spec-Bench over a small file of the published format."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from stridebench.harness.errors import UsageError
from stridebench.tasks.spec_bench import CATEGORIES as SIX
from stridebench.tasks.spec_bench import SpecBench
from tests.support.text_benchmarks import ANSWERS, MT, task_of, write_rows


class TestSpecBench:
    def test_six_categories_of_which_mt_bench_is_one(self, text_files: Path) -> None:
        prompts = SpecBench().prompts()
        assert Counter(p.category for p in prompts) == {"mt_bench": 2, **dict.fromkeys(SIX[1:], 1)} and len(SIX) == 6
        assert prompts[0].data["subcategory"] == "writing" and prompts[0].text == "Write a blog."

    def test_one_category_can_be_chosen(self, text_files: Path) -> None:
        assert [p.id for p in SpecBench(category="rag").prompts()] == ["spec_bench/304"]
        with pytest.raises(UsageError, match="category is 'math'"):
            SpecBench(category="math")

    def test_the_second_turn_is_mt_benchs(self, text_files: Path, tmp_path: Path) -> None:
        answers = write_rows(tmp_path / "m.jsonl", ANSWERS)
        prompts = SpecBench(turn=2, answers=answers, conversation="vicuna").prompts()
        assert [p.category for p in prompts] == ["mt_bench", "mt_bench"]
        with pytest.raises(UsageError, match="only those of mt_bench do"):
            SpecBench(category="rag", turn=2, answers=answers, conversation="vicuna").prompts()

    def test_mt_benchs_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="lacks questions of math_reasoning, qa, rag, summarization, translation"):
            task_of("spec_bench", tmp_path, MT).prompts()
