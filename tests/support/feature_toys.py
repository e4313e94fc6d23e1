"""Feature drafters for tests: one that is the target, and nets of random weights for real backbones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch

from stridebench.harness.backbones.text.hf_causal import HFCausal
from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.cache import Cache, Rows, Window
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import Decode, decode, start
from stridebench.harness.core.method import Method
from stridebench.harness.core.run import Run, open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.session import Session
from stridebench.harness.registry import RECIPES
from stridebench.harness.train.passages import PassagePlan
from stridebench.harness.train.recipe import save_bf16
from stridebench.methods.drafters.eagle.net import FeatureDrafterNet
from stridebench.methods.drafters.eagle.published import FeatureNetShape
from stridebench.methods.training.eagle.recipes import FeatureRecipe

SIZES = {
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
}
PROMPT = (5, 9, 22, 31, 7)


class Oracle(Cache):
    """Reads the target's first token, then what a feature drafter reads, without the features: the target itself."""

    def __init__(self, inner: Cache, first: int) -> None:
        self.inner, self.first, self.opened = inner, first, False

    def extend(self, window: Window) -> Rows:
        if not self.opened:
            self.inner.extend(Window(torch.tensor([self.first]), torch.tensor([0]), 0, None, 0))
            self.opened = True
        moved = replace(window, positions=window.positions + 1, base=window.base + 1, features=None)
        return self.inner.extend(moved)

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        self.inner.keep(length + 1, entries)


def run_on(model: Backbone, sampling: Sampling, budget: int, prompt: Sequence[int] = PROMPT, seed: int = 0) -> Run:
    return open_run(
        model, lambda name: model.variant({"drafter": name}), prompt, sampling, budget, SeededDraws(seed, "t", "p", 0)
    )


def with_oracle(method: Method, sampling: Sampling, budget: int = 40) -> Decode:  # type: ignore[type-arg]
    """A decode whose drafter is the target."""
    model = Tabular("tabular", {"vocabulary": 5, "context": 200})
    run = run_on(model, sampling, budget, (0, 1, 2))

    def opener(name: str, make: object, tokens: Sequence[int]) -> Session:
        oracle = Oracle(model.cache(), 0)
        session = Session(oracle, model.capabilities, tokens, stopwatch=run.stopwatch, kind="draft")
        session.tap((-1,))
        return session

    run.models.features = opener  # type: ignore[method-assign]  # the oracle stands in for a trained drafter
    return decode(method, run)


def tiny(dtype: str = "fp64", seed: int = 1) -> HFCausal:
    source = {"random": {"model_type": "llama", "config": SIZES, "seed": seed}}
    return HFCausal.load("tiny", {"source": source}, dtype, "cpu")


def folder_for(model: Backbone, path: Path, **changes: object) -> str:
    """A drafter of random weights, as a folder."""
    fields = {
        "kind": "eagle1",
        "width": model.capabilities.width,
        "heads": 4,
        "kv_heads": 2,
        "inner": 32,
        "branches": model.capabilities.branches,
        "backbone": model.name,
        "fingerprint": model.fingerprint,
        **changes,
    }
    torch.manual_seed(0)
    net = FeatureDrafterNet(FeatureNetShape(**fields))  # type: ignore[arg-type]
    if net.shape.kept:
        net.ids.copy_(torch.arange(net.shape.kept) * 2)
    path.mkdir(parents=True, exist_ok=True)
    save_bf16(net, path)
    net.shape.write(path)
    return str(path)


def small_recipe(name: str, **changes: object) -> FeatureRecipe:
    """A recipe on few passages."""
    recipe = cast(FeatureRecipe, RECIPES.get(name))
    plan = PassagePlan("code", train=1, development=1, rows=8, new=24)
    return replace(recipe, plan=plan, rows=2, steps=20, warmup=2, rate=4e-3, **changes)  # type: ignore[arg-type]


def started(method: Method, run: Run):  # type: ignore[type-arg,no-untyped-def]
    """The state of a method on a run."""
    return start(method, run)
