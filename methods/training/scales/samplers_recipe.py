"""What the recipes of MuLo-SD's samplers share: settings of the loss, both directions of a step, and the export.

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

from stridebench.harness.train.loop import Recipe, round_to_bf16, save_bf16
from stridebench.methods.training.scales.losses import Resampled, Weights, equation_9, new_critic
from stridebench.methods.training.scales.samplers_in_training import Training, resample
from stridebench.methods.training.scales.scenes import Scale

DIRECTIONS = ("up", "down")
BANDS = 0.5
"""Share of steps on a few rows of the picture, because a decoder samples bands of rows."""
CRITIC_SCALE = 5 / 3
"""Learning rate of the discriminators as a multiple of the samplers': 5e-4 to 3e-4."""


@dataclass(frozen=True, kw_only=True)
class SamplersRecipe(Recipe):
    """U_r and D_r together.

    Args:
        batch: pictures of a step.
        width: of the nets.
        blocks: of the nets.
        pixel: weight of the squared error of pixels; the squared error of vectors has weight 1.
        commit: weight of the commitment.
        lpips: weight of LPIPS, which needs the package ``lpips``.
        gan: weight of the GAN term.
        gan_from: share of the steps before the GAN term starts.
    """

    summary: str
    batch: int
    width: int = 128
    blocks: int = 4
    pixel: float = 1.0
    commit: float = 1.0
    lpips: float = 0.0
    gan: float = 0.0
    gan_from: float = 2 / 15
    steps: int = 400

    kind = "samplers"
    fall = 0.8
    decay = 0.01
    average = 0.995

    def critics(self) -> nn.ModuleDict:
        """A new discriminator for each direction; none where the GAN term has no weight."""
        return nn.ModuleDict({name: new_critic() for name in DIRECTIONS} if self.gan else {})

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """The usual groups for the samplers; the discriminators have a higher rate."""
        assert isinstance(model, Training)
        critics = {"params": list(model.critics.parameters()), "weight_decay": 0.0, "scale": CRITIC_SCALE}
        return super().groups(model.pair) + [critics] * bool(model.critics)

    def both(self, model: Training, scales: Mapping[str, Scale], rows: slice, step: int) -> Tensor:
        """The loss of both directions on some rows of the small scale's tokens.

        Args:
            model: what is trained.
            scales: pictures at the size that each direction produces.
            rows: of the small scale's tokens.
            step: of the training.
        """
        parts = {"up": scales["up"].band(rows, model.pair.shape.factor), "down": scales["down"].band(rows, 1)}
        total = torch.zeros((), device=model.pair.codebook.device)
        for name, other in (DIRECTIONS, DIRECTIONS[::-1]):
            total = total + self.terms(model, name, resample(model, name, parts[other], parts[name]), step)
        return total

    def terms(self, model: Training, direction: str, resampled: Resampled, step: int) -> Tensor:
        """Eq. 9, and the loss of the discriminator."""
        critic = model.critics[direction] if self.gan and step >= self.gan_from * self.steps else None
        weights = Weights(self.pixel, self.commit, self.lpips, self.gan)
        return equation_9(weights, model.pair.codebook, resampled, model.frozen.lpips, critic)

    def export(self, model: nn.Module, folder: Path) -> None:
        """Write both samplers, rounded to bf16, so that the measured samplers are the exported ones."""
        assert isinstance(model, Training)
        round_to_bf16(model.pair.state_dict().values())
        save_bf16(model.pair, folder)
        model.pair.write_config(folder)


def band(count: int, random: np.random.Generator) -> slice:
    """Some rows of ``count``, at least one."""
    first, last = sorted(random.choice(count + 1, 2, replace=False).tolist())
    return slice(first, last)
