"""Block drafters in training: the blocks of a step by hand, agreement with the cache, and a training that learns."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from stridebench.harness.core.backbone import Backbone, TiedEmbeddings
from stridebench.harness.core.cache import Window
from stridebench.harness.core.capabilities import Capabilities
from stridebench.harness.core.loop import decode
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.errors import UsageError
from stridebench.harness.plan import presets
from stridebench.harness.registry import RECIPES
from stridebench.harness.train.loop import train
from stridebench.harness.train.passages import PassagePlan
from stridebench.harness.train.teacher import Teacher
from stridebench.methods.dflash import DFlash
from stridebench.methods.dflash2 import DFlash2
from stridebench.methods.drafters.block_net import BlockCache, BlockDrafterNet
from stridebench.methods.drafters.block_shape import BlockDrafterShape
from stridebench.methods.dspark import DSpark
from stridebench.methods.training.eagle.blocks import BlockRecipe, BlockStudent
from stridebench.methods.training.eagle.student import Example, Lessons
from tests.support.feature_toys import run_on

DRAWN = torch.Generator().manual_seed(7)
EMBED = torch.randn(20, 8, generator=DRAWN)


def example(length: int, start: int, first: int) -> Example:
    """The tokens first, first + 1, ..., with two taps and the input of the head."""
    rows = torch.randn(length, 1, 3, 8, generator=DRAWN)
    return Example(torch.arange(first, first + length), rows, torch.zeros(length, dtype=torch.long), start)


def student(ahead: bool) -> BlockStudent:
    torch.manual_seed(0)
    net = BlockDrafterNet(BlockDrafterShape(8, 2, 1, 4, 12, 2, (1, 2), 3, 19, 20, ahead)).eval()
    teacher = Teacher(cast(Backbone, SimpleNamespace(capabilities=Capabilities(20, 100))))
    return BlockStudent(net, Lessons(teacher, EMBED, EMBED, [], []))


EXAMPLES = [example(5, 2, 0), example(6, 3, 10)]


@pytest.mark.parametrize(
    ("ahead", "after"), [(False, [[2, 3], [4, -1], [13, 14]]), (True, [[2, 3, 4], [4, -1, -1], [13, 14, 15]])]
)
def test_the_rows_of_a_step(ahead: bool, after: list[list[int]]) -> None:
    """Anchors 1 and 3 of the first passage, 2 of the second; -1 lies behind the end of its passage."""
    blocks = student(ahead).blocks(EXAMPLES, [[1, 3], [2]])
    assert blocks.rows.tolist() == [[1, 19, 19], [3, 19, 19], [12, 19, 19]]
    assert blocks.positions.tolist() == [1, 2, 3, 3, 4, 5, 2, 3, 4]
    assert torch.where(blocks.counted, blocks.after, -1).tolist() == after
    assert torch.where(blocks.counted, blocks.before, -1).tolist() == [
        [t if t < 0 else t - 1 for t in row] for row in after
    ]
    seen = [row.nonzero()[:, 0].tolist() for row in blocks.visible]
    assert seen[0] == seen[2] == [0, 11, 12, 13]
    assert seen[3] == [0, 1, 2, 14, 15, 16]
    assert seen[8] == [5, 6, 17, 18, 19]
    row = int(blocks.after[2, 0]) - 10 - 1  # the row of the head before the drafted token
    assert torch.equal(blocks.heads[2, 0], EXAMPLES[1].rows[row, :, -1])


@pytest.mark.parametrize("ahead", [False, True])
def test_a_block_in_training_is_that_of_the_cache(ahead: bool) -> None:
    own = student(ahead)
    blocks = own.blocks(EXAMPLES, [[1, 3], [2]])
    trained = own.hidden(blocks, own.net)[1]
    cache = BlockCache(own.net, TiedEmbeddings(EMBED, EMBED), Capabilities(20, 100))
    features = torch.cat([EXAMPLES[0].rows[:3, :, :2], torch.zeros(2, 1, 2, 8)])
    rows = cache.extend(Window(torch.tensor([1, 2, 3, 19, 19]), torch.arange(5), 0, None, 3, (), features))
    assert rows.hidden is not None
    torch.testing.assert_close(rows.hidden[2 + (not ahead) :, 0, 0], trained, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("passages_of_the_session", "unchecked")
@pytest.mark.parametrize("method", [DFlash, DFlash2, DSpark])
def test_a_drafter_learns_and_its_drafts_are_accepted(method: type[DFlash | DFlash2 | DSpark], tmp_path: Path) -> None:
    name = f"{method.__name__.lower()}-embedded-code"
    recipe = cast(BlockRecipe, RECIPES.get(name))
    plan = PassagePlan("code", train=1, development=1, rows=8, new=24)
    result = train(name, replace(recipe, plan=plan, rows=2, steps=40, warmup=2, rate=4e-3), tmp_path, {})
    figures = json.loads((tmp_path / "card.json").read_text())["figures"]
    assert result.finished
    assert figures["accepted_1"] > max(figures["accepted_1_untrained"], figures["accepted_1_shuffled"])
    assert ("accepted_1_rows" in figures) == (method is not DFlash)
    assert ("confidence_error" in figures) == (method is DSpark)
    model = presets.load("embedded-code", "fp32")
    steps = decode(method(features=str(tmp_path)), run_on(model, Sampling(0.0), 30, (1, 2, 3, 4))).steps
    assert steps[0].drafted == 7
    assert sum(step.accepted for step in steps) > 0


@pytest.mark.usefixtures("passages_of_the_session", "unchecked")
def test_the_seed_determines_the_loss() -> None:
    plan = PassagePlan("code", train=1, development=1, rows=8, new=24)
    recipe = replace(cast(BlockRecipe, RECIPES.get("dspark-embedded-code")), plan=plan, rows=2)
    losses = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        own = recipe.build({})
        losses.append(recipe.loss(own, 0, np.random.default_rng(seed)).detach())
    assert losses[0] == losses[1] != losses[2]
    assert all(key.startswith("net.") for key in own.state_dict()), "lessons are in no checkpoint"


@pytest.mark.parametrize("changes", [{"depth": 0}, {"block": 1}, {"rank": 8}, {"confidence": True}, {"ahead": True}])
def test_settings_that_no_drafter_has(changes: dict[str, Any]) -> None:
    recipe = replace(cast(BlockRecipe, RECIPES.get("dflash2-embedded-code")), **changes)
    with pytest.raises(UsageError, match=r"block is|settings of dspark"):
        recipe.build({})
