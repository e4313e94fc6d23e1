"""MS-COCO captions."""

from __future__ import annotations

import json

import pytest

from stridebench.harness.errors import UsageError
from stridebench.tasks.coco import Coco
from tests.support.picture_benchmarks import write_text


class TestCoco:
    def test_each_picture_has_its_caption_of_the_lowest_id(self, picture_tasks):
        prompts = picture_tasks["coco"].prompts()
        assert [(p.id, p.text) for p in prompts] == [("coco/5", "Two cats."), ("coco/3", "A small dog sleeps.")]
        assert prompts[1].data == {"image_id": 42, "caption_id": 3, "file_name": "000000000042.jpg"}

    def test_every_caption_can_be_taken(self, picture_files):
        prompts = Coco(file=str(picture_files / "captions_val2017.json"), every_caption=True).prompts()
        assert [p.id for p in prompts] == ["coco/5", "coco/3", "coco/9"]
        assert prompts[2].text == "A dog lies in shoes."

    def test_the_longest_caption_is_the_first_of_equally_long_ones(self, tmp_path):
        rows = [(9, 42, "A dog."), (7, 42, "A pup."), (3, 42, "Dogs"), (5, 1, "Two cats.")]
        rows = [{"id": number, "image_id": image, "caption": text} for number, image, text in rows]
        path = write_text(tmp_path / "c.json", json.dumps({"annotations": rows}))
        assert [prompt.text for prompt in Coco(file=str(path), longest=True).prompts()] == ["Two cats.", "A dog."]
        with pytest.raises(UsageError, match="every_caption and longest"):
            Coco(file=str(path), longest=True, every_caption=True).prompts()

    @pytest.mark.parametrize(
        ("text", "what"),
        [
            ('{"images": []}', ":1: no list `annotations`"),
            ('{"annotations": [\n{"id": 1}]}', ", annotation 1: no numbers id and image_id"),
            ('{"annotations": [{"id": 1, "image_id": 2, "caption": 3}]}', ", annotation 1: caption is 3"),
            ('{"annotations":\n[', ":2: not JSON"),
        ],
    )
    def test_malformed_data_is_refused(self, tmp_path, text, what):
        path = write_text(tmp_path / "c.json", text)
        with pytest.raises(UsageError) as error:
            Coco(file=str(path)).prompts()
        assert f"{path}{what}" in str(error.value)
