"""Registers the recipes of shipped components: each is a recipe for any backbone with settings of `recipes.yaml`."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

from stridebench.harness.registry import GENERAL_RECIPES, RECIPES
from stridebench.harness.train.general import shipped_settings
from stridebench.harness.train.passages import PassagePlan
from stridebench.methods.training.adapters.recipes import RANGES, Recordings
from stridebench.methods.training.heads.examples import ShapePlan
from stridebench.methods.training.heads.recipes import TuneHeads

PLANS = {"passages": PassagePlan, "recordings": Recordings, "shapes": ShapePlan}
"""Keys of an entry that are its data."""
OURS_ALONE = {"medusa2": TuneHeads(summary="", backbone="", plan=PassagePlan("text"), requires=())}
"""Recipes that are for shipped backbones alone."""


def configured(recipe: str, **stated: Any) -> Any:
    """Return a recipe with the settings of its entry."""
    settings = {}
    for key, value in stated.items():
        is_plan = key in PLANS
        settings["plan" if is_plan else key] = (
            PLANS[key](**value) if is_plan else tuple(value) if isinstance(value, list) else value
        )
    return replace(OURS_ALONE.get(recipe) or GENERAL_RECIPES.get(recipe), **settings)


import_module("stridebench.methods.training.eagle.recipes")
import_module("stridebench.methods.training.eagle.blocks")
import_module("stridebench.methods.training.heads.recipes")
import_module("stridebench.methods.training.heads.xspecmesh")
for _name, _entry in shipped_settings().items():
    RECIPES.register(_name)(configured(**_entry))
for _backbone, _ranges in RANGES.items():
    for _first, _last in _ranges:
        RECIPES.register(f"cross-regression-l{_first}-{_last}-{_backbone}")(
            replace(
                RECIPES.get(f"cross-regression-{_backbone}"),
                summary=f"adapter of layers {_first} to {_last} of {_backbone} for cross_regression",
                layers=(_first, _last),
            )
        )
