"""Parts of furniture: boxes and prisms with corners in the cells of a grid, and lengths of a split."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stridebench.harness.record.outputs import Mesh
from stridebench.harness.synthetic.shapes_parts import BOX, loft

Corner = tuple[float, float, float]

PERIOD, HELD_OUT = 5, 3
"""Lengths that leave the remainder 3 when divided by 5 are drawn for tests alone, all others for training alone."""
SPLITS = ("train", "test")


@dataclass(frozen=True)
class Dice:
    """Draws the parameters of a shape.

    Args:
        random: source of the draws.
        split: "train" or "test"; their lengths are disjoint.
    """

    random: np.random.Generator
    split: str

    def length(self, low: int, high: int) -> int:
        """A length of the split from ``low`` to ``high`` cells, both included; every range has one of each split."""
        test = self.split == "test"
        return int(self.random.choice([n for n in range(low, high + 1) if (n % PERIOD == HELD_OUT) == test]))

    def count(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included; counts are not held out."""
        return int(self.random.integers(low, high + 1))


def block(low: Corner, high: Corner, inset: int = 0) -> Mesh:
    """A box between two corners; its upper face is ``inset`` cells smaller on every side."""
    bits = (np.arange(8)[:, None] >> np.arange(3)) & 1
    corners = np.where(bits, np.asarray(high, float), np.asarray(low, float))
    corners[4:, :2] += np.where(bits[4:, :2], -inset, inset)
    return Mesh(corners, BOX)


def octagon(at: tuple[int, int], radii: tuple[int, int], low: int, high: int) -> Mesh:
    """An upright prism of eight sides with these radii below and above."""
    rings = np.empty((2, 8, 3))
    for ring, radius, height in zip(rings, radii, (low, high), strict=True):
        near = max(1, round(radius * (2**0.5 - 1)))
        r, n = radius, near
        ring[:, :2] = [(r, -n), (r, n), (n, r), (-n, r), (-r, n), (-r, -n), (-n, -r), (n, -r)]
        ring[:, :2] += at
        ring[:, 2] = height
    return loft(rings)
