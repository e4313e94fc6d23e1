"""Recipes of feature drafters: a training that learns, its seed, and equal data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from stridebench.harness.core.loop import decode
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.plan import presets
from stridebench.harness.registry import RECIPES
from stridebench.harness.train.general import TaskPlan, general
from stridebench.harness.train.loop import train
from stridebench.methods.eagle1 import Eagle1
from stridebench.methods.eagle3 import Eagle3
from stridebench.methods.mtp import MultiTokenPrediction
from stridebench.methods.p_eagle import ParallelEagle
from stridebench.methods.training.eagle.recipes import FeatureRecipe, shuffled
from stridebench.methods.training.eagle.student import FeatureStudent
from tests.support.feature_toys import run_on, small_recipe

FEW_IDS = {"kept": 100}
"""As eagle1-smollm2-135m has: rows of the target's unembedding for the ids it writes most."""


@pytest.mark.slow
@pytest.mark.usefixtures("passages_of_the_session", "unchecked")
@pytest.mark.parametrize(
    ("name", "method", "changes"),
    [
        ("eagle1-embedded-code", Eagle1, {}),
        ("eagle1-embedded-code", Eagle1, FEW_IDS),
        ("eagle3-embedded-code", Eagle3, {}),
        ("mtp-embedded-code", MultiTokenPrediction, {}),
        ("p_eagle-embedded-code", ParallelEagle, {}),
    ],
)
def test_a_drafter_learns_and_its_drafts_are_accepted(
    name: str,
    method: type[Eagle1],
    changes: dict[str, int],
    tmp_path: Path,
) -> None:
    result = train(name, small_recipe(name, **changes), tmp_path, {})
    card = json.loads((tmp_path / "card.json").read_text())
    figures = card["figures"]
    assert result.finished
    assert card["curve"][-1][1] < card["curve"][0][1]
    assert {"top1_1", "top3_1", "accepted_1", "top1_3", "top1_1_untrained", "top1_1_shuffled"} <= set(figures)
    assert figures["top1_1"] > max(figures["top1_1_untrained"], figures["top1_1_shuffled"])
    assert figures["top3_1"] >= figures["top1_1"]
    assert all((f"top1_1_{control}" in figures) == (method is MultiTokenPrediction) for control in ("shifted", "norms"))
    assert 0 < figures["top1_1_ngram"] < figures["top3_1_ngram"] < 1
    model = presets.load("embedded-code", "fp32")
    steps = decode(method(features=str(tmp_path)), run_on(model, Sampling(0.0), 30, (1, 2, 3, 4))).steps
    assert sum(step.accepted for step in steps) > 0


def test_both_drafters_of_smollm2_have_the_same_data() -> None:
    first, third = (cast(FeatureRecipe, RECIPES.get(f"eagle{kind}-smollm2-135m")) for kind in (1, 3))
    assert (first.eagle, first.taps) == ("eagle1", ())
    assert (first.plan, first.kept, first.backbone) == (third.plan, third.kept, third.backbone)


@pytest.mark.usefixtures("passages_of_the_session", "unchecked")
def test_the_seed_determines_the_weights() -> None:
    recipe = small_recipe("eagle1-embedded-code")
    losses: list[Tensor] = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        student = recipe.build({})
        torch.manual_seed(seed)
        losses.append(recipe.loss(student, 0, np.random.default_rng(seed)).detach())
    assert losses[0] == losses[1] != losses[2]
    assert isinstance(student, FeatureStudent)
    weights = dict(student.state_dict())
    assert all(key.startswith("net.") for key in weights), "lessons are in no checkpoint"
    assert not torch.equal(shuffled(student.net).down.weight, student.net.down.weight)


@pytest.mark.slow
@pytest.mark.parametrize(("kept", "proposed"), [(0, None), (50, 50)])
def test_eagle3_of_any_backbone_proposes_all_ids_or_the_most_frequent_ones(
    kept: int, proposed: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a number its head had no ids, and no training of `stride train eagle3` could begin."""
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
    plan = TaskPlan("humaneval", limit=3, new=8, dtype="fp32")
    recipe = general("eagle3", "tiny:llama3-8b", plan, {"kept": kept, "steps": 1})
    assert general("eagle3", "tiny:llama3-8b", plan, {}).kept == 32_000  # type: ignore[attr-defined]  # a FeatureRecipe
    torch.manual_seed(0)
    student = recipe.build({})
    vocabulary = len(cast(FeatureStudent, student).lessons.unembed)
    assert len(cast(FeatureStudent, student).net.ids) == (proposed or vocabulary)
    assert torch.isfinite(recipe.loss(student, 0, np.random.default_rng(0)))
