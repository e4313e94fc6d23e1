"""MuLo-SD's samplers for any model of pictures: `stride train mulo-2x --backbone tar-1.5b --data FOLDER`.

Source: MuLo-SD, supplement 7: eq. 9, and the 4x samplers, which start from the 2x ones and have more convolutions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from harness.errors import UsageError
from harness.train.loop import Recipe, round_to_bf16, save_bf16
from harness.train.passages import AnyPlan, Plan
from harness.train.pictures import side_of_pictures
from methods.drafters.scales.net import Pair, Shape
from methods.training.scales.losses import Weights, equation_9, new_critic, perceptual
from methods.training.scales.pictures_in_training import (
    InOrder,
    PictureTraining,
    band,
    picture_sides,
    same_tokens,
    scales,
)
from methods.training.scales.samplers_in_training import Frozen, Training, resample

DIRECTIONS = ("up", "down")
BANDS = 0.5
"""Share of steps on a few rows of the picture, because a decoder samples bands of rows; none with a discriminator."""
CRITIC_SCALE = 5 / 3
"""Learning rate of the discriminators as a multiple of the samplers': 5e-4 to 3e-4."""

PAPER: Mapping[str, float] = MappingProxyType(
    {"steps": 150_000.0, "batch": 32.0, "rate": 3e-4, "lpips": 1.0, "gan": 0.25, "width": 960.0, "hours": 1e5}
)
"""The schedule of the 2x samplers, which have 20 M parameters each."""


@dataclass(frozen=True, kw_only=True)
class AnySamplers(Recipe):
    """U_r and D_r together, on pictures of a folder or on those that the backbone draws after prompts.

    A picture is read at the backbone's size and at 1/r of it; the backbone's tokenizer encodes both. The samplers fit
    every backbone of that tokenizer.

    Args:
        backbone: the target; its pictures are the larger ones.
        plan: a folder of pictures, or prompts.
        factor: r.
        more: see `Shape`; the 4x samplers have 30 M parameters where the 2x ones have 20 M.
        batch: pictures of a step.
        Others: see `methods.training.scales.recipes.MuLoSamplers`.
    """

    summary: str
    backbone: str
    plan: Plan | AnyPlan
    factor: int = 2
    more: int = 0
    batch: int = 8
    width: int = 128
    blocks: int = 4
    pixel: float = 1.0
    commit: float = 1.0
    lpips: float = 0.0
    gan: float = 0.0
    gan_from: float = 2 / 15
    steps: int = 400
    hours: float = 2.0
    rate: float = 1e-3
    device: str = "cpu"
    requires: tuple[str, ...] = ()
    paper: Mapping[str, float] = field(default_factory=lambda: PAPER)

    kind = "samplers"
    source = "pictures of the user, or of the backbone itself"
    per_step = "batch"
    fall = 0.8
    decay = 0.01
    average = 0.995

    def build(self, requirements: Mapping[str, Path]) -> PictureTraining:
        """New samplers, which equal the untrained control; those of two stages start from ``requires``.

        Raises:
            UsageError: the backbone has no encoder, r does not divide its pictures, or LPIPS cannot be computed.
            WeightsError: the backbone's weights cannot be had, or the samplers to start from do not fit.
        """
        teacher, sides = picture_sides(self.backbone, self.plan)
        side, tokenizer = side_of_pictures(teacher), InOrder(teacher.backbone)
        if side % (self.factor * tokenizer.factor):
            raise UsageError(
                f"pictures of {self.backbone} have {side // tokenizer.factor} cells a side, which {self.factor} does "
                f"not divide; choose another factor"
            )
        book = tokenizer.codebook
        pair = Pair(Shape(self.factor, len(book), book.shape[1], self.width, self.blocks, self.more))
        if self.requires:
            pair.warm_start(Pair.load(requirements[self.requires[0]]))
        pair.codebook.copy_(book)
        critics = nn.ModuleDict({name: new_critic() for name in DIRECTIONS} if self.gan else {})
        model = PictureTraining(pair, critics, Frozen(tokenizer, perceptual() if self.lpips else None))
        model.sides, model.side = sides, side
        return model

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """The usual groups for the samplers; the discriminators have a higher rate."""
        assert isinstance(model, Training)
        critics = {"params": list(model.critics.parameters()), "weight_decay": 0.0, "scale": CRITIC_SCALE}
        return super().groups(model.pair) + [critics] * bool(model.critics)

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        assert isinstance(model, PictureTraining)
        train = model.sides.train
        chosen = random.choice(len(train), size=min(self.batch, len(train)), replace=False)
        both = scales(model, [train[int(number)]() for number in chosen])
        rows = slice(0, both["down"].ids.shape[1])
        if random.random() < BANDS and not self.gan:
            first, last = sorted(random.choice(rows.stop + 1, 2, replace=False).tolist())
            rows = slice(first, last)
        began = step >= self.gan_from * self.steps
        weights = Weights(self.pixel, self.commit, self.lpips, self.gan)
        total = torch.zeros((), device=model.pair.codebook.device)
        for name, other in (("up", "down"), ("down", "up")):
            read, produced = (band(both[key], rows, self.factor if key == "up" else 1) for key in (other, name))
            resampled = resample(model, name, read, produced)
            critic = model.critics[name] if self.gan and began else None
            total = total + equation_9(weights, model.pair.codebook, resampled, model.frozen.lpips, critic)
        return total

    def export(self, model: nn.Module, folder: Path) -> None:
        assert isinstance(model, Training)
        round_to_bf16(model.pair.state_dict().values())
        save_bf16(model.pair, folder)
        model.pair.write_config(folder)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """See `pictures_in_training.same_tokens`."""
        assert isinstance(model, PictureTraining)
        return same_tokens(model)
