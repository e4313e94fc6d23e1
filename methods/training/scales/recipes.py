"""The samplers of MuLo-SD for emoji scenes: `stride train samplers mulo-2x`.

Source: MuLo-SD, supplement 7, eq. 9: squared error + LPIPS + commitment + 0.25 GAN. The GAN term starts after 2/15 of
the steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from harness.registry import RECIPES
from harness.synthetic import emoji
from harness.train.loop import Recipe, round_to_bf16, save_bf16
from methods.drafters.scales.net import Pair, Shape
from methods.training.scales.figures import figures
from methods.training.scales.losses import Resampled, Weights, equation_9, new_critic, perceptual
from methods.training.scales.samplers_in_training import Frozen, Training, resample
from methods.training.scales.scenes import SIZES, encoded

TOKENIZER = "emoji-vq"
FACTOR = 2
CHECKED = 600
"""Held-out scenes of the figures."""
BANDS = 0.5
"""Share of steps on a few rows of the picture: a decoder samples bands of rows."""
CRITIC_SCALE = 5 / 3
"""Learning rate of the discriminators as a multiple of the samplers'."""


@dataclass(frozen=True, kw_only=True)
class MuLoSamplers(Recipe):
    """U_r and D_r together, on scenes drawn at both sizes and encoded by one tokenizer.

    The paper trains 20 M parameters for 150,000 steps of 32 pictures at a rate of 3e-4. These samplers have 0.8 M
    parameters and 400 steps.

    Args:
        batch: scenes of a step.
        width: of the nets.
        blocks: of the nets.
        pixel: weight of the squared error of pixels; the squared error of vectors has weight 1.
        commit: weight of the commitment.
        lpips: weight of LPIPS, which needs the package ``lpips``.
        gan: weight of the GAN term.
        gan_from: share of the steps before the GAN term starts.
    """

    summary: str
    batch: int = 32
    width: int = 128
    blocks: int = 4
    pixel: float = 1.0
    commit: float = 1.0
    lpips: float = 0.0
    gan: float = 0.0
    gan_from: float = 2 / 15
    steps: int = 400
    hours: float = 0.4
    rate: float = 2e-3

    kind = "samplers"
    source = "harness.synthetic.emoji, from Noto Color Emoji (SIL OFL 1.1), and emoji-vq"
    requires = (TOKENIZER,)
    fall = 0.8
    decay = 0.01
    average = 0.995

    def build(self, requirements: Mapping[str, Path]) -> Training:
        """New samplers, which equal the untrained control.

        Raises:
            UsageError: LPIPS has a weight and cannot be computed on this machine.
        """
        tokenizer = RECIPES.get(TOKENIZER).load(requirements[TOKENIZER]).requires_grad_(False)
        book: Tensor = tokenizer.codebook
        pair = Pair(Shape(FACTOR, len(book), book.shape[1], self.width, self.blocks))
        pair.codebook.copy_(book)
        critics = nn.ModuleDict({name: new_critic() for name in SIZES} if self.gan else {})
        model = Training(pair, critics, Frozen(tokenizer, perceptual() if self.lpips else None))
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the stubs lack it
        return model

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """The usual groups for the samplers; the discriminators have a higher rate."""
        assert isinstance(model, Training)
        critics = {"params": list(model.critics.parameters()), "weight_decay": 0.0, "scale": CRITIC_SCALE}
        return super().groups(model.pair) + [critics] * bool(model.critics)

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        assert isinstance(model, Training)
        drawn = [emoji.scene(random, "train") for _ in range(self.batch)]
        scales = encoded(model.frozen.tokenizer, drawn)
        rows = slice(0, scales["down"].ids.shape[1])
        if random.random() < BANDS:
            first, last = sorted(random.choice(rows.stop + 1, 2, replace=False).tolist())
            rows = slice(first, last)
        total = torch.zeros(())
        for name, other in (("up", "down"), ("down", "up")):
            resampled = resample(model, name, scales[other].band(rows), scales[name].band(rows))
            total = total + self.terms(model, name, resampled, step)
        return total

    def terms(self, model: Training, direction: str, resampled: Resampled, step: int) -> Tensor:
        """Eq. 9, and the loss of the discriminator."""
        critic = model.critics[direction] if self.gan and step >= self.gan_from * self.steps else None
        weights = Weights(self.pixel, self.commit, self.lpips, self.gan)
        return equation_9(weights, model.pair.codebook, resampled, model.frozen.lpips, critic)

    def export(self, model: nn.Module, folder: Path) -> None:
        assert isinstance(model, Training)
        round_to_bf16(model.pair.state_dict().values())
        save_bf16(model.pair, folder)
        model.pair.write_config(folder)

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
