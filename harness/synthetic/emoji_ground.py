"""Backgrounds of emoji scenes: smooth gradients, and textures whose every patch is drawn anew.

A gradient's tokens follow from their neighbours, so a drafter predicts them easily. A texture's tokens do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
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
TEXTURED = ("noise", "stripes", "checks")


@dataclass(frozen=True)
class Ground:
    """A background.

    Args:
        pattern: gradient, noise, stripes or checks.
        near: index of its first colour in ``PALETTE``.
        far: index of its second colour, another one.
        direction: 0 to 7, in eighths of a turn.
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
    """A background; half are smooth."""
    kind, near, step, direction = random.integers(0, (6, 8, 7, 8)).tolist()
    pattern = "gradient" if kind < 3 else TEXTURED[kind - 3]
    return Ground(pattern, near, (near + 1 + step) % 8, direction, int(random.integers(2**31)))


def paint(ground: Ground) -> Float32[np.ndarray, "64 64 3"]:
    """Pixels, 0 to 255."""
    ramp = _RAMPS[ground.direction]
    near, far = PALETTE[ground.near], PALETTE[ground.far]
    if not ground.textured:
        smooth: Float32[np.ndarray, "64 64 3"] = near + ramp[..., None] * (far - near)
        return smooth
    random = np.random.default_rng(ground.seed)
    grain = random.random((32, 32), dtype=np.float32)
    if ground.pattern == "noise":
        mix = grain
    elif ground.pattern == "stripes":
        bands = np.floor(ramp[::2, ::2] * 8 + random.random(dtype=np.float32)) % 2
        mix = 0.65 * bands + 0.35 * grain
    else:
        flips = random.random((16, 16)) < 0.2
        mix = 0.65 * (_BOARD ^ flips).repeat(2, 0).repeat(2, 1) + 0.35 * grain
    # One end is darker, since patches would otherwise differ in hue alone.
    colours: Float32[np.ndarray, "32 32 3"] = (near * 0.78 + mix[..., None] * (far - near * 0.78)).astype(np.float32)
    return colours.repeat(2, 0).repeat(2, 1)


def _ramp(direction: int) -> Float32[np.ndarray, "64 64"]:
    angle = direction * np.pi / 4
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    along = x * np.cos(angle) + y * np.sin(angle)
    ramp: Float32[np.ndarray, "64 64"] = ((along - along.min()) / np.ptp(along)).astype(np.float32)
    return ramp


_RAMPS = [_ramp(direction) for direction in range(8)]
_BOARD = np.indices((16, 16)).sum(0) % 2 == 1
