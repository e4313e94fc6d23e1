"""Distances between meshes, and defects of a mesh.

Distances are between points drawn on the two surfaces, uniform by area, with separate draws for each surface. So the
distance of a mesh to itself is not zero but a floor, which depends on the number of points.

Source: Chen et al. 2025 (XSpecMesh), section 5.1: 1,024 points a surface. Conventions as in whaohan/bpt `metrics.py` at
ec80ad9 and the package point-cloud-utils that it calls: Chamfer is the sum of the two mean distances, not squared;
Hausdorff is the larger of the two largest. Here a mesh that cannot be measured is an error; there it is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stridebench.harness.errors import OutputError, one_of, within
from stridebench.harness.record.outputs import Mesh
from stridebench.harness.synthetic import shapes

Points = npt.NDArray[np.float64]
METRICS = ("chamfer", "hausdorff", "normal_consistency", "components", "open_edges", "faces", "tokens")
"""Names of the values that `scores` returns."""
SCALES = ("none", "cube", "sphere")
SAME = 1e-6
"""Vertices closer than this on every axis, after rounding, are one vertex to `fragments`."""


@dataclass(frozen=True)
class Protocol:
    """All that a distance depends on besides the two meshes.

    Args:
        points: number of points drawn on each surface.
        scale: how each mesh is scaled before points are drawn. none: it stays as it is. cube: its box is centred and
            the longest side becomes 1.9, as in BPT's script. sphere: its box is centred and its farthest vertex comes
            to 1.
        squared: whether distances are squared before they are averaged.
    """

    points: int = 1024
    seed: int = 0
    scale: str = "none"
    squared: bool = False

    def __post_init__(self) -> None:
        one_of("the distance of meshes", "scale", self.scale, SCALES)
        within("the distance of meshes", 1, points=self.points)


@dataclass(frozen=True, eq=False)
class Surface:
    """Points [n, 3] of a surface and the unit normals [n, 3] of the faces that they lie on."""

    points: Points
    normals: Points


@dataclass(frozen=True)
class Distances:
    """Distances of two surfaces.

    Args:
        chamfer: mean distance from a point of one to the nearest of the other, both ways, summed.
        normals: mean |cosine| between normals at nearest points, both ways.
    """

    chamfer: float
    hausdorff: float
    normals: float


@dataclass(frozen=True)
class Fragments:
    """Connectivity of a mesh.

    Args:
        components: number of pieces that share no vertex.
        open_edges: share of edges that lie in one face only.
    """

    components: int
    open_edges: float
    faces: int


def sample(mesh: Mesh, protocol: Protocol, stream: int = 0) -> Surface:
    """Draw points on a mesh.

    Args:
        stream: other numbers give other draws of the same seed.

    Raises:
        OutputError: a vertex is not finite, or the area of the mesh is 0.
    """
    ready = scaled(checked(mesh), protocol.scale)
    drawn = shapes.points(ready, protocol.points, np.random.default_rng([protocol.seed, stream])).astype(np.float64)
    return Surface(drawn[:, :3], drawn[:, 3:])


def checked(mesh: Mesh) -> Mesh:
    """Return the mesh if it can be measured.

    Raises:
        OutputError: a vertex is not finite, or the area of the mesh is 0.
    """
    if not np.isfinite(mesh.vertices).all():
        raise OutputError(f"{(~np.isfinite(mesh.vertices)).any(1).sum()} vertices of the mesh are not finite")
    corners = mesh.vertices[mesh.faces].astype(np.float64)
    area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1).sum() / 2
    if not area > 0:
        raise OutputError(f"the {len(mesh.faces)} faces of the mesh have no area")
    return mesh


def scaled(mesh: Mesh, scale: str) -> Mesh:
    """Scale the mesh; see `Protocol`. Only vertices that a face uses count."""
    if scale == "none":
        return mesh
    used = mesh.vertices[np.unique(mesh.faces)]
    low, high = used.min(0), used.max(0)
    middle = (low + high) / 2
    if scale == "cube":
        return Mesh((mesh.vertices - middle) * (1.9 / (high - low).max()), mesh.faces)
    return Mesh((mesh.vertices - middle) / np.linalg.norm(used - middle, axis=1).max(), mesh.faces)


def distances(first: Surface, second: Surface, squared: bool = False) -> Distances:
    """Return Chamfer and Hausdorff distance and normal consistency of two sampled surfaces."""
    from scipy.spatial import cKDTree

    forth, nearest = cKDTree(second.points).query(first.points)
    back, nearest_back = cKDTree(first.points).query(second.points)
    cosine = np.abs((first.normals * second.normals[nearest]).sum(1)).mean()
    cosine_back = np.abs((second.normals * first.normals[nearest_back]).sum(1)).mean()
    if squared:
        forth, back = forth**2, back**2
    return Distances(
        chamfer=float(forth.mean() + back.mean()),
        hausdorff=float(max(forth.max(), back.max())),
        normals=float((cosine + cosine_back) / 2),
    )


def compare(mesh: Mesh, reference: Mesh, protocol: Protocol) -> Distances:
    """Return the distances of two meshes under a protocol."""
    return distances(sample(mesh, protocol), sample(reference, protocol, stream=1), protocol.squared)


def fragments(mesh: Mesh) -> Fragments:
    """Count pieces and open edges. Equal vertices are merged first, and faces without three corners are left out."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    places = np.round(checked(mesh).vertices / SAME).astype(np.int64)
    _, merged = np.unique(places, axis=0, return_inverse=True)
    faces = merged.reshape(-1)[mesh.faces]
    faces = faces[(faces != np.roll(faces, 1, axis=1)).all(1)]
    edges = np.sort(np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]), axis=1)
    unique_edges, uses = np.unique(edges, axis=0, return_counts=True)
    count = int(merged.max()) + 1
    links = coo_array((np.ones(len(unique_edges)), (unique_edges[:, 0], unique_edges[:, 1])), shape=(count, count))
    _, labels = connected_components(links, directed=False)
    return Fragments(len(np.unique(labels[faces])), float((uses == 1).mean()), len(faces))


def scores(mesh: Mesh, goal: Surface, protocol: Protocol, tokens: int) -> dict[str, float]:
    """Return all ``METRICS`` of a mesh of so many tokens that should equal the surface ``goal``."""
    measured, broken = distances(sample(mesh, protocol), goal, protocol.squared), fragments(mesh)
    return {
        "chamfer": measured.chamfer,
        "hausdorff": measured.hausdorff,
        "normal_consistency": measured.normals,
        "components": float(broken.components),
        "open_edges": broken.open_edges,
        "faces": float(broken.faces),
        "tokens": float(tokens),
    }
