"""Prompts for training: disjoint sides without prompts of a benchmark."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from stridebench.harness.errors import UsageError
from stridebench.harness.synthetic.code import programs
from stridebench.harness.train import windows as prompt_sources
from stridebench.harness.train.windows import prompts, side_of


def test_sides_are_disjoint_and_have_no_prompt_of_a_benchmark() -> None:
    train_, development = (set(prompts("code", 0, side, 60)) for side in prompt_sources.SIDES)
    assert {side_of(text) for text in train_} == {"train"} and {side_of(text) for text in development} != {"train"}
    assert len(train_) == len(development) == 60 and not train_ & development
    benchmark = {p.head for p in islice(programs(np.random.default_rng(1), held_out=True), 300)}
    assert not (train_ | development) & benchmark


def test_more_prompts_than_exist_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_sources, "DRAWN", 5)
    with pytest.raises(UsageError, match=r"has \d development prompts and 900 are asked for"):
        prompts("code", 0, "development", 900)
