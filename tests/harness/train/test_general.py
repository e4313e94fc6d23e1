"""Recipes for any backbone: their settings, and what is refused before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from stridebench.harness import discover
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import GENERAL_RECIPES
from stridebench.harness.train.general import TaskPlan, general

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
        ("medusa", {"steps": 0}, "--set steps=0: give 1 or more"),
        ("medusa", {"heads": -1}, "--set heads=-1: give 1 or more"),
        ("medusa", {"rate": float("nan")}, "--set rate=nan: give a number from 0"),
        ("eagle1", {"rows": 0}, "--set rows=0: give 1 or more"),
        ("eagle3", {"kept": -5}, "--set kept=-5: give a number from 0"),
        ("medusa", {"data.new": 0}, "--set data.new=0: give 1 or more"),
        ("cross-regression", {"schedule": "long"}, "the schedules are paper and printed"),
        ("medusa", {"schedule": "paper"}, "the recipe medusa has none"),
        ("xspecmesh-cross", {"schedule": "long"}, "the one schedule is paper"),
        ("medusa", {"epochs": 2}, "counts no passages; give steps"),
        ("cross-regression", {"epochs": 0}, "give a number above 0"),
        ("xspecmesh-cross-lora", {"labels": "laws"}, "labels='laws': Input should be 'probs' or 'tokens'"),
    ],
)
def test_wrong_settings_are_one_message(name: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        general(name, "tiny:bpt" if name.startswith("xspecmesh") else "tiny:llama3-8b", PLAN, settings)


@pytest.mark.parametrize(
    ("recipe", "backbone", "message"),
    [
        ("medusa", "tiny:llada-8b", "medusa needs hidden rows .*, and tiny:llada-8b does not offer HIDDEN"),
        ("mulo-2x", "tiny:llama3-8b", "mulo-2x needs tokens laid out .*, and tiny:llama3-8b does not offer GRID"),
        ("xspecmesh-cross", "tiny:llama3-8b", "does not offer CONDITION; `stride list matrix` shows"),
        ("xspecmesh-mlp", "tiny:deepmesh-0.5b", "does not offer HIDDEN, CONDITION"),
    ],
)
def test_a_backbone_that_a_recipe_cannot_read_is_refused_first(recipe: str, backbone: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        general(recipe, backbone, PLAN, {})


def test_a_backbone_that_does_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "stridebench.harness.train.general.os.sysconf", lambda name: 2**15 if name == "SC_PAGE_SIZE" else 10**6
    )
    with pytest.raises(UsageError, match=r"medusa for llama2-70b reads 138 GB of weights in bf16, and cpu has 33 GB"):
        general("medusa", "llama2-70b", PLAN, {})


def test_a_command_names_each_recipe_and_its_layers() -> None:
    discover.load_recipes()
    assert sorted(discover.catalogue()["general_recipes"]) == sorted(GENERAL_RECIPES)
    assert discover.general_command("drafter", "medusa", "b") == "stride train medusa --backbone b --data FILE"
    ranged = discover.general_command("adapter", "cross-regression-l0-3", "b")
    assert (
        ranged is not None and "--set 'layers=[0, 3]' --out " in ranged and ranged.endswith("cross-regression-l0-3-b")
    )
    named = discover.general_command("adapter", "gsm8k-t0.6", "b:chat=true")
    command = "stride train cross-regression --backbone b --data gsm8k_7k --name gsm8k-t0.6 --set data.temperature=0.6"
    assert named == command and discover.general("heads", "mixed-t0") is None
    assert discover.general("adapter", "mixed-t0") == ("cross-regression", None, "mixed_7k", "0")
    assert discover.general_command("samplers", "mulo-4x", "b") == "stride train mulo-4x --backbone b --data FILE"
    assert discover.general_command("samplers", "mulo-2x-gan", "b") is None
    guided = discover.general_command("drafter", "eagle1", "b:weights=int4,guidance=3.0")
    assert guided == "stride train eagle1 --backbone b:guidance=3.0 --data FILE"


def test_a_component_of_the_same_guidance_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
    for backbone in ("b", "b:guidance=3.0"):
        folder = discover.trained(f"eagle1-{backbone}")
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    folders = [discover.find_component("eagle1", b) for b in ("b", "b:guidance=3.0", "b:guidance=2.0,weights=int4")]
    assert folders == [discover.trained(f"eagle1-{name}") for name in ("b", "b:guidance=3.0", "b")]


class TestSchedules:
    """Eight prompts to train on a file of nine."""

    @pytest.fixture
    def plan(self, tmp_path: Path) -> TaskPlan:
        file = tmp_path / "prompts.txt"
        file.write_text("".join(f"prompt {n}\n" for n in range(9)))
        return TaskPlan("prompts", {"file": str(file)})

    def test_epochs_are_passes_over_the_passages(self, plan: TaskPlan) -> None:
        recipe = general("cross-regression", "tiny:llama2-7b", plan, {"epochs": 3, "batch": 2})
        assert recipe.steps == 12
        assert general("cross-regression", "tiny:llama2-7b", plan, {"epochs": 3, "steps": 5}).steps == 5

    def test_a_papers_schedule_gives_way_to_other_settings(self, plan: TaskPlan) -> None:
        stage_1 = general("xspecmesh-cross", "tiny:bpt", plan, {"schedule": "paper", "rate": 1e-3})
        assert (stage_1.steps, stage_1.rate, stage_1.floor, stage_1.warmup) == (60, 1e-3, 0.1, 1)
        stage_2 = general("xspecmesh-mlp-lora", "tiny:bpt", plan, {"schedule": "paper", "together": 1})
        assert (stage_2.steps, stage_2.rate, stage_2.floor, stage_2.labels) == (80, 1e-4, 0.1, "probs")
        adapter = general("cross-regression", "tiny:llama2-7b", plan, {"schedule": "paper", "epochs": 200})
        assert (adapter.steps, adapter.batch, adapter.warmup) == (200, 8, 6)

    def test_algorithm_3_as_printed_has_its_data(self, plan: TaskPlan) -> None:
        """Continuations of 16 tokens after prefixes, at one temperature, which the user chooses."""
        recipe = general("cross-regression", "tiny:llama2-7b", plan, {"schedule": "printed", "data.prefixes": 3})
        plan = recipe.plan
        assert (recipe.width, recipe.hop, recipe.least, recipe.batch) == (16, 0, 0.0, 8)
        assert (plan.new, plan.prefixes, plan.longest, plan.temperature) == (16, 3, 2048, 0.0)
        assert recipe.steps == 20 * 8 * 3 / 8
        warm = general("cross-regression", "tiny:llama2-7b", plan, {"schedule": "printed", "data.temperature": 0.6})
        assert warm.plan.temperature == 0.6
