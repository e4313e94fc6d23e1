"""Pictures that MuLo-SD's samplers learn from: where they come from, and both of their sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn import functional

from stridebench.harness.train.passages import AnyPlan, Plan, passages_of
from stridebench.harness.train.pictures import PicturePlan, side_of_pictures, signed, square
from stridebench.harness.train.teacher import Teacher
from stridebench.methods.drafters.scales.samplers import Samplers
from stridebench.methods.training.scales.samplers_in_training import Training
from stridebench.methods.training.scales.scenes import Scale

Draw = Callable[[], UInt8[np.ndarray, "S S 3"]]


class InOrder:
    """A backbone's tokenizer whose codes count as its codebook in decoding does, by ascending id.

    Args:
        backbone: with a tokenizer.
    """

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


class Sides(NamedTuple):
    """Pictures to train on and to check on, read when they are asked for."""

    train: Sequence[Draw]
    development: Sequence[Draw]


class PictureTraining(Training):
    """Samplers in training, with the pictures that they learn from."""

    sides: Sides
    side: int


def picture_sides(backbone: str, plan: Plan | AnyPlan) -> tuple[Teacher, Sides]:
    """The backbone, and its pictures on both sides."""
    if isinstance(plan, PicturePlan):
        teacher = Teacher.load(backbone, plan.dtype, plan.device)
        side = side_of_pictures(teacher)
        files = [[_file(picture.file, side) for picture in pictures] for pictures in plan.sides()]
        return teacher, Sides(*files)
    passages = passages_of(backbone, plan)
    drawn = [
        [_drawn(passages.teacher, passage.tokens[passage.start :]) for passage in side]
        for side in (passages.train, passages.development)
    ]
    return passages.teacher, Sides(*drawn)


def _file(path: Path, side: int) -> Draw:
    return lambda: square(path, side)


def _drawn(teacher: Teacher, tokens: Sequence[int]) -> Draw:
    backbone: Any = teacher.backbone
    return lambda: np.asarray(backbone.decode(tokens).pixels)


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
