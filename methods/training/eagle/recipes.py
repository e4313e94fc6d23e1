"""EAGLE's drafters over hidden rows: `stride train drafter eagle1-embedded-image` and its relatives."""

from __future__ import annotations

from dataclasses import replace

from stridebench.harness.registry import GENERAL_RECIPES, RECIPES
from stridebench.harness.train.passages import Plan
from stridebench.methods.training.eagle.feature_recipe import FeatureRecipe

RECIPES.register("eagle1-embedded-image")(
    FeatureRecipe(
        summary="EAGLE-1 drafter of embedded-image, in both branches of guidance",
        backbone="embedded-image",
        plan=Plan("scenes", train=4, development=1, new=272),
        heads=4,
        kv_heads=4,
        inner=512,
        classify=1.0,
        steps=700,
    )
)
for _size, _heads, _inner in (("s", 3, 256), ("l", 5, 384)):
    RECIPES.register(f"eagle1-embedded-digits-{_size}")(
        FeatureRecipe(
            summary=f"EAGLE-1 drafter of embedded-digits-{_size}",
            backbone=f"embedded-digits-{_size}",
            plan=Plan("digits", train=12, development=1, new=65),
            heads=_heads,
            kv_heads=_heads,
            inner=_inner,
            classify=1.0,
            steps=600,
        )
    )
CODE = FeatureRecipe(
    summary="EAGLE-1 drafter of embedded-code",
    backbone="embedded-code",
    plan=Plan("code", train=4, development=1),
    heads=4,
    kv_heads=2,
    inner=384,
    steps=400,
)
SMOLLM2 = FeatureRecipe(
    summary="EAGLE-1 drafter of SmolLM2-135M, over the 8,192 ids that it writes most",
    backbone="smollm2-135m",
    plan=Plan("text", train=12, development=1),
    heads=9,
    kv_heads=3,
    inner=1536,
    theta=100000.0,
    kept=8192,
    rows=4,
    steps=1600,
    hours=1.0,
)


def as_eagle3(recipe: FeatureRecipe, kept: int) -> FeatureRecipe:
    """EAGLE-3's drafter of the same backbone and sizes: soft cross-entropy alone, in three rounds."""
    summary = recipe.summary.replace("EAGLE-1", "EAGLE-3")
    return replace(recipe, summary=summary, eagle="eagle3", kept=kept, rounds=3, regress=0.0, classify=1.0, noise=0.0)


ANY = FeatureRecipe(summary="EAGLE-1 drafter of any backbone with hidden rows", backbone="", plan=Plan("text"))
GENERAL_RECIPES.register("eagle1")(ANY)
GENERAL_RECIPES.register("eagle3")(as_eagle3(ANY, kept=32_000))  # of the release's drafters (draft_vocab_size)
RECIPES.register("eagle1-embedded-code")(CODE)
RECIPES.register("eagle3-embedded-code")(as_eagle3(CODE, kept=256))
RECIPES.register("eagle1-smollm2-135m")(SMOLLM2)
RECIPES.register("eagle3-smollm2-135m")(as_eagle3(SMOLLM2, kept=8192))
