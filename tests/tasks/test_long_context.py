"""Prompts of an exact length."""

from __future__ import annotations

import pytest

from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError
from stridebench.tasks.long_context import LongContext


def test_each_length_asks_the_same_questions() -> None:
    short, long = (LongContext(length=length, limit=3).prompts() for length in (64, 512))
    assert (
        [prompt.id for prompt in short] == [prompt.id for prompt in long] == [f"long_context/{n}" for n in (0, 54, 109)]
    )
    for one, other in zip(short, long, strict=True):
        assert other.text is not None and one.text is not None
        assert other.text.endswith(one.text) and len(other.text) > 4 * len(one.text)
        assert (one.last, other.last) == (64, 512)


def test_a_model_reads_the_last_tokens() -> None:
    assert Prompt("a", "x", last=2).cut([1, 2, 3]) == (2, 3)
    assert Prompt("a", "x").cut([1, 2, 3]) == (1, 2, 3)
    with pytest.raises(UsageError, match="prompt 'a' has 3 tokens and 4 are to be read"):
        Prompt("a", "x", last=4).cut([1, 2, 3])
