"""MuLo-SD's samplers for any model of pictures: `stride train mulo-2x --backbone tar-1.5b --data FOLDER`.

Source: MuLo-SD, supplement 7: eq. 9, and the 4x samplers, which start from the 2x ones and have more convolutions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn import functional

from harness.errors import UsageError
from harness.registry import GENERAL_RECIPES
from harness.train.loop import Recipe, round_to_bf16, save_bf16
from harness.train.passages import AnyPlan, Plan, passages_of
from harness.train.pictures import PicturePlan, side_of_pictures, signed, square
from harness.train.teacher import Teacher
from methods.drafters.scales.net import Pair, Shape
from methods.drafters.scales.samplers import Samplers
from methods.training.scales.losses import Weights, equation_9, new_critic, perceptual
from methods.training.scales.samplers_in_training import Frozen, Training, resample
from methods.training.scales.scenes import Scale

DIRECTIONS = ("up", "down")
BANDS = 0.5
"""Share of steps on a few rows of the picture, because a decoder samples bands of rows; none with a discriminator."""
CRITIC_SCALE = 5 / 3
"""Learning rate of the discriminators as a multiple of the samplers': 5e-4 to 3e-4."""

PAPER: Mapping[str, float] = MappingProxyType(
    {"steps": 150_000.0, "batch": 32.0, "rate": 3e-4, "lpips": 1.0, "gan": 0.25, "width": 960.0, "hours": 1e5}
)
"""The schedule of the 2x samplers, which have 20 M parameters each."""

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
        return self._place[self._tokenizer.encode(pictures)]

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
        teacher, sides = _sides(self.backbone, self.plan)
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
        scales = self._scales(model, [train[int(number)]() for number in chosen])
        rows = slice(0, scales["down"].ids.shape[1])
        if random.random() < BANDS and not self.gan:
            first, last = sorted(random.choice(rows.stop + 1, 2, replace=False).tolist())
            rows = slice(first, last)
        began = step >= self.gan_from * self.steps
        weights = Weights(self.pixel, self.commit, self.lpips, self.gan)
        total = torch.zeros((), device=model.pair.codebook.device)
        for name, other in (("up", "down"), ("down", "up")):
            resampled = resample(
                model, name, self._band(scales[other], rows, other), self._band(scales[name], rows, name)
            )
            critic = model.critics[name] if self.gan and began else None
            total = total + equation_9(weights, model.pair.codebook, resampled, model.frozen.lpips, critic)
        return total

    def _scales(self, model: PictureTraining, pictures: list[UInt8[np.ndarray, "S S 3"]]) -> dict[str, Scale]:
        """Pictures at the size that each direction produces."""
        large = torch.from_numpy(np.stack(pictures)).to(model.pair.codebook.device)
        pixels = signed(large)
        small = functional.interpolate(pixels, scale_factor=1 / self.factor, mode="area")
        as_bytes = ((small.permute(0, 2, 3, 1) + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
        encode = model.frozen.tokenizer.encode
        return {"up": Scale(pixels, encode(large)), "down": Scale(small, encode(as_bytes))}

    def _band(self, scale: Scale, rows: slice, name: str) -> Scale:
        """The part of pictures that some rows of the small scale's tokens cover."""
        times = self.factor if name == "up" else 1
        cell = scale.pixels.shape[2] // scale.ids.shape[1]
        first, last = rows.start * times, rows.stop * times
        return Scale(scale.pixels[:, :, cell * first : cell * last], scale.ids[:, first:last])

    def export(self, model: nn.Module, folder: Path) -> None:
        assert isinstance(model, Training)
        round_to_bf16(model.pair.state_dict().values())
        save_bf16(model.pair, folder)
        model.pair.write_config(folder)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """``{direction}_same``: held-out tokens that equal the real ones; ``_untrained``: of the untrained control."""
        assert isinstance(model, PictureTraining)
        scales = self._scales(model, [draw() for draw in model.sides.development])
        book = model.pair.codebook
        shares = {}
        for suffix, samplers in (
            ("", Samplers.of(model.pair, book)),
            ("_untrained", Samplers.untrained("bilinear", book, self.factor)),
        ):
            for name, other, change in (("up", "down", samplers.up), ("down", "up", samplers.down)):
                made = torch.stack([change(ids) for ids in scales[other].ids])
                shares[f"{name}_same{suffix}"] = float((made == scales[name].ids).float().mean())
        return shares | {"pictures": float(len(model.sides.development))}


def _sides(backbone: str, plan: Plan | AnyPlan) -> tuple[Teacher, Sides]:
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


GENERAL_RECIPES.register("mulo-2x")(
    AnySamplers(
        summary="samplers of MuLo-SD between a model's pictures and those of half the side",
        backbone="",
        plan=Plan("scenes"),
    )
)
GENERAL_RECIPES.register("mulo-4x")(
    AnySamplers(
        summary="samplers of MuLo-SD between a model's pictures and those of a quarter of the side, from mulo-2x",
        backbone="",
        plan=Plan("scenes"),
        factor=4,
        more=2,
        requires=("mulo-2x",),
        batch=2,
        paper={**PAPER, "batch": 8.0},
    )
)
