"""Backgrounds of emoji scenes: smooth gradients, and textures of tiles that are drawn anew.

A gradient's tokens follow from their neighbours, so a drafter predicts them easily. A tile of a texture does not. It
has two shades: 0.5 bits in checks and stripes, where it is a token of 64 pixels or a quarter of a token of 32. In a
mosaic it has 1 bit and is four tokens, or one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float32

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
        near: index of its first colour in ``PALETTE``.
        far: index of its second colour.
        direction: 0 to 7, in eighths of a turn; stripes lie or stand.
        seed: of the texture's own draws.
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
