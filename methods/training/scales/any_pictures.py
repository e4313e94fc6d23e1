"""MuLo-SD's samplers for any model of pictures: `stride train mulo-2x --backbone tar-1.5b --data FOLDER`.

Source: MuLo-SD, supplement 7: eq. 9, and the 4x samplers, which start from the 2x ones and have more convolutions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np
from torch import Tensor, nn

from stridebench.harness.errors import UsageError
from stridebench.harness.train.passages import AnyPlan, Plan
from stridebench.harness.train.pictures import side_of_pictures
from stridebench.methods.drafters.scales.net import Pair, Shape
from stridebench.methods.training.scales.losses import perceptual
from stridebench.methods.training.scales.pictures_in_training import (
    InOrder,
    PictureTraining,
    picture_sides,
    same_tokens,
    scales,
)
from stridebench.methods.training.scales.samplers_in_training import Frozen
from stridebench.methods.training.scales.samplers_recipe import BANDS, SamplersRecipe, band

PAPER: Mapping[str, float] = MappingProxyType(
    {"steps": 150_000.0, "batch": 32.0, "rate": 3e-4, "lpips": 1.0, "gan": 0.25, "width": 960.0, "hours": 1e5}
)
"""The schedule of the 2x samplers, which have 20 M parameters each."""


@dataclass(frozen=True, kw_only=True)
class AnySamplers(SamplersRecipe):
    """U_r and D_r together, on pictures of a folder or on those that the backbone draws after prompts.

    A picture is read at the backbone's size and at 1/r of it; the backbone's tokenizer encodes both. The samplers fit
    every backbone of that tokenizer.

    Args:
        backbone: the target; its pictures are the larger ones.
        plan: a folder of pictures, or prompts.
        factor: r.
        more: see `Shape`; the 4x samplers have 30 M parameters where the 2x ones have 20 M.
        device: that the samplers learn on.
        requires: the samplers to start from, if any.
        paper: the paper's schedule.
        Others: see `SamplersRecipe`.
    """

    summary: str
    backbone: str
    plan: Plan | AnyPlan
    factor: int = 2
    more: int = 0
    batch: int = 8
    hours: float = 2.0
    rate: float = 1e-3
    device: str = "cpu"
    requires: tuple[str, ...] = ()
    paper: Mapping[str, float] = field(default_factory=lambda: PAPER)

    source = "pictures of the user, or of the backbone itself"
    per_step = "batch"

    def build(self, requirements: Mapping[str, Path]) -> PictureTraining:
        """New samplers, which equal the untrained control; those of two stages start from ``requires``.

        Raises:
            UsageError: the backbone has no encoder, r does not divide its pictures, or LPIPS cannot be computed.
            WeightsError: the backbone's weights cannot be had, or the samplers to start from do not fit.
        """
        teacher, sides = picture_sides(self.backbone, self.plan)
        side, tokenizer = side_of_pictures(teacher), InOrder(teacher.backbone)
        cells = side // tokenizer.factor
        if side % (self.factor * tokenizer.factor) or cells < 2 * self.factor:
            raise UsageError(
                f"pictures of {self.backbone} have {cells} cells a side, which {self.factor} does not divide into two "
                f"or more; choose another factor"
            )
        book = tokenizer.codebook
        pair = Pair(Shape(self.factor, len(book), book.shape[1], self.width, self.blocks, self.more))
        if self.requires:
            pair.warm_start(Pair.load(requirements[self.requires[0]]))
        pair.codebook.copy_(book)
        model = PictureTraining(pair, self.critics(), Frozen(tokenizer, perceptual() if self.lpips else None))
        model.sides, model.side = sides, side
        return model

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        """Of whole pictures with a discriminator, which cannot read a few rows of small ones."""
        assert isinstance(model, PictureTraining)
        train = model.sides.train
        chosen = random.choice(len(train), size=min(self.batch, len(train)), replace=False)
        both = scales(model, [train[int(number)]() for number in chosen])
        count = both["down"].ids.shape[1]
        rows = band(count, random) if random.random() < BANDS and not self.gan else slice(0, count)
        return self.both(model, both, rows, step)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """See `pictures_in_training.same_tokens`."""
        assert isinstance(model, PictureTraining)
        return same_tokens(model)
