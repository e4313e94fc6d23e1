"""Every recipe for any backbone with a stand-in of every family: ten steps, and a decode with the result.

Kinds and families come from the registries, so a new one is tested here without a change.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stridebench.harness import discover
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import GENERAL_RECIPES
from tests.support import stand_ins
from tests.support.stand_ins import Lesson, lessons

REFUSED = {"simplear": "without an encoder of pictures", "mulo-4x": "4 cells a side, which 4 does not divide"}
"""What a recipe of samplers says of a family that it cannot train for, or of pictures that are too small."""
STEPS = 10
QUICK = ("medusa-llama", "cross-regression-qwen2")
"""Those that run by default; others with the mark audit, since to find them takes seconds."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "lesson" in metafunc.fixturenames:
        only = () if "audit" in metafunc.config.option.markexpr else QUICK
        params = [
            pytest.param(one, id=str(one), marks=() if str(one) in QUICK else pytest.mark.audit)
            for one in lessons(only)
        ]
        metafunc.parametrize("lesson", params)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One cache for all, so that stand-ins and first stages are made once."""
    with stand_ins.cache_in(tmp_path_factory.mktemp("cache")):
        yield


@pytest.mark.slow
def test_every_recipe_and_every_family_that_can_be_drafted_for_is_here() -> None:
    discover.load_recipes()
    every = list(lessons())
    assert {one.recipe for one in every} == set(GENERAL_RECIPES) and {str(one) for one in every} >= set(QUICK)
    without = set(stand_ins.stand_ins()) - {one.family for one in every}
    assert without == {"llada", "dream", "sdar", "deepmesh"}, "masked models, and meshes without hidden rows"


@pytest.mark.slow
def test_ten_steps_and_a_decode(lesson: Lesson) -> None:
    grid = stand_ins.loaded(discover.plain(lesson.backbone)).capabilities.grid
    small = grid is not None and grid.columns < 8
    refused = REFUSED.get(lesson.family, REFUSED.get(lesson.recipe) if small else None)
    if refused and lesson.method is None:
        with pytest.raises(UsageError, match=refused):
            stand_ins.train(lesson.recipe, lesson.backbone, STEPS)
        return
    stand_ins.train(lesson.recipe, lesson.backbone, STEPS)
    if lesson.method is None:  # samplers of a family without a model of half the pictures
        return
    result = stand_ins.tokens_of(lesson.method, lesson.backbone, 24 if grid is None else grid.length)
    assert result.tokens and (any(step.drafted for step in result.steps) or lesson.recipe in stand_ins.SMALLER)
