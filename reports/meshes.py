"""Draws meshes: shaded triangles with their edges, and points, all under the same camera.

Coordinates are not normalised: z points up, in a cube of [-1, 1]. A small or shifted mesh looks small or shifted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.figure import Figure
from mpl_toolkits.mplot3d.art3d import Poly3DCollection  # type: ignore[import-untyped]  # it has no stubs

from stridebench.harness.errors import StoreError
from stridebench.reports.pareto import STYLE

ELEVATION, AZIMUTH = 22.0, -52.0
"""Of the camera, in degrees."""
LIGHT = np.array([0.35, -0.6, 0.72])
COLOUR = np.array([0.47, 0.62, 0.79])
EDGE = (0.12, 0.16, 0.22, 0.55)
SIDE_IN = 2.1
"""Inches of one mesh on a sheet."""
TITLE_CHARS = 30


def write(paths: Sequence[Path], file: Path, titles: Sequence[str] = (), columns: int = 6) -> Path:
    """Draw meshes onto one sheet, row by row.

    Args:
        titles: one a mesh. Without titles the names of the files are shown.
    """
    if not paths or len(titles) not in (0, len(paths)):
        raise StoreError(f"{file} was asked for with {len(paths)} meshes and {len(titles)} titles; give one each")
    across = min(columns, len(paths))
    down = -(-len(paths) // across)
    with rc_context(STYLE):
        figure = Figure(figsize=(SIDE_IN * across, SIDE_IN * down), layout="constrained")
        for place, path in enumerate(paths):
            axes = figure.add_subplot(down, across, place + 1, projection="3d")
            draw(axes, path)
            axes.set_title((titles[place] if titles else path.stem)[:TITLE_CHARS], fontsize=7)
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=110)
    return file


def draw(axes: Any, path: Path, edge: float = 0.25) -> None:
    """Draw the mesh of a .ply file onto three-dimensional axes."""
    corners = _corners(path)
    faces = Poly3DCollection(corners, facecolors=_shades(corners), edgecolors=[EDGE], linewidths=edge)
    axes.add_collection3d(faces)
    _look(axes)


def cloud(axes: Any, path: Path) -> None:
    """Draw the points of a .npy file [n, 3 or more] onto three-dimensional axes."""
    try:
        points = np.load(path, allow_pickle=False)
        x, y, z = points[:, :3].T
    except (OSError, ValueError, IndexError) as error:
        raise StoreError(f"{path} cannot be drawn as points: {error}") from error
    axes.scatter(x, y, z, s=2.0, c=[COLOUR * 0.7], linewidths=0, depthshade=True)
    _look(axes)


def _look(axes: Any) -> None:
    axes.set(xlim=(-0.78, 0.78), ylim=(-0.78, 0.78), zlim=(-0.78, 0.78))
    axes.set_box_aspect((1, 1, 1))
    axes.view_init(elev=ELEVATION, azim=AZIMUTH)
    axes.set_axis_off()


def _corners(path: Path) -> npt.NDArray[np.float64]:
    """Read the corners [m, 3, 3] of the triangles of a file."""
    import trimesh  # takes half a second; a report without meshes does not need it

    try:
        mesh: Any = trimesh.load(path, force="mesh", process=False)
        corners: npt.NDArray[np.float64] = np.asarray(mesh.vertices, dtype=np.float64)[np.asarray(mesh.faces)]
        return corners
    except (OSError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise StoreError(f"{path} cannot be drawn as a mesh: {error}") from error


def _shades(corners: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Compute colours [m, 4] from the angle to the light. Both sides of a face are lit: orientation may be lost."""
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    lengths = np.linalg.norm(normals, axis=1, keepdims=True)
    lit = np.abs((normals / np.where(lengths > 0, lengths, 1)) @ (LIGHT / np.linalg.norm(LIGHT)))
    shaded = COLOUR * (0.3 + 0.65 * lit[:, None]) + 0.2 * lit[:, None]
    return np.concatenate([shaded.clip(0, 1), np.full((len(corners), 1), 0.97)], 1)
