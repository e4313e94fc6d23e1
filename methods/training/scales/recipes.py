"""The samplers of MuLo-SD for emoji scenes: `stride train samplers mulo-2x`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from stridebench.harness.registry import RECIPES
from stridebench.harness.synthetic import emoji
from stridebench.methods.drafters.scales.net import Pair, Shape
from stridebench.methods.training.scales.figures import figures
from stridebench.methods.training.scales.losses import perceptual
from stridebench.methods.training.scales.samplers_in_training import Frozen, Training
from stridebench.methods.training.scales.samplers_recipe import BANDS, SamplersRecipe, band
from stridebench.methods.training.scales.scenes import encoded

TOKENIZER = "emoji-vq"
FACTOR = 2
CHECKED = 600
"""Held-out scenes of the figures."""


@dataclass(frozen=True, kw_only=True)
class MuLoSamplers(SamplersRecipe):
    """U_r and D_r together, on scenes drawn at both sizes and encoded by one tokenizer.

    The paper trains 20 M parameters for 150,000 steps of 32 pictures at a rate of 3e-4. These samplers have 0.8 M
    parameters and 400 steps.
    """

    batch: int = 32
    hours: float = 0.4
    rate: float = 2e-3

    source = "stridebench.harness.synthetic.emoji, from Noto Color Emoji (SIL OFL 1.1), and emoji-vq"
    requires = (TOKENIZER,)
    serves = ("embedded-image", "embedded-image-small")

    def build(self, requirements: Mapping[str, Path]) -> Training:
        """New samplers, which equal the untrained control.

        Raises:
            UsageError: LPIPS has a weight and cannot be computed on this machine.
        """
        tokenizer = RECIPES.get(TOKENIZER).load(requirements[TOKENIZER]).requires_grad_(False)
        book: Tensor = tokenizer.codebook
        pair = Pair(Shape(FACTOR, len(book), book.shape[1], self.width, self.blocks))
        pair.codebook.copy_(book)
        model = Training(pair, self.critics(), Frozen(tokenizer, perceptual() if self.lpips else None))
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the stubs lack it
        return model

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        assert isinstance(model, Training)
        scales = encoded(model.frozen.tokenizer, [emoji.scene(random, "train") for _ in range(self.batch)])
        count = scales["down"].ids.shape[1]
        rows = band(count, random) if random.random() < BANDS else slice(0, count)
        return self.both(model, scales, rows, step)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Figures on held-out scenes, with the untrained samplers and the tokenizer's ceiling; see `figures`."""
        assert isinstance(model, Training)
        return figures(model.pair, model.frozen.tokenizer, emoji.scenes(1, "held-out", CHECKED))


RECIPES.register("mulo-2x")(
    MuLoSamplers(summary="up- and down-sampler of MuLo-SD for emoji scenes, 8x8 and 16x16 tokens")
)
RECIPES.register("mulo-2x-gan")(
    MuLoSamplers(
        summary="the same with LPIPS and a discriminator, as published; needs lpips", lpips=1.0, gan=0.25, hours=1.5
    )
)
