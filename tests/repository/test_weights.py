"""The weights that come with the package: their total size, their cards, and the recipes of absent ones."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from stridebench.harness.backbones.checkpoints import sources
from stridebench.harness.backbones.checkpoints.files import of_file
from stridebench.harness.discover import component, load_recipes
from stridebench.harness.errors import WeightsError
from stridebench.harness.plan import presets
from stridebench.harness.registry import RECIPES

ROOT = Path(__file__).resolve().parents[2]
MOST = 60_000_000
"""Bytes of all tracked files."""
COMMAND = re.compile(r"stride train (\S+) (\S+) --out (\S+)")
CARDS = sorted(sources.SHIPPED.glob("*/card.json"))
SHIPPED = [path.parent for path in CARDS if any(path.parent.glob("*.safetensors"))]
ABSENT = [path.parent for path in CARDS if path.parent not in SHIPPED]
COMPONENTS = ("drafter", "heads", "adapter", "samplers")
"""Kinds of recipes whose results are found by `discover.component`."""
load_recipes()


def test_a_checkout_holds_at_most_60_megabytes() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this folder is no git checkout")
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    sizes = {str(path.relative_to(ROOT)): path.stat().st_size for path in files if path.is_file()}
    largest = sorted(sizes, key=lambda name: -sizes[name])[:5]
    assert sum(sizes.values()) <= MOST, f"{sum(sizes.values())} bytes are tracked; the largest: {largest}"


def test_every_weight_file_belongs_to_a_recipe_with_a_card() -> None:
    files = sources.SHIPPED.rglob("*.safetensors")
    owners = {sources.SHIPPED / path.relative_to(sources.SHIPPED).parts[0] for path in files}
    assert owners == set(SHIPPED)
    assert {folder.name for folder in SHIPPED} <= set(RECIPES)


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda folder: folder.name)
def test_a_card_names_its_recipe_and_the_files_beside_it(folder: Path) -> None:
    card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    assert card["name"] == folder.name and card["figures"]
    assert card["sha256"] == {path.name: of_file(path) for path in sorted(folder.glob("*.safetensors"))}
    assert all(isinstance(line, str) and line.endswith(".") for line in card.get("history", []))


def test_absent_weights_have_a_card_with_figures() -> None:
    for folder in ABSENT:
        assert [path.name for path in folder.iterdir()] == ["card.json"], folder
        card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
        assert card["name"] == folder.name and card["figures"] and card["history"]


def check_command(error_message: str) -> None:
    """`stride train` has the recipe, and the command writes to the folder in which the weights are looked up."""
    command = COMMAND.search(error_message)
    assert command, error_message
    kind, recipe, out = command.groups()
    assert RECIPES.get(recipe).kind == kind
    assert Path(out) == sources.SHIPPED / recipe


@pytest.mark.parametrize("folder", ABSENT, ids=lambda folder: folder.name)
def test_the_error_of_an_absent_component_names_its_training_command(folder: Path) -> None:
    recipe = RECIPES.get(folder.name)
    if recipe.kind in COMPONENTS:
        with pytest.raises(WeightsError) as caught:
            component(recipe.kind, folder.name)
        check_command(str(caught.value))


def absent_presets() -> list[str]:
    needed = {name: spec.shipped() for name, spec in presets.by_name().items()}
    return [name for name, parts in needed.items() if not all(map(sources.is_shipped, parts))]


@pytest.mark.parametrize("name", absent_presets())
def test_the_error_of_an_absent_backbone_names_its_training_command(name: str) -> None:
    assert not presets.resolve(name).ready()
    try:
        presets.load(name, "fp32", fetch=False)
    except WeightsError as error:
        if "stride fetch" in str(error):
            pytest.skip(f"the weights that {name} is added to are not on this machine")
        check_command(str(error))
    else:
        pytest.fail(f"{name} was loaded")


def test_the_presets_without_shipped_weights() -> None:
    assert set(absent_presets()) == {
        "embedded-code-blocks",
        "embedded-code-cllm",
        "embedded-code-medusa2",
        "embedded-code-pard",
        "embedded-image-8x8-queries",
        "embedded-mesh-cross-full",
        "embedded-mesh-mlp-lora",
        "embedded-mesh-truncated",
        "embedded-sudoku-uniform",
        "smollm2-135m-medusa2",
        "smollm2-drafter",
    }
