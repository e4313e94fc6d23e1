"""GenEval's prompts."""

from __future__ import annotations

import json

import pytest

from stridebench.harness.errors import UsageError
from stridebench.tasks.geneval import GenEval
from stridebench.tasks.metrics import geneval
from tests.support.picture_benchmarks import GENEVAL, write_text


class TestGenEval:
    def test_metadata_is_kept_for_the_judge(self, picture_tasks):
        first, second = picture_tasks["geneval"].prompts()
        assert (second.id, second.text, second.category) == ("geneval/00001", "a photo of three cows", "counting")
        assert second.data == GENEVAL[1]
        detections = {"cow": [geneval.Detection((0, 0, 9, 9), 0.95)] * 3}
        assert geneval.judge(detections, second.data).correct and not geneval.judge(detections, first.data).correct

    @pytest.mark.parametrize(
        ("line", "what"),
        [
            ('{"tag": "size", "prompt": "x"}', "2: tag is 'size'; known: single_object"),
            ('{"tag": "colors", "prompt": "x"}', "2: include must list objects"),
            ('{"tag": "colors", "include": [{"class": "cow"}], "prompt": "x"}', "2: include must list objects"),
            ('{"tag": "colors", "include": [{"class": "cow", "count": 1}]}', "2: prompt is None"),
            ("not json", "2: not JSON"),
        ],
    )
    def test_malformed_data_is_refused(self, tmp_path, line, what):
        path = write_text(tmp_path / "m.jsonl", json.dumps(GENEVAL[0]) + "\n" + line)
        with pytest.raises(UsageError) as error:
            GenEval(file=str(path)).prompts()
        assert f"{path}:{what}" in str(error.value)
