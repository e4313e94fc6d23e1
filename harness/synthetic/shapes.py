"""Procedural furniture-like shapes: straight, bent, turned and jointed kinds, three levels, held-out parameters.

The ranges of all lengths and ratios are cut into strips, with disjoint parts for training and for tests
(`shapes_parts.SHARES`). Kind and level fix the number of parts and of corners.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from stridebench.harness.errors import UsageError
from stridebench.harness.record.outputs import Mesh
from stridebench.harness.synthetic import shapes_round as curved
from stridebench.harness.synthetic import shapes_straight as straight
from stridebench.harness.synthetic.shapes_parts import SHARES, Dice, joined

KINDS: Mapping[str, Callable[[Dice, int], list[Mesh]]] = MappingProxyType(
    {
        "chair": straight.chair,
        "sofa": straight.sofa,
        "table": straight.table,
        "shelf": straight.shelf,
        "bed": straight.bed,
        "stool": curved.stool,
        "pedestal": curved.pedestal,
        "lamp": curved.lamp,
        "vase": curved.vase,
        "mug": curved.mug,
        "arm": curved.arm,
    }
)
LEVELS = (0.2, 0.4, 0.4)
"""Shares of the three levels, from few parts to many."""
STRETCH = (0.5, 1.0)
"""Range of the factor along an axis. Stretches and turns make retrieval harder: the nearest of 1,500 training shapes
has a Chamfer distance of 0.067 instead of 0.059, where two samples of one surface have 0.049."""


@dataclass(frozen=True, eq=False)
class Shape:
    """A shape in [-0.95, 0.95] with z upwards; its kind (a key of ``KINDS``) and level (0 to 2)."""

    mesh: Mesh
    category: str
    level: int


def shape(random: np.random.Generator, split: str, level: int | None = None) -> Shape:
    """Draw a shape.

    Args:
        random: source of all draws.
        split: "train" or "test".
        level: 0 to 2; None: drawn by ``LEVELS``.

    Raises:
        UsageError: no such split or level.
    """
    if split not in SHARES or level not in (None, *range(len(LEVELS))):
        raise UsageError(f"shapes have the splits {', '.join(SHARES)} and levels 0 to 2; found {split!r}, {level!r}")
    kind = str(random.choice(list(KINDS)))
    chosen = int(random.choice(len(LEVELS), p=LEVELS)) if level is None else level
    return Shape(build(kind, chosen, Dice(random, split)), kind, chosen)


def build(kind: str, level: int, dice: Dice) -> Mesh:
    """A shape of a kind, stretched along each axis and turned about z by a multiple of 90 degrees."""
    mesh = joined(KINDS[kind](dice, level))
    places = mesh.vertices * [dice.within(*STRETCH) for _ in range(3)]
    for _ in range(dice.count(0, 3)):
        places = np.stack([-places[:, 1], places[:, 0], places[:, 2]], 1)
    return normalise(Mesh(places, mesh.faces))


def normalise(mesh: Mesh, longest: float = 1.9) -> Mesh:
    """Centre the bounding box at the origin and scale its longest side.

    Raises:
        UsageError: a coordinate is not finite, or the mesh is a point.
    """
    low, high = mesh.vertices.min(0), mesh.vertices.max(0)
    extent = float((high - low).max())
    if not np.isfinite(mesh.vertices).all() or extent <= 0:
        raise UsageError("the mesh has no finite size, so it cannot be scaled to the unit box; leave it out")
    return Mesh((mesh.vertices - (low + high) / 2) * (longest / extent), mesh.faces)


def points(mesh: Mesh, n: int, random: np.random.Generator) -> npt.NDArray[np.float32]:
    """``n`` points of the surface, uniform by area, each with the unit normal of its face: float32 [n, 6].

    Raises:
        UsageError: the mesh has no area.
    """
    corners = mesh.vertices[mesh.faces].astype(np.float64)
    along, across = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
    normals = np.cross(along, across)
    area = np.linalg.norm(normals, axis=1)
    total = area.sum()
    if not np.isfinite(total) or total <= 0:
        raise UsageError("the mesh has no area, so no points can be drawn on it; leave it out")
    chosen = random.choice(len(area), n, p=area / total)
    u, v = random.random((2, n))
    u, v = np.where(u + v > 1, 1 - u, u), np.where(u + v > 1, 1 - v, v)
    places = corners[chosen, 0] + u[:, None] * along[chosen] + v[:, None] * across[chosen]
    return np.concatenate([places, normals[chosen] / area[chosen, None]], 1).astype(np.float32)
