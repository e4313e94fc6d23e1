"""Parts of shapes: boxes, bodies of revolution and tubes, as closed meshes whose faces point outwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stridebench.harness.record.outputs import Mesh

Points = npt.NDArray[np.float64]
Place = Sequence[float] | Points
"""One point."""

STRIPS = 3
"""Number of strips of a parameter's range, each with a part for training and one held out."""
SHARES = {"train": (0.0, 0.7), "test": (0.75, 0.95)}
"""Part of a strip by split; values between them are never drawn."""


@dataclass(frozen=True)
class Dice:
    """Draws the parameters of a shape.

    Args:
        random: source of the draws.
        split: "train" or "test"; their ranges are disjoint.
    """

    random: np.random.Generator
    split: str

    def within(self, low: float, high: float) -> float:
        """A length or a ratio from the split's part of a range."""
        first, last = SHARES[self.split]
        place = (self.random.integers(STRIPS) + self.random.uniform(first, last)) / STRIPS
        return float(low + (high - low) * place)

    def count(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included; counts are not held out."""
        return int(self.random.integers(low, high + 1))


BOX = np.array(
    [
        [0, 1, 5], [0, 5, 4], [0, 4, 6], [0, 6, 2], [0, 2, 3], [0, 3, 1],
        [7, 5, 1], [7, 1, 3], [7, 3, 2], [7, 2, 6], [7, 6, 4], [7, 4, 5],
    ]
)  # fmt: skip
"""Twelve faces in two closed fans around opposite corners; bit 0 of a corner is x, bit 1 y, bit 2 z."""


def block(low: Sequence[float], high: Sequence[float], top: float = 1.0) -> Mesh:
    """A box between two corners; its upper face is scaled by ``top`` about its middle."""
    bits = (np.arange(8)[:, None] >> np.arange(3)) & 1
    corners = np.where(bits, np.asarray(high, float), np.asarray(low, float))
    middle = (np.asarray(low[:2]) + np.asarray(high[:2])) / 2
    corners[4:, :2] = middle + (corners[4:, :2] - middle) * top
    return Mesh(corners, BOX)


def beam(centre: Sequence[float], size: Sequence[float], top: float = 1.0) -> Mesh:
    """A box by its centre and side lengths."""
    half = np.asarray(size, float) / 2
    return block(tuple(np.asarray(centre) - half), tuple(np.asarray(centre) + half), top)


def loft(rings: Points) -> Mesh:
    """A closed skin over rings [k, n, 3], both ends capped by a fan around their middle.

    Rings run against the clock as seen from the last one.
    """
    count, around = rings.shape[:2]
    here = np.arange(count * around).reshape(count, around)
    right = np.roll(here, -1, axis=1)
    sides = np.concatenate(
        [
            np.stack([here[:-1], right[:-1], right[1:]], -1).reshape(-1, 3),
            np.stack([here[:-1], right[1:], here[1:]], -1).reshape(-1, 3),
        ]
    )
    bottom, top = count * around, count * around + 1
    low = np.stack([np.full(around, bottom), right[0], here[0]], -1)
    high = np.stack([np.full(around, top), here[-1], right[-1]], -1)
    centres = np.stack([rings[0].mean(0), rings[-1].mean(0)])
    return Mesh(np.concatenate([rings.reshape(-1, 3), centres]), np.concatenate([sides, low, high]))


def turned(profile: Sequence[tuple[float, float]], around: int, at: Sequence[float] = (0, 0, 0)) -> Mesh:
    """A body of revolution about z through ``at``.

    Args:
        profile: (radius, height) from the bottom's rim to the last rim, which may lie inside, as in a cup.
        around: corners of a ring.
    """
    angle = np.arange(around) * (2 * np.pi / around)
    circle = np.stack([np.cos(angle), np.sin(angle), np.zeros(around)], -1)
    rings = np.stack([radius * circle + [0, 0, height] for radius, height in profile])
    return loft(rings + np.asarray(at, float))


def tube(path: Points, radii: float | Sequence[float], around: int) -> Mesh:
    """A round bar along a path [k, 3], with rings across it; ``radii``: one for all, or one a point."""
    ahead = np.gradient(path, axis=0)
    ahead /= np.linalg.norm(ahead, axis=1, keepdims=True)
    side = np.array([0.0, 1.0, 0.0]) if abs(ahead[:, 1]).max() < 0.9 else np.array([1.0, 0.0, 0.0])
    first = side - (ahead @ side)[:, None] * ahead
    first /= np.linalg.norm(first, axis=1, keepdims=True)
    second = np.cross(ahead, first)
    angle = np.arange(around) * (2 * np.pi / around)
    ring = np.cos(angle)[None, :, None] * first[:, None] + np.sin(angle)[None, :, None] * second[:, None]
    wide = np.broadcast_to(np.asarray(radii, float), len(path))
    return loft(path[:, None] + wide[:, None, None] * ring)


def arc(start: Place, control: Place, end: Place, count: int) -> Points:
    """``count`` points of a quadratic curve."""
    t = np.linspace(0, 1, count)[:, None]
    a, b, c = (np.asarray(p, float) for p in (start, control, end))
    return np.asarray((1 - t) ** 2 * a + 2 * t * (1 - t) * b + t**2 * c)


def panel(edge: Points, thick: float, low: float, high: float) -> Mesh:
    """An upright sheet over a curve [k, 2] in the ground plane, ``thick`` along y, from height ``low`` to ``high``."""
    rings = np.empty((len(edge), 4, 3))
    rings[:, :, 0] = edge[:, None, 0]
    rings[:, :, 1] = edge[:, None, 1] + np.array([0, thick, thick, 0])
    rings[:, :, 2] = np.array([low, low, high, high])
    return loft(rings)


def joined(parts: Sequence[Mesh]) -> Mesh:
    """All parts as one mesh."""
    starts = np.cumsum([0, *(len(part.vertices) for part in parts[:-1])])
    faces = [part.faces + start for part, start in zip(parts, starts, strict=True)]
    return Mesh(np.concatenate([part.vertices for part in parts]), np.concatenate(faces))
