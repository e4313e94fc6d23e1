"""Captions that a suite writes out."""

from __future__ import annotations

import pytest

from stridebench.harness.errors import UsageError
from stridebench.harness.plan import resolve
from stridebench.tasks.captions import Captions


def test_a_list_is_a_sweep_and_a_list_in_a_list_one_set() -> None:
    entry = {"name": "captions", "texts": [["a cat", " a dog "], "a bird"]}
    data = {"methods": ["sjd"], "backbones": ["embedded-image"], "tasks": [entry]}
    prompts = [use.task.prompts() for use in resolve.resolve(data, resolve.Lines("test", None)).tasks]
    assert [[(one.id, one.text) for one in each] for each in prompts] == [
        [("captions/0", "a cat"), ("captions/1", "a dog")],
        [("captions/0", "a bird")],
    ]


@pytest.mark.parametrize("texts", ["", (), ("a cat", " "), ("a cat", 3)])
def test_what_is_not_a_caption_is_refused(texts: object) -> None:
    with pytest.raises(UsageError, match="give a caption, or several"):
        Captions(texts=texts).prompts()  # type: ignore[arg-type]
