"""Models of handwritten digits, a token a pixel: `stride train backbone digits-s` and `digits-l`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from stridebench.harness.backbones.image.adapter import PictureLayout
from stridebench.harness.registry import RECIPES
from stridebench.harness.synthetic import digits
from stridebench.harness.train.backbones.decoder import TrainableDecoder
from stridebench.harness.train.backbones.image_recipe import (
    NATS_PER_BIT,
    PictureBatch,
    PictureRecipe,
    nats,
    nearest,
    sample,
)

LAYOUT = PictureLayout(digits.SIDE, digits.SIDE, digits.LEVELS, digits.VOCABULARY)
CHECKED = 200
"""Pictures that are drawn for the figures on memorising."""


@dataclass(frozen=True, kw_only=True)
class DigitRecipe(PictureRecipe):
    """Real digits, captioned with their class. A share of ``moved`` is shifted by a pixel, against memorising."""

    moved: float = 0.5

    source = "scikit-learn digits (UCI, CC BY 4.0)"

    @property
    def layout(self) -> PictureLayout:
        return LAYOUT

    def draw(self, model: nn.Module, step: int, random: np.random.Generator) -> PictureBatch:
        train = digits.load("train")
        chosen = random.integers(len(train.labels), size=self.batch)
        levels = train.levels[chosen].copy()
        for row in np.flatnonzero(random.random(self.batch) < self.moved):
            levels[row] = _moved(levels[row], int(random.integers(2)), int(random.choice((-1, 1))))
        return PictureBatch([digits.caption(int(label)) for label in train.labels[chosen]], _cells(levels))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        assert isinstance(model, TrainableDecoder)
        train, held_out = digits.load("train"), digits.load("held-out")
        cells = {"train": _cells(train.levels[: len(held_out.labels)]), "held_out": _cells(held_out.levels)}
        labels = {"train": train.labels[: len(held_out.labels)], "held_out": held_out.labels}
        bits = {
            f"bits_{name}": float(
                nats(model, LAYOUT, PictureBatch([digits.caption(c) for c in labels[name]], x)).mean() / NATS_PER_BIT
            )
            for name, x in cells.items()
        }
        captions = [digits.caption(index % digits.CLASSES) for index in range(CHECKED)]
        drawn = sample(model, LAYOUT, captions, np.random.default_rng(0))
        real = _cells(train.levels).float()
        near, usual = nearest(drawn.float(), real), nearest(_cells(held_out.levels).float(), real)
        copies = float((near == 0).float().mean())
        return {**bits, "copies": copies, "nearest_drawn": float(near.mean()), "nearest_held_out": float(usual.mean())}


def _cells(levels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> Tensor:
    return torch.from_numpy(levels.reshape(len(levels), -1).astype(np.int64))


def _moved(
    levels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], axis: int, by: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Shift a picture by a pixel if the line that leaves it is empty; return it unchanged otherwise."""
    leaving = levels.take(-1 if by > 0 else 0, axis)
    return np.roll(levels, by, axis) if leaving.max() == 0 else levels


SMALL = DigitRecipe(
    summary="digits of 8x8 pixels, a token a pixel, 0.34 M parameters",
    width=96,
    inner=256,
    layers=3,
    heads=3,
    context=256,
    batch=64,
    dropout=0.15,
    steps=900,
    hours=0.5,
    rate=3e-3,
    average=0.99,
)
RECIPES.register("digits-s")(SMALL)
RECIPES.register("digits-l")(
    replace(
        SMALL,
        summary="digits of 8x8 pixels, a token a pixel, 1.2 M parameters",
        width=160,
        inner=416,
        layers=4,
        heads=5,
        dropout=0.2,
        steps=1000,
        hours=1.0,
        rate=2e-3,
    )
)
