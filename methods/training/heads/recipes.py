"""Medusa's heads and those of blockwise decoding for a frozen backbone: `stride train drafter medusa-embedded-code`.

Source: Cai et al. 2024, Medusa, arXiv:2401.10774, section 2.2.1 (Medusa-1: the backbone is frozen) and 2.3.2
(self-distillation: the text is the backbone's own); Stern et al. 2018, arXiv:1811.03115, section 6.
"""

from __future__ import annotations

from dataclasses import replace

from stridebench.harness.registry import GENERAL_RECIPES, RECIPES
from stridebench.harness.train.passages import Plan
from stridebench.methods.training.heads.medusa_recipe import TrainHeads

MEDUSA = {
    recipe.backbone: recipe
    for recipe in (
        TrainHeads(
            summary="medusa heads of embedded-code",
            backbone="embedded-code",
            plan=Plan("code", train=8, development=2, new=96),
        ),
        TrainHeads(
            summary="medusa heads of embedded-image",
            backbone="embedded-image",
            plan=Plan("scenes", train=4, development=1, new=272),
            layers=2,
            own=True,
            steps=600,
            rate=1e-3,
        ),
        TrainHeads(
            summary="medusa heads of smollm2-135m",
            backbone="smollm2-135m",
            plan=Plan("text", train=5, development=1),
            kept=8192,
        ),
    )
}
"""The recipe of Medusa's heads for each backbone."""

for _kind, _inner in (("medusa", 0), ("blockwise", 512)):
    GENERAL_RECIPES.register(_kind)(
        TrainHeads(summary=f"{_kind} heads of any backbone", backbone="", plan=Plan("text"), inner=_inner)
    )
for _name, _recipe in MEDUSA.items():
    RECIPES.register(f"medusa-{_name}")(_recipe)
    RECIPES.register(f"blockwise-{_name}")(
        replace(_recipe, summary=f"blockwise heads of {_name}", layers=1, inner=512, own=False)
    )
