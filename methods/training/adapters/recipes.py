"""Adapters of Cross-Regression: `stride train adapter cross-regression-embedded-code`.

Source: Abulkhanov et al., Cross-Regression, Algorithm 3, appendix D and Table 6.
Rows of the text do not use the adapter and rows of windows do, as in the joint layout of decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stridebench.harness.registry import GENERAL_RECIPES, RECIPES
from stridebench.harness.train.gated_lora import GatedLora, Place
from stridebench.harness.train.loop import Recipe, round_to_bf16
from stridebench.harness.train.passages import AnyPlan, Plan, passages_of
from stridebench.harness.train.precision import autocast
from stridebench.methods.training.adapters.controls import development_figures
from stridebench.methods.training.adapters.denoising import Denoising
from stridebench.methods.training.adapters.recordings import Recordings, transcribed


@dataclass(frozen=True, kw_only=True)
class TrainAdapter(Recipe):
    """Denoise windows of the backbone's own passages; only the low-rank matrices learn.

    Args:
        backbone: a preset.
        plan: of its passages, or of recordings that it transcribes.
        rank: of the matrices.
        alpha: their product is scaled by alpha / rank.
        width: w, the tokens of a window.
        hop: see `Denoising`.
        least: see `passage_windows.noised`.
        layers: first and last layer with matrices (Table 16); None: all.
        batch: passages of a step.
        device: that the adapter of a language model learns on; its frozen model is in the type of the plan there.
    """

    summary: str
    backbone: str
    plan: Plan | AnyPlan | Recordings
    rank: int = 32
    alpha: int = 64
    width: int = 16
    hop: int = 0
    least: float = 0.0
    layers: tuple[int, int] | None = None
    batch: int = 4
    device: str = "cpu"

    kind = "adapter"
    source: str = "passages of the backbone itself, drawn with a fixed seed"
    steps: int = 600
    hours: float = 0.5
    rate: float = 5e-4
    warmup: int = 18
    per_step = "batch"
    paper = MappingProxyType({"epochs": 20, "batch": 8, "rate": 5e-4, "warmup_share": 0.03, "hours": 1e4})
    printed = MappingProxyType(
        {**paper, "width": 16, "hop": 0, "least": 0.0}
        | {"data.new": 16, "data.prefixes": 8, "data.longest": 2048, "data.temperature": 0.0}
    )
    fall = 0.97
    decay = 0.0
    betas = (0.9, 0.999)

    def build(self, requirements: Mapping[str, Path]) -> nn.Module:
        """A new adapter. Generates the backbone's passages first where the cache holds none.

        Raises:
            WeightsError: the backbone's weights cannot be had.
            UsageError: the backbone is not of the adapter hf_causal or whisper, there are no recordings, or a Whisper
                is to learn on a GPU.
        """
        plan = self.plan
        place = Place(self.device, "fp32" if self.device == "cpu" else str(getattr(plan, "dtype", "bf16")))
        adapted = GatedLora(self.backbone, self.rank, self.alpha, self.layers, place)
        sides = transcribed(adapted.frozen, plan) if isinstance(plan, Recordings) else passages_of(self.backbone, plan)
        return Denoising(adapted, sides.train, sides.development, self.width, self.hop, self.least)

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        assert isinstance(model, Denoising)
        device = model.adapted.device
        total = torch.zeros((), device=device)
        for chosen in random.choice(len(model.train_on), size=min(self.batch, len(model.train_on)), replace=False):
            with autocast(device=device.type):
                total = total + model.denoised(int(chosen), random)
        return total / self.batch

    def export(self, model: nn.Module, folder: Path) -> None:
        assert isinstance(model, Denoising)
        round_to_bf16(model.adapted.parameters())
        model.adapted.export(folder)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """See `controls.development_figures`."""
        assert isinstance(model, Denoising)
        return development_figures(model)


PLACEHOLDERS: dict[str, Any] = {"width": 8, "hop": 4, "least": 1.0}
"""Settings of adapters for ``redraft=placeholders``: few slots, whose rows read random ids."""
GENERAL_RECIPES.register("cross-regression")(
    TrainAdapter(summary="adapter of a language model or a Whisper, as in Algorithm 3", backbone="", plan=Plan("text"))
)
RECIPES.register("cross-regression-embedded-code")(
    TrainAdapter(
        summary="adapter of embedded-code for cross_regression",
        backbone="embedded-code",
        plan=Plan("code", train=8, development=2, new=96),
        **PLACEHOLDERS,
        rate=1e-3,
        steps=800,
    )
)
RECIPES.register("cross-regression-smollm2-135m")(
    TrainAdapter(
        summary="adapter of smollm2-135m for cross_regression",
        backbone="smollm2-135m",
        plan=Plan("text", train=12, development=1),
        **PLACEHOLDERS,
        batch=1,
        steps=600,
        hours=2.0,
    )
)
RECIPES.register("cross-regression-whisper-base")(
    TrainAdapter(
        summary="adapter of whisper-base for cross_regression",
        backbone="whisper-base",
        plan=Recordings(),
        **PLACEHOLDERS,
        source="recordings that $STRIDE_RECORDINGS names, in LibriSpeech's folders, as the backbone writes them down",
        steps=600,
        hours=2.0,
    )
)
