"""Class names of ImageNet."""

from __future__ import annotations

import pytest

from stridebench.harness.errors import UsageError
from stridebench.tasks.imagenet_classes import ImageNetClasses
from tests.support.picture_benchmarks import write_text


class TestImageNet:
    @pytest.mark.parametrize(
        ("name", "text", "synset"),
        [
            ("a.json", '{"0": ["n01440764", "tench"], "1": ["n01484850", "great_white_shark"]}', "n01484850"),
            ("b.json", '["tench", "great white shark"]', ""),
            ("c.txt", "tench\ngreat white shark\n", ""),
            ("d.txt", "n01440764 tench\nn01484850 great white shark\n", "n01484850"),
        ],
    )
    def test_every_format_is_read(self, tmp_path, name, text, synset):
        _, second = ImageNetClasses(file=str(write_text(tmp_path / name, text))).prompts()
        assert (second.id, second.text) == ("imagenet/1", "1 great white shark")
        assert second.data == {"class": 1, "synset": synset, "name": "great white shark"}

    @pytest.mark.parametrize(
        ("text", "what"),
        [
            ('{"0": ["n01440764", "tench"], "2": ["n0", "x"]}', ", class 1: expected [synset, name]; found None"),
            ('{"0": "tench"}', ", class 0: expected [synset, name]; found 'tench'"),
            ("3", ":1: expected an object of class ids, or a list of names"),
        ],
    )
    def test_malformed_data_is_refused(self, tmp_path, text, what):
        path = write_text(tmp_path / "x.json", text)
        with pytest.raises(UsageError) as error:
            ImageNetClasses(file=str(path)).prompts()
        assert f"{path}{what}" in str(error.value)
