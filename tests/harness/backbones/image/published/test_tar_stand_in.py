"""Tar's stand-ins: a text becomes a picture through a language model, TA-Tok and the de-tokenizer of each size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stridebench.harness.backbones.image import tar
from stridebench.harness.core.task import Prompt
from stridebench.harness.plan import presets
from tests.support import tiny_image
from tests.support.caches import feed

SIDES = {"tar-1.5b-256": 4, "tar-1.5b": 8, "tar-7b": 8, "tar-1.5b-1024": 16}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins are written into a folder that the tests of this file share."""
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path_factory.getbasetemp() / "tar-cache"))


@pytest.mark.slow
def test_each_size_has_a_stand_in_whose_pictures_are_as_large_to_one_another() -> None:
    assert {name for name in presets.by_name() if name.startswith("tar-")} == set(SIDES)
    models: dict[str, Any] = {name: presets.load(f"tiny:{name}", "fp32") for name in ("tar-1.5b-256", "tar-1.5b")}
    for name, model in models.items():
        grid = model.capabilities.grid
        assert (grid.rows, grid.columns) == (SIDES[name], SIDES[name]) and model.capabilities.guidance == 4.0
        picture = model.decode(np.arange(grid.rows * grid.columns) + 7)
        assert picture.pixels.shape == (2 * SIDES[name], 2 * SIDES[name], 3)
    small, large = (model.codebook for model in models.values())
    assert torch.equal(small, large)  # of one tokenizer, so that one drafts for the other


@pytest.mark.slow
def test_the_language_model_writes_the_codes_of_a_text() -> None:
    model = presets.load("tiny:tar-1.5b-256", "fp32")
    one, other = (model.open(Prompt("p", text=text)) for text in ("a red fox", "a blue cat"))
    assert len(one.tokens) == 81
    rows = [encoded.cache() for encoded in (one, model.open(Prompt("p", text="a red fox")), other)]
    first, again, different = (feed(cache, one.tokens, 0, rows=1) for cache in rows)
    assert torch.equal(first, again) and not torch.allclose(first, different)


def test_backbones_of_one_language_model_share_it_and_let_it_go(tmp_path: Path) -> None:
    presets.fetch("tiny:tar-1.5b-256")
    folder = Path(presets.resolve("tiny:tar-1.5b-256").params["parts"]["model"]["path"])
    one, two = (tiny_image.request({"length": 81}, model=place) for place in (folder, folder / ".." / folder.name))
    first = tar._language_model(one)
    assert tar._language_model(two) is first
    bf16 = tar._language_model(replace(one, dtype=torch.bfloat16))
    assert bf16 is not first and len(tar.LOADED) == 2
    del first, bf16
    assert not tar.LOADED
