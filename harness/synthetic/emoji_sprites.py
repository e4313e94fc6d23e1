"""The pictures that emoji scenes are composed of: six kinds in six colours.

Hearts, circles and squares exist in every colour. The other kinds are one picture, whose bright hues are replaced.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stridebench.harness.errors import UsageError

if TYPE_CHECKING:
    from jaxtyping import Float32


DATA = Path(__file__).parent / "data" / "emoji.npz"

COLOURS = ("red", "orange", "yellow", "green", "blue", "purple")
DRAWN = ("heart", "circle", "square")
"""Kinds that the font has in every colour."""
TINTED = ("tree", "car", "fish")
"""Kinds that the font has in one colour."""
KINDS = (*DRAWN, *TINTED)


@dataclass(frozen=True, eq=False)
class Sprite:
    """One picture at one side S.

    Args:
        colour: its colours times its opacity, 0 to 255.
        clear: one minus its opacity, 0 to 1.
    """

    colour: Float32[np.ndarray, "S S 3"]
    clear: Float32[np.ndarray, "S S 1"]


@cache
def sprite(kind: str, colour: str, side: int) -> Sprite:
    """The picture of a kind in a colour, at 24 or 12 pixels."""
    if kind in DRAWN:
        rgba = _rgba(f"{colour} {kind}", side)
        rgb = rgba[..., :3]
    else:
        rgba = _rgba(kind, side)
        rgb = _tinted(rgba, _tint(colour))
    opacity = rgba[..., 3:] / 255
    return Sprite(rgb * opacity, 1 - opacity)


def _tinted(rgba: Float32[np.ndarray, "S S 4"], tint: Float32[np.ndarray, " 3"]) -> Float32[np.ndarray, "S S 3"]:
    """Return the picture with its bright hues replaced. Grey, black and white stay."""
    rgb = rgba[..., :3]
    strongest, weakest = rgb.max(-1, keepdims=True), rgb.min(-1, keepdims=True)
    bright = np.clip((strongest - weakest) / 80 - 0.25, 0, 1)
    usual = np.median(strongest[(bright > 0.5) & (rgba[..., 3:] > 200)])
    shade = np.clip(strongest / usual, 0.6, 1.2)
    new: Float32[np.ndarray, "S S 3"] = np.clip((1 - bright) * rgb + bright * shade * tint, 0, 255).astype(np.float32)
    return new


@cache
def _tint(colour: str) -> Float32[np.ndarray, " 3"]:
    """The colour of the circle's middle."""
    middle: Float32[np.ndarray, " 3"] = _rgba(f"{colour} circle", 24)[8:16, 8:16, :3].mean((0, 1))
    return middle


def _rgba(name: str, side: int) -> Float32[np.ndarray, "S S 4"]:
    index, layers = _layers(side)
    picture: Float32[np.ndarray, "S S 4"] = layers[index[name]].astype(np.float32)
    return picture


@cache
def _layers(side: int) -> tuple[dict[str, int], Float32[np.ndarray, "sprites S S 4"]]:
    try:
        with np.load(DATA) as data:
            return {str(name): i for i, name in enumerate(data["names"])}, data[f"rgba{side}"]
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"the sprites in {DATA} cannot be read ({error}). Install stridebench again") from error


# Backgrounds of emoji scenes: smooth gradients, and textures of tiles that are drawn anew.
# A gradient's tokens follow from their neighbours, so a drafter predicts them easily. A tile of a texture does not.
# It has two shades: 0.5 bits in checks and stripes, where it is a token of 64 pixels or a quarter of a token of 32.
# In a mosaic it has 1 bit and is four tokens, or one.


SIDE = 64
PALETTE = np.array(
    [
        [226, 236, 246],
        [246, 230, 214],
        [218, 240, 222],
        [242, 220, 236],
        [244, 242, 208],
        [206, 218, 240],
        [196, 208, 200],
        [208, 196, 214],
    ],
    dtype=np.float32,
)
"""Pale colours, on which every object is visible."""

SMOOTH = ("gradient",)
TEXTURED = ("mosaic", "stripes", "checks")
ROUGH = 0.15
"""Share of textured grounds."""
FLIPPED = 0.1
"""Share of tiles that break the regular pattern of checks and stripes."""


@dataclass(frozen=True)
class Ground:
    """A background.

    Args:
        pattern: gradient, mosaic, stripes or checks.
        direction: 0 to 7, in eighths of a turn; stripes lie or stand.
    """

    pattern: str
    near: int
    far: int
    direction: int
    seed: int

    @property
    def textured(self) -> bool:
        """Whether its patches are drawn anew, and so hard to predict."""
        return self.pattern not in SMOOTH


def draw(random: np.random.Generator) -> Ground:
    """A background; its pattern is a gradient or, with the share ``ROUGH``, a texture."""
    pattern = TEXTURED[random.integers(3)] if random.random() < ROUGH else "gradient"
    near, direction = random.integers(0, (8, 8)).tolist()
    return Ground(pattern, near, (near + 3) % 8, direction, int(random.integers(2**31)))


def paint(ground: Ground) -> Float32[np.ndarray, "64 64 3"]:
    """Pixels, 0 to 255."""
    near, far = PALETTE[ground.near], PALETTE[ground.far]
    if not ground.textured:
        smooth: Float32[np.ndarray, "64 64 3"] = near + _RAMPS[ground.direction][..., None] * (far - near)
        return smooth
    random = np.random.default_rng(ground.seed)
    if ground.pattern == "mosaic":
        mix = random.integers(0, 2, (8, 8)).repeat(2, 0).repeat(2, 1).astype(np.float32)
    else:
        regular = _BOARD if ground.pattern == "checks" else _STRIPES[ground.direction % 2]
        mix = (regular ^ (random.random((16, 16)) < FLIPPED)).astype(np.float32)
    # One end is darker, since tiles would otherwise differ in hue alone.
    colours: Float32[np.ndarray, "16 16 3"] = (near * 0.78 + mix[..., None] * (far - near * 0.78)).astype(np.float32)
    return colours.repeat(4, 0).repeat(4, 1)


def _ramp(direction: int) -> Float32[np.ndarray, "64 64"]:
    angle = direction * np.pi / 4
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    along = x * np.cos(angle) + y * np.sin(angle)
    ramp: Float32[np.ndarray, "64 64"] = ((along - along.min()) / np.ptp(along)).astype(np.float32)
    return ramp


_RAMPS = [_ramp(direction) for direction in range(8)]
_STRIPES = [line % 2 == 1 for line in np.indices((16, 16))]
_BOARD = _STRIPES[0] ^ _STRIPES[1]
