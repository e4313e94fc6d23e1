"""Procedural furniture: eight kinds, three levels, corners on every second step of BPT's grid.

Held-out lengths: tests draw those that training never draws (`furniture_parts.HELD_OUT`). The corners lie where a token
can name them, so 1,024 points with normals determine most of a shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from stridebench.harness.errors import UsageError
from stridebench.harness.record.outputs import Mesh
from stridebench.harness.synthetic import furniture_kinds as kinds
from stridebench.harness.synthetic.furniture_parts import SPLITS, Dice, block
from stridebench.harness.synthetic.shapes import LEVELS, Shape
from stridebench.harness.synthetic.shapes_parts import joined

KINDS: Mapping[str, Callable[[Dice, int], list[Mesh]]] = MappingProxyType(
    {
        "table": kinds.table,
        "chair": kinds.chair,
        "bench": kinds.bench,
        "shelf": kinds.shelf,
        "bed": kinds.bed,
        "sofa": kinds.sofa,
        "desk": kinds.desk,
        "lamp": kinds.lamp,
    }
)
CELLS = 64
"""Places of a corner along an axis: every second of 128 steps."""


def shape(random: np.random.Generator, split: str, level: int | None = None) -> Shape:
    """Draw a shape in [-1, 1] with z upwards.

    Args:
        random: source of all draws.
        split: "train" or "test".
        level: 0 to 2; None: drawn by ``LEVELS``.

    Raises:
        UsageError: no such split or level.
    """
    if split not in SPLITS or level not in (None, *range(len(LEVELS))):
        raise UsageError(f"furniture has the splits {', '.join(SPLITS)} and levels 0 to 2; found {split!r}, {level!r}")
    kind = str(random.choice(list(KINDS)))
    chosen = int(random.choice(len(LEVELS), p=LEVELS)) if level is None else level
    return Shape(build(kind, chosen, Dice(random, split)), kind, chosen)


def boxes(random: np.random.Generator, count: int) -> Shape:
    """Plain boxes anywhere in the grid, to learn how points become corners before shapes come; level 0."""
    parts = []
    for _ in range(count):
        low, high = np.sort(np.stack([random.choice(CELLS, 2, replace=False) for _ in range(3)], 1), axis=0).tolist()
        parts.append(block(tuple(low), tuple(high)))
    return Shape(_in_grid(joined(parts)), "boxes", 0)


def build(kind: str, level: int, dice: Dice) -> Mesh:
    """A shape of a kind, turned about z by a multiple of 90 degrees; its box is centred to a cell."""
    mesh = joined(KINDS[kind](dice, level))
    places = mesh.vertices
    for _ in range(dice.count(0, 3)):
        places = np.stack([-places[:, 1], places[:, 0], places[:, 2]], 1)
    low, high = places.min(0), places.max(0)
    return _in_grid(Mesh(places + (CELLS - 1 - low - high) // 2, mesh.faces))


def _in_grid(mesh: Mesh) -> Mesh:
    """Cells 0 to 63 as coordinates in the middle of even steps, in [-1, 1]."""
    return Mesh((2 * mesh.vertices + 0.5) / CELLS - 1, mesh.faces)
