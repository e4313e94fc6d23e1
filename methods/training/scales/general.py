"""Recipes of MuLo-SD's samplers for any model of pictures: `stride train mulo-2x --backbone tar-1.5b --data FOLDER`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.errors import UsageError
from stridebench.harness.registry import GENERAL_RECIPES
from stridebench.harness.train.passages import AnyPlan, PassagePlan, passages_of
from stridebench.harness.train.pictures import PicturePlan, side_of_pictures, signed, square
from stridebench.harness.train.teacher import Teacher
from stridebench.methods.drafters.scales import Pair, Samplers, SamplerShape
from stridebench.methods.training.scales.samplers_recipe import (
    BANDS,
    Frozen,
    SamplersRecipe,
    SamplerTraining,
    Scale,
    band,
    perceptual,
)

# Pictures that MuLo-SD's samplers learn from: their source, and both of their sizes.


Draw = Callable[[], UInt8[np.ndarray, "S S 3"]]


class InOrder:
    """A backbone's tokenizer whose codes count as its codebook in decoding does, by ascending id."""

    def __init__(self, backbone: Any) -> None:
        self._tokenizer = backbone.tokenizer()
        self._code = backbone.picture_ids().argsort().to(backbone.device)
        self._place = self._code.argsort()
        self.factor = int(self._tokenizer.factor)
        self.codebook: Float[Tensor, "K C"] = self._tokenizer.codebook.float()[self._code]

    def encode(self, pictures: UInt8[Tensor, "B H W 3"]) -> Int[Tensor, "B h w"]:
        """Codes of pictures."""
        places: Tensor = self._place[self._tokenizer.encode(pictures)]
        return places

    def paint(self, codes: Float[Tensor, "B h w C"]) -> Float[Tensor, "B 3 H W"]:
        """Pixels of vectors."""
        painted: Tensor = self._tokenizer.paint(codes)
        return painted


class PictureSides(NamedTuple):
    """Pictures to train on and to check on, read when they are asked for."""

    train: Sequence[Draw]
    development: Sequence[Draw]


class PictureTraining(SamplerTraining):
    """Samplers in training, with the pictures that they learn from."""

    sides: PictureSides
    side: int


def picture_sides(backbone: str, plan: PassagePlan | AnyPlan) -> tuple[Teacher, PictureSides]:
    """The backbone, and its pictures on both sides."""
    if isinstance(plan, PicturePlan):
        teacher = Teacher.load(backbone, plan.dtype, plan.device)
        side = side_of_pictures(teacher)
        files = [[partial(square, picture.file, side) for picture in pictures] for pictures in plan.sides()]
        return teacher, PictureSides(*files)
    passages = passages_of(backbone, plan)
    drawn = [
        [partial(_pixels, passages.teacher.backbone, passage.tokens[passage.start :]) for passage in side]
        for side in (passages.train, passages.development)
    ]
    return passages.teacher, PictureSides(*drawn)


def _pixels(backbone: Any, tokens: Sequence[int]) -> UInt8[np.ndarray, "S S 3"]:
    return np.asarray(backbone.decode(tokens).pixels)


def scales(model: PictureTraining, pictures: list[UInt8[np.ndarray, "S S 3"]]) -> dict[str, Scale]:
    """Pictures at the size that each direction produces."""
    large = torch.from_numpy(np.stack(pictures)).to(model.pair.codebook.device)
    pixels = signed(large)
    small = functional.interpolate(pixels, scale_factor=1 / model.pair.shape.factor, mode="area")
    as_bytes = ((small.permute(0, 2, 3, 1) + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
    encode = model.frozen.tokenizer.encode
    return {"up": Scale(pixels, encode(large)), "down": Scale(small, encode(as_bytes))}


def same_tokens(model: PictureTraining) -> dict[str, float]:
    """``{direction}_same``: held-out tokens that equal the real ones; ``_untrained``: of the untrained control."""
    held_out = scales(model, [draw() for draw in model.sides.development])
    book = model.pair.codebook
    shares = {}
    for suffix, samplers in (
        ("", Samplers.of(model.pair, book)),
        ("_untrained", Samplers.untrained("bilinear", book, model.pair.shape.factor)),
    ):
        for name, other, change in (("up", "down", samplers.up), ("down", "up", samplers.down)):
            made = torch.stack([change(ids) for ids in held_out[other].ids])
            shares[f"{name}_same{suffix}"] = float((made == held_out[name].ids).float().mean())
    return shares | {"pictures": float(len(model.sides.development))}


# MuLo-SD's samplers for any model of pictures: `stride train mulo-2x --backbone tar-1.5b --data FOLDER`.
# Source: MuLo-SD, supplement 7: eq. 9, and the 4x samplers, which start from the 2x ones and have more convolutions.


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
        more: see `SamplerShape`; the 4x samplers have 30 M parameters and the 2x ones 20 M.
        requires: the samplers to start from, if any.
        Others: see `SamplersRecipe`.
    """

    summary: str
    backbone: str
    plan: PassagePlan | AnyPlan
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
        """New samplers, which equal the untrained control; those of two stages start from ``requires``."""
        teacher, sides = picture_sides(self.backbone, self.plan)
        side, tokenizer = side_of_pictures(teacher), InOrder(teacher.backbone)
        cells = side // tokenizer.factor
        if side % (self.factor * tokenizer.factor) or cells < 2 * self.factor:
            raise UsageError(
                f"pictures of {self.backbone} have {cells} cells a side, which {self.factor} does not divide into two "
                f"or more; choose another factor"
            )
        book = tokenizer.codebook
        pair = Pair(SamplerShape(self.factor, len(book), book.shape[1], self.width, self.blocks, self.more))
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
        """See `same_tokens`."""
        assert isinstance(model, PictureTraining)
        return same_tokens(model)


GENERAL_RECIPES.register("mulo-2x")(
    AnySamplers(
        summary="samplers of MuLo-SD between a model's pictures and those of half the side",
        backbone="",
        plan=PassagePlan("scenes"),
    )
)
GENERAL_RECIPES.register("mulo-4x")(
    AnySamplers(
        summary="samplers of MuLo-SD between a model's pictures and those of a quarter of the side, from mulo-2x",
        backbone="",
        plan=PassagePlan("scenes"),
        factor=4,
        more=2,
        requires=("mulo-2x",),
        batch=2,
        paper={**PAPER, "batch": 8.0},
    )
)
