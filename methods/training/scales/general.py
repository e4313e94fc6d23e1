"""Recipes of MuLo-SD's samplers for any model of pictures: `stride train mulo-2x --backbone tar-1.5b --data FOLDER`."""

from __future__ import annotations

from stridebench.harness.registry import GENERAL_RECIPES
from stridebench.harness.train.passages import Plan
from stridebench.methods.training.scales.any_pictures import PAPER, AnySamplers

GENERAL_RECIPES.register("mulo-2x")(
    AnySamplers(
        summary="samplers of MuLo-SD between a model's pictures and those of half the side",
        backbone="",
        plan=Plan("scenes"),
    )
)
GENERAL_RECIPES.register("mulo-4x")(
    AnySamplers(
        summary="samplers of MuLo-SD between a model's pictures and those of a quarter of the side, from mulo-2x",
        backbone="",
        plan=Plan("scenes"),
        factor=4,
        more=2,
        requires=("mulo-2x",),
        batch=2,
        paper={**PAPER, "batch": 8.0},
    )
)
