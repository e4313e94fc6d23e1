"""Meshes of procedural shapes: boxes, lofted skins, their scale, and points on their surface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stridebench.harness.errors import UsageError
from stridebench.harness.record.outputs import Mesh

LEVELS = (0.2, 0.4, 0.4)
"""Shares of the three levels, from few parts to many."""

BOX = np.array(
    [
        [0, 1, 5], [0, 5, 4], [0, 4, 6], [0, 6, 2], [0, 2, 3], [0, 3, 1],
        [7, 5, 1], [7, 1, 3], [7, 3, 2], [7, 2, 6], [7, 6, 4], [7, 4, 5],
    ]
)  # fmt: skip
"""Twelve faces in two closed fans around opposite corners; bit 0 of a corner is x, bit 1 y, bit 2 z."""


@dataclass(frozen=True, eq=False)
class ProceduralShape:
    """A shape in [-1, 1] with z upwards; its kind (a key of `furniture.KINDS`) and level (0 to 2)."""

    mesh: Mesh
    category: str
    level: int


def loft(rings: npt.NDArray[np.float64]) -> Mesh:
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


def joined(parts: Sequence[Mesh]) -> Mesh:
    """All parts as one mesh."""
    starts = np.cumsum([0, *(len(part.vertices) for part in parts[:-1])])
    faces = [part.faces + start for part, start in zip(parts, starts, strict=True)]
    return Mesh(np.concatenate([part.vertices for part in parts]), np.concatenate(faces))


def normalise(mesh: Mesh, longest: float = 1.9) -> Mesh:
    """Centre the bounding box at the origin and scale its longest side."""
    low, high = mesh.vertices.min(0), mesh.vertices.max(0)
    extent = float((high - low).max())
    if not np.isfinite(mesh.vertices).all() or extent <= 0:
        raise UsageError("the mesh has no finite size, so it cannot be scaled to the unit box; leave it out")
    return Mesh((mesh.vertices - (low + high) / 2) * (longest / extent), mesh.faces)


def points(mesh: Mesh, n: int, random: np.random.Generator) -> npt.NDArray[np.float32]:
    """Return ``n`` points of the surface, uniform by area, each with the unit normal of its face: float32 [n, 6]."""
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
