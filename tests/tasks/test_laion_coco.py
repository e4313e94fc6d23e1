"""LAION-COCO captions."""

from __future__ import annotations

import pyarrow
import pytest
from pyarrow.parquet import write_table

from stridebench.harness.errors import UsageError
from stridebench.tasks.laion_coco import LaionCoco
from tests.support.picture_benchmarks import write_text


class TestLaionCoco:
    def test_jsonl_and_parquet_hold_the_same(self, picture_files, picture_tasks):
        table = pyarrow.table({"URL": ["u", ""], "TEXT": ["t", ""], "top_caption": ["a cat", "a dog"]})
        write_table(table, picture_files / "part.parquet")
        prompts = LaionCoco(file=str(picture_files / "part.parquet")).prompts()
        assert list(prompts) == list(picture_tasks["laion_coco"].prompts())
        assert (prompts[0].id, prompts[0].data) == ("laion_coco/000000", {"url": "u"})

    def test_another_column_can_be_named(self, picture_files):
        assert LaionCoco(file=str(picture_files / "laion_coco.jsonl"), column="TEXT", limit=1).column == "TEXT"
        with pytest.raises(UsageError, match=r"laion_coco\.jsonl:2: TEXT is None"):
            LaionCoco(file=str(picture_files / "laion_coco.jsonl"), column="TEXT").prompts()

    def test_malformed_data_is_refused(self, tmp_path):
        with pytest.raises(UsageError, match=r"neither \.parquet nor \.jsonl"):
            LaionCoco(file=str(tmp_path / "x.csv")).prompts()
        write_text(tmp_path / "x.parquet", "no parquet")
        with pytest.raises(UsageError, match=r"x\.parquet cannot be read"):
            LaionCoco(file=str(tmp_path / "x.parquet")).prompts()
