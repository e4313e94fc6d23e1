"""Finds the objects of an emoji scene in a picture: a small convolutional net over the 16x16 lattice of its tokens.

An object is a peak of a heat map at its centre, as in Zhou et al. 2019, arXiv:1904.07850 (CenterNet), section 3; its
kind and colour are read there. How often it is right is in data/detector/card.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
import torch
from jaxtyping import Float, UInt8
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.errors import OutputError, WeightsError
from stridebench.harness.synthetic import emoji
from stridebench.tasks.metrics.geneval import DetectedObject
from stridebench.tasks.metrics.geneval import judge_attributes as judge

WEIGHTS = Path(__file__).parents[1] / "data" / "detector"
CELLS = 16
CELL = 4
"""Pixels a cell of the lattice."""
SIDE = 8 * emoji.SIDE
"""Pixels of an object, of 64."""
THRESHOLD = 0.5
WIDTH = 96
SPLIT = (1, len(emoji.KINDS), len(emoji.COLOURS))


class Detector(nn.Module):
    """Maps pictures of 64 pixels to logits on the lattice: heat, kind and colour."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.PixelUnshuffle(2),
            nn.Conv2d(12, 32, 3, padding=1),
            nn.GELU(),
            nn.PixelUnshuffle(2),
            nn.Conv2d(128, WIDTH, 1),
        )
        # An object is six cells wide, so some layers are dilated.
        self.blocks = nn.ModuleList(_Block(reach) for reach in (1, 2, 1, 2))
        self.head = nn.Conv2d(WIDTH, sum(SPLIT), 1)
        nn.init.zeros_(self.head.weight)
        nn.init.constant_(cast(Tensor, self.head.bias), -2.0)

    def forward(self, pixels: Float[Tensor, "B 3 64 64"]) -> Float[Tensor, "B 13 16 16"]:
        x = self.stem(pixels)
        for block in self.blocks:
            x = x + block(x)
        logits: Tensor = self.head(functional.gelu(x))
        return logits


class _Block(nn.Sequential):
    def __init__(self, reach: int) -> None:
        super().__init__(
            nn.GELU(),
            nn.Conv2d(WIDTH, WIDTH // 2, 3, padding=reach, dilation=reach),
            nn.GELU(),
            nn.Conv2d(WIDTH // 2, WIDTH, 1),
        )


def load(folder: Path = WEIGHTS) -> Detector:
    """Load the shipped detector, or another one."""
    path, model = folder / "model.safetensors", Detector()
    try:
        model.load_state_dict({key: value.float() for key, value in load_file(path).items()})
    except (OSError, SafetensorError, RuntimeError) as error:
        raise WeightsError(
            f"{path} is not a detector of emoji scenes ({error}). "
            f"Make it with `stride train scorer emoji-detector --out {folder}`"
        ) from error
    return model.eval()


@cache
def shipped() -> Detector:
    """Return the shipped detector, loaded once."""
    return load()


def prepare(pictures: UInt8[np.ndarray, "B H W 3"]) -> Float[Tensor, "B 3 64 64"]:
    """Convert pixels to the range -1 to 1; a picture of 32 pixels is doubled."""
    height, width = pictures.shape[1:3]
    if height != width or height not in emoji.SIZES:
        raise OutputError(
            f"a picture of {width}x{height} pixels cannot be scored: scenes are "
            f"{' or '.join(f'{size}x{size}' for size in emoji.SIZES)}"
        )
    large = pictures.repeat(64 // height, 1).repeat(64 // height, 2)
    return torch.from_numpy(large).permute(0, 3, 1, 2).float() / 127.5 - 1


@torch.no_grad()
def find(model: Detector, pictures: UInt8[np.ndarray, "B H W 3"]) -> list[list[DetectedObject]]:
    """Find the objects of each picture, in pixels of 64, most confident first."""
    heat, kind, colour = model(prepare(pictures)).float().split(SPLIT, 1)
    score = heat.sigmoid()[:, 0]
    # True centres are eight cells apart, so only the highest of two within two cells counts.
    peak = (score == functional.max_pool2d(score[:, None], 5, 1, 2)[:, 0]) & (score > THRESHOLD)
    detected: list[list[DetectedObject]] = [[] for _ in range(len(pictures))]
    attributes = zip(*(part.argmax(1)[peak].tolist() for part in (kind, colour)), strict=True)
    places = zip(peak.nonzero().tolist(), score[peak].tolist(), strict=True)
    for ((index, row, column), confidence), (kind_index, colour_index) in zip(places, attributes, strict=True):
        look = emoji.KINDS[kind_index], emoji.COLOURS[colour_index]
        detected[index].append(DetectedObject(*look, column * CELL, row * CELL, SIDE, confidence))
    return [sorted(objects, key=lambda thing: -thing.score) for objects in detected]


# The detector's accuracy: the objects of a scene, and which of them were detected.


NEAR = 4.0
"""Tolerance of a centre in pixels, of 64: one token."""


def truth(scene: emoji.EmojiScene) -> list[DetectedObject]:
    """Return the objects of a scene as a perfect detector would find them."""
    objects = []
    for thing in scene.things:
        x, y = (8 * corner + 4 * thing.side for corner in (thing.column, thing.row))
        objects.append(DetectedObject(thing.kind, thing.colour, x, y, 8 * thing.side))
    return objects


def exact(objects: Sequence[DetectedObject], scene: emoji.EmojiScene) -> dict[str, bool]:
    """Return whether the detected objects of a scene are right: kinds, numbers, colours, and centres within a cell."""
    real = truth(scene)
    nearest = [min(objects, key=lambda s: abs(s.x - o.x) + abs(s.y - o.y), default=None) for o in real]
    near = [s is not None and max(abs(s.x - o.x), abs(s.y - o.y)) <= NEAR for s, o in zip(nearest, real, strict=True)]
    return {
        "object": {s.kind for s in objects} == {o.kind for o in real},
        "count": sorted(s.kind for s in objects) == sorted(o.kind for o in real),
        "colour": sorted((s.kind, s.colour) for s in objects) == sorted((o.kind, o.colour) for o in real),
        "position": all(near)
        and all(s is not None and s.kind == o.kind for s, o in zip(nearest, real, strict=True))
        and len(objects) == len(real),
    }


def shares(detected: Sequence[Sequence[DetectedObject]], scenes: Sequence[emoji.EmojiScene]) -> dict[str, float]:
    """Return shares of exactly detected scenes by aspect, and as ``asked_...`` of scenes that match their prompt."""
    right: dict[str, list[float]] = {}
    for objects, scene in zip(detected, scenes, strict=True):
        judged = {f"asked_{name}": score for name, score in judge(objects, emoji.specification(scene)).items()}
        for name, value in (exact(objects, scene) | judged).items():
            right.setdefault(name, []).append(float(value))
    return {name: float(np.mean(values)) for name, values in right.items()}
