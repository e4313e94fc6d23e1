"""How far a mesh is from another, and how broken it is.

Distances are between points drawn on the two surfaces, uniform by area, each surface with draws of its own: a mesh
against itself is therefore not at zero, but at the floor that the number of points allows.

Source: Chen et al. 2025 (XSpecMesh), section 5.1: 1,024 points a surface. Conventions as in whaohan/bpt `metrics.py` at
ec80ad9 and the package point-cloud-utils that it calls: Chamfer is the sum of the two mean distances, not squared;
Hausdorff is the larger of the two largest. Unlike there a mesh that cannot be measured is an error, never left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from harness.errors import OutputError, UsageError
from harness.record.outputs import Mesh
from harness.synthetic import shapes

Points = npt.NDArray[np.float64]
METRICS = ("chamfer", "hausdorff", "normal_consistency", "components", "open_edges", "faces", "tokens")
"""What `scores` returns."""
SCALES = ("none", "cube", "sphere")
SAME = 1e-6
"""Vertices closer than this on every axis, after rounding, are one vertex to `fragments`."""


@dataclass(frozen=True)
class Protocol:
    """All that a distance depends on beside the two meshes.

    Args:
        points: drawn on each surface. seed: of the draws.
        scale: what each mesh is brought to by itself, before points are drawn: none, it stays as it is; cube, its box
            is centred and the longest side is 1.9, as in BPT's script; sphere, its box is centred and its farthest
            vertex is at 1.
        squared: whether distances are squared before they are averaged.
    """

    points: int = 1024
    seed: int = 0
    scale: str = "none"
    squared: bool = False

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UsageError: no such scale, or no points.
        """
        if self.scale not in SCALES or self.points < 1:
            raise UsageError(
                f"a mesh is measured with points >= 1 and scale one of {', '.join(SCALES)}; "
                f"found points={self.points}, scale={self.scale!r}"
            )


@dataclass(frozen=True, eq=False)
class Surface:
    """Points [n, 3] of a surface and the unit normals [n, 3] of the faces that they lie on."""

    points: Points
    normals: Points


@dataclass(frozen=True)
class Distances:
    """Of two surfaces.

    Args:
        chamfer: mean distance from a point of one to the nearest of the other, both ways, summed.
        hausdorff: the largest of those distances. normals: mean |cosine| between normals at nearest points, both ways.
    """

    chamfer: float
    hausdorff: float
    normals: float


@dataclass(frozen=True)
class Fragments:
    """How a mesh hangs together.

    Args:
        components: pieces that share no vertex. open_edges: share of edges that lie in one face only. faces: triangles.
    """

    components: int
    open_edges: float
    faces: int


def sample(mesh: Mesh, protocol: Protocol, stream: int = 0) -> Surface:
    """Draw points on a mesh.

    Args:
        stream: other numbers give other draws of the same seed.

    Raises:
        OutputError: a vertex is not finite, or the mesh has no area.
    """
    ready = scaled(checked(mesh), protocol.scale)
    found = shapes.points(ready, protocol.points, np.random.default_rng([protocol.seed, stream])).astype(np.float64)
    return Surface(found[:, :3], found[:, 3:])


def checked(mesh: Mesh) -> Mesh:
    """The mesh, if it can be measured.

    Raises:
        OutputError: a vertex is not finite, or the mesh has no area.
    """
    if not np.isfinite(mesh.vertices).all():
        raise OutputError(f"{(~np.isfinite(mesh.vertices)).any(1).sum()} vertices of the mesh are not finite")
    corners = mesh.vertices[mesh.faces].astype(np.float64)
    area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1).sum() / 2
    if not area > 0:
        raise OutputError(f"the {len(mesh.faces)} faces of the mesh have no area")
    return mesh


def scaled(mesh: Mesh, scale: str) -> Mesh:
    """The mesh brought to a common size; see `Protocol`. Only vertices that a face uses count."""
    if scale == "none":
        return mesh
    used = mesh.vertices[np.unique(mesh.faces)]
    low, high = used.min(0), used.max(0)
    middle = (low + high) / 2
    if scale == "cube":
        return Mesh((mesh.vertices - middle) * (1.9 / (high - low).max()), mesh.faces)
    return Mesh((mesh.vertices - middle) / np.linalg.norm(used - middle, axis=1).max(), mesh.faces)


def distances(one: Surface, other: Surface, squared: bool = False) -> Distances:
    """Chamfer and Hausdorff distance and normal consistency of two sampled surfaces."""
    there, nearest = cKDTree(other.points).query(one.points)
    back, nearest_back = cKDTree(one.points).query(other.points)
    agree = np.abs((one.normals * other.normals[nearest]).sum(1)).mean()
    agree_back = np.abs((other.normals * one.normals[nearest_back]).sum(1)).mean()
    if squared:
        there, back = there**2, back**2
    return Distances(
        chamfer=float(there.mean() + back.mean()),
        hausdorff=float(max(there.max(), back.max())),
        normals=float((agree + agree_back) / 2),
    )


def compare(mesh: Mesh, reference: Mesh, protocol: Protocol) -> Distances:
    """`distances` of two meshes under a protocol.

    Raises:
        OutputError: one of them has no area or a vertex that is not finite.
    """
    return distances(sample(mesh, protocol), sample(reference, protocol, stream=1), protocol.squared)


def fragments(mesh: Mesh) -> Fragments:
    """Pieces and open edges, after equal vertices were merged and faces without three corners left out.

    Raises:
        OutputError: a vertex is not finite, or no face has three corners.
    """
    places = np.round(checked(mesh).vertices / SAME).astype(np.int64)
    _, merged = np.unique(places, axis=0, return_inverse=True)
    faces = merged.reshape(-1)[mesh.faces]
    faces = faces[(faces != np.roll(faces, 1, axis=1)).all(1)]
    edges = np.sort(np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]), axis=1)
    found, uses = np.unique(edges, axis=0, return_counts=True)
    count = int(merged.max()) + 1
    links = coo_array((np.ones(len(found)), (found[:, 0], found[:, 1])), shape=(count, count))
    _, labels = connected_components(links, directed=False)
    return Fragments(len(np.unique(labels[faces])), float((uses == 1).mean()), len(faces))


def scores(mesh: Mesh, goal: Surface, protocol: Protocol, tokens: int) -> dict[str, float]:
    """All ``METRICS`` of a mesh of so many tokens that is to be the surface ``goal``.

    Raises:
        OutputError: the mesh has no area or a vertex that is not finite.
    """
    found, parts = distances(sample(mesh, protocol), goal, protocol.squared), fragments(mesh)
    return {
        "chamfer": found.chamfer,
        "hausdorff": found.hausdorff,
        "normal_consistency": found.normals,
        "components": float(parts.components),
        "open_edges": parts.open_edges,
        "faces": float(parts.faces),
        "tokens": float(tokens),
    }
