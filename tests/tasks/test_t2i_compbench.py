"""T2I-CompBench++'s prompts."""

from __future__ import annotations

import pytest

from stridebench.harness.errors import UnknownNameError, UsageError
from stridebench.tasks.metrics import t2i_compbench
from stridebench.tasks.t2i_compbench import T2ICompBench


class TestT2ICompBench:
    def test_categories_are_in_order_without_blank_lines(self, picture_tasks):
        prompts = picture_tasks["t2i_compbench"].prompts()
        assert [p.category for p in prompts[::2]] == list(t2i_compbench.CATEGORIES) and len(prompts) == 16
        assert (prompts[1].id, prompts[1].text) == ("t2i/color/0001", "another color prompt.")
        assert [p.data for p in prompts[-2:]] == [{"kind": "spatial"}, {"kind": "both"}]

    def test_one_category_can_be_chosen(self, picture_files):
        folder = str(picture_files / "t2i_compbench")
        assert {p.category for p in T2ICompBench(folder=folder, category="shape").prompts()} == {"shape"}
        with pytest.raises(UnknownNameError, match=r"category 'shapes'; did you mean 'shape'\?"):
            T2ICompBench(folder=folder, category="shapes").prompts()

    def test_an_absent_file_is_named(self, picture_files):
        (picture_files / "t2i_compbench/numeracy_val.txt").unlink()
        with pytest.raises(UsageError, match=r"numeracy_val\.txt is not there"):
            T2ICompBench(folder=str(picture_files / "t2i_compbench")).prompts()
