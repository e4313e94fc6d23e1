"""Recipes for any backbone: their settings, and what is refused before anything is loaded."""

from __future__ import annotations

import pytest

from harness import discover
from harness.errors import UsageError
from harness.registry import GENERAL_RECIPES
from harness.train.data import TaskPlan
from harness.train.general import general

PLAN = TaskPlan("humaneval")


def test_settings_reach_the_recipe_and_its_data() -> None:
    recipe = general("medusa", "tiny:llama3-8b", PLAN, {"heads": 5, "rate": 1e-4, "data.new": 64})
    assert (recipe.heads, recipe.rate, recipe.plan.new, recipe.backbone) == (5, 1e-4, 64, "tiny:llama3-8b")
    layers = general("cross-regression", "tiny:llama2-7b", PLAN, {"layers": [0, 3]})
    assert layers.layers == (0, 3)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("medusa", {"haeds": 5}, "no such setting.*heads"),
        ("medusa", {"heads": "many"}, "--set heads='many': Input should be a valid integer"),
        ("medusa", {"data.task": "gsm8k"}, "--set data.task: there is no such setting"),
        ("medusa", {"backbone": "x"}, "--set backbone: there is no such setting"),
        ("nosuch", {}, "nosuch"),
    ],
)
def test_wrong_settings_are_one_message(name: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        general(name, "tiny:llama3-8b", PLAN, settings)


def test_a_backbone_that_does_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.train.general.os.sysconf", lambda name: 2**15 if name == "SC_PAGE_SIZE" else 10**6)
    with pytest.raises(UsageError, match=r"medusa for llama2-70b reads 138 GB of weights in bf16, and cpu has 33 GB"):
        general("medusa", "llama2-70b", PLAN, {})


def test_a_command_names_each_recipe_and_its_layers() -> None:
    discover.load_recipes()
    assert sorted(name for names in discover.GENERAL.values() for name in names) == sorted(GENERAL_RECIPES)
    assert discover.general_command("drafter", "medusa", "b") == "stride train medusa --backbone b --data FILE"
    ranged = discover.general_command("adapter", "cross-regression-l0-3", "b")
    assert (
        ranged is not None and "--set 'layers=[0, 3]' --out " in ranged and ranged.endswith("cross-regression-l0-3-b")
    )
    assert discover.general_command("samplers", "mulo-2x", "b") is None
