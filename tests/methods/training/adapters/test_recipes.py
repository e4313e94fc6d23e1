"""Recipes of Cross-Regression's adapters: a training that learns, its continuation, and the names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stridebench.harness.backbones.text.hf_causal import HFCausal
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import Decode, decode
from stridebench.harness.core.method import Method
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.plan import presets
from stridebench.harness.registry import METHODS, RECIPES
from stridebench.harness.train.general import TaskPlan, general
from stridebench.harness.train.loop import train
from stridebench.harness.train.passages import PassagePlan, Passages
from stridebench.harness.train.teacher import Teacher
from stridebench.methods.cross_regression import CrossRegression
from stridebench.methods.training.adapters import recipes
from stridebench.methods.training.adapters.recipes import TrainAdapter, roots

RECIPE = TrainAdapter(
    summary="a test",
    backbone="tiny-llama",
    plan=PassagePlan("code"),
    rank=4,
    alpha=8,
    width=4,
    batch=2,
    steps=60,
    rate=1e-2,
)


def greedy(count: int) -> Passages:
    """The model's own passages, the same ones on both sides."""
    teacher = Teacher.load("tiny-llama", "fp32")
    requests = [Prompt("", tokens=(n, n + 1)) for n in range(count)]
    passages = teacher.continued(requests, 22, Sampling(0.0), SeededDraws(0, "t", "p", 0))
    return Passages(teacher, passages, passages)


def counting(folder: Path) -> None:
    """Make the preset a model that counts upwards: 80 steps on such texts."""
    body = HFCausal.load(
        "tiny-llama", {**presets.resolve("tiny-llama").params, "forward": "transformers"}, "fp32", "cpu"
    )
    model = body._net.model.train().requires_grad_(True)  # type: ignore[attr-defined]  # of transformers
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(80):
        texts = (torch.randint(30, (16, 1), generator=generator) + torch.arange(24)) % 30
        optimiser.zero_grad()
        model(input_ids=texts, labels=texts).loss.backward()
        optimiser.step()
    model.save_pretrained(folder / "counting")
    preset = f"adapter: hf_causal\nsource: {{folder: {folder / 'counting'}}}\nlicence: none\nnote: a test\n"
    (folder / "tiny-llama.yaml").write_text(preset)


@pytest.mark.usefixtures("unchecked")
class TestTraining:
    @pytest.mark.slow
    def test_an_adapter_learns_and_decodes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """On a model that counts upwards; the curve is a running mean over some twenty steps."""
        counting(tmp_path / "presets")
        monkeypatch.setattr(recipes, "passages_of", lambda backbone, plan: greedy(8))
        done = train("tiny", replace(RECIPE, rank=8, alpha=16, steps=60, rate=3e-2), tmp_path / "out", {})
        card = json.loads((done.folder / "card.json").read_text())
        assert done.finished and card["figures"]["windows"] == 8 * 5
        assert card["curve"][-1][1] < 0.85 * card["curve"][0][1]
        model = presets.load("tiny-llama", "fp32")

        def decoded(method: Method[Any]) -> Decode:
            run = open_run(model, lambda name: model, (0, 1), Sampling(0.0), 20, SeededDraws(0, "t", "p", 0))
            return decode(method, run)

        cross_regression, autoregressive = (
            decoded(CrossRegression(str(done.folder), horizon=4)),
            decoded(METHODS.get("autoregressive")()),
        )
        assert cross_regression.tokens == autoregressive.tokens == tuple(range(2, 22))

    def test_a_resumed_training_has_the_same_weights(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The replay buffer is in the checkpoint: two steps and two are four."""
        monkeypatch.setattr(recipes, "passages_of", lambda backbone, plan: greedy(3))
        four = replace(RECIPE, steps=4)
        train("tiny", four, tmp_path / "once", {})
        train("tiny", four, tmp_path / "twice", {}, minutes=0)
        train("tiny", four, tmp_path / "twice", {})
        name = "adapter_model.safetensors"
        assert (tmp_path / "once" / name).read_bytes() == (tmp_path / "twice" / name).read_bytes()

    @pytest.mark.parametrize("name", ["cross-regression-embedded-code", "cross-regression-smollm2-135m"])
    def test_recipes_are_named_after_their_backbones(self, name: str) -> None:
        recipe = RECIPES.get(name)
        assert (recipe.kind, f"cross-regression-{recipe.backbone}") == ("adapter", name)


@pytest.mark.slow
def test_algorithm_3_as_printed_has_one_window_of_16_after_each_prefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An example is a prefix of the text with what the model writes after it; the replay buffer has a row for each."""
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"a question of some length {n}"}) + "\n" for n in range(3)))
    plan = TaskPlan("prompts", {"file": str(file)}, dtype="fp32")
    settings = {"schedule": "printed", "steps": 1, "rank": 2, "data.prefixes": 4}
    recipe = general("cross-regression", "tiny:llama2-7b", plan, settings)
    model = recipe.build({})
    assert model.train_on and all(len(roots(passage, 16)) == 1 for passage in model.train_on)
    text = model.adapted.backbone.encode("a question of some length 0")
    starts = {passage.start for passage in model.train_on}
    assert len(starts) > 2 and max(starts) <= len(text)
    assert all(list(p.tokens[: p.start]) == text[: p.start] or p.start == len(text) for p in model.train_on)
    before = model.replay.clone()
    assert before.shape[1] == 16 and len(before) == len(model.train_on)
    recipe.loss(model, 0, np.random.default_rng(0)).backward()
    assert not torch.equal(before, model.replay)
