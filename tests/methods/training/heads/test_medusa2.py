"""Medusa-2: the joint loss by hand, learning rates, and heads tied to the merged backbone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import decode
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.discover import shipped
from stridebench.harness.errors import WeightsError
from stridebench.harness.plan import presets
from stridebench.harness.registry import RECIPES
from stridebench.harness.train.finetuning import Tuning
from stridebench.harness.train.finetuning import load_text_backbone as load_backbone
from stridebench.harness.train.loop import train
from stridebench.harness.train.passages import PassagePlan
from stridebench.harness.train.teacher import Teacher
from stridebench.methods.drafters.heads.net import Heads, read_config
from stridebench.methods.medusa import Medusa
from stridebench.methods.training.heads.recipes import Joint, drift

pytest.importorskip("peft")
COMPONENTS = {"medusa-embedded-code": shipped("medusa-embedded-code")}
RECIPE = replace(
    RECIPES.get("medusa2-embedded-code"),
    plan=PassagePlan("code", 1, 1, rows=6, new=12),
    tuning=Tuning(4, 8),
    steps=6,
    together=3,
)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]  # a generator
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRIDE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def model(cache: None) -> Joint:
    joint = RECIPE.build(COMPONENTS)
    assert isinstance(joint, Joint)
    return joint


def test_the_loss_is_the_divergence_and_a_fifth_of_the_heads(model: Joint) -> None:
    """Before the first step the backbone is its base, so that all of the loss is the heads'."""
    losses = model.losses(2)
    assert abs(float(losses.backbone.detach())) < 1e-9
    passage, heads = model.passages.train[2], model.heads.heads
    tokens = torch.tensor(passage.tokens)
    rows = Teacher(presets.load("embedded-code", "fp32")).read(passage, (-1,)).hidden
    assert rows is not None
    with torch.no_grad():
        logits, expected = heads(rows[:, :, 0]), torch.zeros(())
    for head in range(heads.config.heads):
        tokens_after, first = tokens[passage.start + 1 + head :], passage.start - 1
        cross_entropy = functional.cross_entropy(
            logits[head, first : first + len(tokens_after)], tokens_after, reduction="sum"
        )
        expected = expected + 0.8 ** (head + 1) * cross_entropy / max(1, len(tokens_after))
    assert float(losses.heads.detach()) == pytest.approx(float(expected), rel=0.02)
    loss = float(RECIPE.loss(model, 0, np.random.default_rng(0)).detach())
    chosen = np.random.default_rng(0).choice(model.chosen, size=3, replace=False)
    with torch.no_grad():
        total = sum(float(model.losses(int(n)).heads) for n in chosen)
    assert loss == pytest.approx(0.2 * total / 3, rel=0.05)


def test_the_heads_learn_four_times_as_fast_and_the_backbone_by_low_rank_matrices(model: Joint) -> None:
    slow, fast = RECIPE.groups(model)
    named = {id(weight): name for name, weight in model.named_parameters()}
    assert all("lora_" in named[id(weight)] for weight in slow["params"]) and "scale" not in slow
    assert len(slow["params"]) == 2 * 7 * 5 and fast["scale"] == 4.0
    assert {id(weight) for weight in fast["params"]} == {id(weight) for weight in model.heads.heads.parameters()}
    recipe = RECIPES.get("medusa2-smollm2-135m")
    assert (recipe.tuning, recipe.fixed, recipe.requires) == (Tuning(32, 16), 0.2, ("medusa-smollm2-135m",))


def test_a_changed_distribution_has_a_loss(model: Joint) -> None:
    weight = next(weight for name, weight in model.tuned.named_parameters() if "q_proj.lora_B" in name)
    with torch.no_grad():
        weight.normal_(std=0.5)
        moved = float(model.losses(0).backbone)
        weight.zero_()
    assert moved > 1e-3


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_exported_heads_are_tied_to_the_merged_backbone(tmp_path: Path) -> None:
    done = train("medusa2-embedded-code", replace(RECIPE, rate=5e-3), tmp_path / "out", COMPONENTS)
    merged, old = load_backbone("merged", done.folder / "backbone"), presets.load("embedded-code", "fp32")
    config = read_config(done.folder)
    assert done.finished and config.fingerprint == merged.fingerprint != old.fingerprint
    assert len(config.ranks) == config.heads == 4
    assert merged.encode("def f(x):") == old.encode("def f(x):") and merged.capabilities == old.capabilities
    figures = json.loads((done.folder / "card.json").read_text())["figures"]
    assert {f"top{n}_head4{key}" for n in (1, 3) for key in ("", "_untrained", "_shuffled", "_ngram")} <= set(figures)
    passages = RECIPE.build(COMPONENTS).passages
    far = drift(passages.teacher, Teacher(merged), passages.development)
    assert figures["divergence"] == pytest.approx(far, abs=1e-4) and 1e-4 < far < 1
    heads = Heads.load(COMPONENTS["medusa-embedded-code"], old.tied_embeddings)
    assert not torch.equal(Heads.load(done.folder, merged.tied_embeddings).blocks[0].last, heads.blocks[0].last)
    method, prompt = Medusa(heads=str(done.folder), nodes=4), merged.encode("def f(x):\n")
    run = open_run(merged, lambda name: merged, prompt, Sampling(0.0), 8, SeededDraws(0, "t", "p", 0))
    assert decode(method, run).steps[0].drafted == 4
    with pytest.raises(WeightsError, match="trained for embedded-code merged"):
        decode(method, open_run(old, lambda name: old, prompt, Sampling(0.0), 8, SeededDraws(0, "t", "p", 0)))


@pytest.mark.parametrize("name", ["embedded-code", "smollm2-135m"])
def test_a_preset_names_the_backbone_inside_the_heads_folder(name: str) -> None:
    spec = presets.resolve(f"{name}-medusa2")
    assert spec.params["source"] == {"shipped": f"medusa2-{name}/backbone"}
    assert RECIPES.get(f"medusa2-{name}").kind == "drafter" and spec.params["vocabulary"] in (512, 49152)
