"""Rebuild the shapes of a local folder (of Objaverse, for instance): meshes, or point clouds with normals.

Points are drawn, centred and scaled as in whaohan/bpt `utils.py` at ec80ad9: the longest side of the bounding box
becomes 1.9. The axes of the file are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stridebench.harness.core.task import Prompt, Task
from stridebench.harness.errors import UsageError, within
from stridebench.harness.record.outputs import Mesh, Output, as_mesh
from stridebench.harness.registry import TASKS
from stridebench.harness.synthetic import shapes
from stridebench.tasks.loaders.files import locate, missing
from stridebench.tasks.metrics.mesh import METRICS, Points, Protocol, Surface, scores

LONGEST = 1.9
"""Length of the longest side of the bounding box."""


@TASKS.register("point_clouds")
@dataclass(frozen=True)
class PointClouds(Task):
    """Make a mesh from the points of a file; the reference is the surface or cloud of the file.

    Args:
        folder: "" is point_clouds in the data folder. Read are .npy [n, 6] (positions and normals), .npz (``points``
            and ``normals``, [n, 3] each), .ply, .obj and .glb files; other files are ignored.
        limit: most files, in the order of their names; 0 takes all.
        points: number of points that condition the model.
        seed: of the draws.
        score_points: points drawn on each surface for the distances; see `tasks.metrics.mesh`. A cloud must have as
            many points.
        scale: how a mesh is scaled before its points are drawn: none, or cube as its reference.
        squared: whether distances are squared before they are averaged.
    """

    folder: str = ""
    limit: int = 200
    points: int = 4096
    seed: int = 0
    score_points: int = 1024
    scale: str = "none"
    squared: bool = False

    source = "a local folder of meshes or point clouds"
    modality = "mesh"
    metrics = METRICS

    def __post_init__(self) -> None:
        within("the task point_clouds", 1, points=self.points, score_points=self.score_points)
        within("the task point_clouds", 0, limit=self.limit)
        self._protocol()

    def _protocol(self) -> Protocol:
        if self.scale == "sphere":
            raise UsageError(
                "point_clouds has its references in a cube, as the models read them; scale is none or cube"
            )
        return Protocol(self.score_points, self.seed, self.scale, self.squared)

    def prompts(self) -> Sequence[Prompt]:
        """Return one prompt a file; ``condition`` is float32 [points, 6], ``data`` the reference points and normals."""
        return _prompts(self)

    def score(self, prompt: Prompt, output: Output, tokens: Sequence[int]) -> dict[str, float]:
        """Return the distances to the file's surface and the defects of the mesh."""
        goal = Surface(prompt.data["points"], prompt.data["normals"])
        return scores(as_mesh(output), goal, self._protocol(), len(tokens))


@lru_cache(maxsize=2)
def _prompts(task: PointClouds) -> tuple[Prompt, ...]:
    folder = locate(task.folder, "point_clouds")
    if not folder.is_dir():
        raise missing(folder, "a folder of shapes", "your own shapes")
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in READERS)
    if not files:
        raise UsageError(f"{folder} holds no shape; put {', '.join(READERS)} files there")
    return tuple(_prompt(task, path, index) for index, path in enumerate(files[: task.limit or None]))


def _prompt(task: PointClouds, path: Path, index: int) -> Prompt:
    random = np.random.default_rng([task.seed, index])
    condition = read(path, task.points, random)
    goal = read(path, task.score_points, random).astype(np.float64)
    data = {"points": goal[:, :3], "normals": goal[:, 3:], "file": path.name}
    return Prompt(path.name, None, None, condition, data=data)


def read(path: Path, points: int, random: np.random.Generator) -> npt.NDArray[np.float32]:
    """Read points of a file's shape, centred and scaled: float32 [points, 6], positions and unit normals."""
    try:
        shape = READERS[path.suffix.lower()](path)
    except UsageError:
        raise
    except Exception as error:  # readers of foreign formats raise anything
        raise UsageError(f"{path} cannot be read as a shape: {type(error).__name__}: {error}") from error
    if isinstance(shape, Mesh):
        return shapes.points(shapes.normalise(shape, LONGEST), points, random)
    return _thinned(path, shape, points, random)


def _thinned(path: Path, cloud: Points, points: int, random: np.random.Generator) -> npt.NDArray[np.float32]:
    """Draw ``points`` rows of a cloud without repeats, centred and scaled."""
    if cloud.ndim != 2 or cloud.shape[1] != 6:
        raise UsageError(f"{path} holds an array {list(cloud.shape)}; a cloud is [n, 6], positions and normals")
    if len(cloud) < points:
        raise UsageError(f"{path} has {len(cloud)} points and {points} are asked for; lower points or score_points")
    lengths = np.linalg.norm(cloud[:, 3:], axis=1, keepdims=True)
    low, high = cloud[:, :3].min(0), cloud[:, :3].max(0)
    if not np.isfinite(cloud).all() or not lengths.all() or not (high > low).any():
        raise UsageError(f"{path} has points that are not finite, normals of length 0, or all points in one place")
    places = (cloud[:, :3] - (low + high) / 2) * (LONGEST / (high - low).max())
    ready = np.concatenate([places, cloud[:, 3:] / lengths], 1).astype(np.float32)
    return ready[random.choice(len(ready), points, replace=False)]


def _npz(path: Path) -> Points:
    with np.load(path, allow_pickle=False) as arrays:
        missing = {"points", "normals"} - set(arrays.files)
        if missing:
            raise UsageError(f"{path} lacks {', '.join(sorted(missing))}; it holds {', '.join(arrays.files)}")
        return np.concatenate([arrays["points"], arrays["normals"]], 1).astype(np.float64)


def _scene(path: Path) -> Mesh | Points:
    import trimesh  # takes half a second; a run without such files does not need it

    geometry: Any = trimesh.load(path, process=False)
    if isinstance(geometry, trimesh.Scene):
        geometry = geometry.to_geometry() if geometry.geometry else None
    if isinstance(geometry, trimesh.Trimesh) and len(geometry.faces):
        return Mesh(np.asarray(geometry.vertices, dtype=np.float64), np.asarray(geometry.faces, dtype=np.int64))
    if isinstance(geometry, trimesh.PointCloud):
        return np.concatenate([np.asarray(geometry.vertices), _cloud_normals(path, geometry)], 1).astype(np.float64)
    raise UsageError(f"{path} holds neither triangles nor points")


def _cloud_normals(path: Path, cloud: Any) -> Points:
    vertices = cloud.metadata.get("_ply_raw", {}).get("vertex", {}).get("data", {})
    names = vertices if isinstance(vertices, dict) else vertices.dtype.names  # dict: text file
    if not {"nx", "ny", "nz"} <= set(names):
        raise UsageError(f"{path} is a cloud without normals (nx, ny, nz), which the models need; add them")
    return np.stack([np.ravel(vertices[axis]) for axis in ("nx", "ny", "nz")], 1).astype(np.float64)


READERS: Mapping[str, Callable[[Path], Mesh | Points]] = {
    ".npy": lambda path: np.asarray(np.load(path, allow_pickle=False), dtype=np.float64),
    ".npz": _npz,
    ".ply": _scene,
    ".obj": _scene,
    ".glb": _scene,
}
"""Readers by file suffix."""
