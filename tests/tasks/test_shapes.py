"""The tasks shapes and point_clouds: prompts, scores, controls and files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trimesh

from stridebench.harness.core.task import Scored
from stridebench.harness.errors import ContractError, OutputError, UsageError
from stridebench.harness.record.outputs import Mesh
from stridebench.harness.registry import TASKS
from stridebench.harness.synthetic import furniture
from stridebench.harness.synthetic import shapes as world
from stridebench.tasks.point_clouds import PointClouds, read
from stridebench.tasks.shapes import Shapes, known_shapes, nearest, reference

CLOUD = b"""ply
format ascii 1.0
element vertex 1
property float x
property float y
property float z
end_header
0 0 0
"""
SMALL = Shapes(limit=10, points=64, score_points=256)


def scored(task: Shapes, shift: float = 0.0) -> list[Scored]:
    outputs = []
    for prompt in task.prompts():
        mesh = reference(prompt)
        mesh = Mesh(mesh.vertices + shift, mesh.faces)
        outputs.append(Scored(prompt, 0, mesh, task.score(prompt, mesh, [1])))
    return outputs


def test_the_published_protocol_is_the_default() -> None:
    task = Shapes()
    assert (task.limit, task.score_points, task.scale, task.squared) == (200, 1024, "none", False)
    assert Counter(prompt.category for prompt in task.prompts()) == {"level-0": 40, "level-1": 80, "level-2": 80}
    assert TASKS.get("shapes") is Shapes and Shapes.modality == "mesh"


def test_prompts_are_points_on_their_reference_and_repeat() -> None:
    prompts = SMALL.prompts()
    again = Shapes(limit=4, points=64).prompts()
    assert len({prompt.id for prompt in prompts}) == 10
    for prompt, other in zip(prompts, again, strict=False):
        condition = prompt.condition
        assert condition is not None and other.condition is not None
        np.testing.assert_array_equal(condition, other.condition)
        assert condition.shape == (64, 6) and condition.dtype == np.float32
        corners = prompt.data["vertices"][prompt.data["faces"]]
        normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
        normals /= np.linalg.norm(normals, axis=1, keepdims=True)
        heights = np.abs(((condition[:, None, :3] - corners[:, 0]) * normals).sum(2))
        assert heights.min(1).max() < 1e-5
        assert np.linalg.norm(condition[:, 3:], axis=1) == pytest.approx(np.ones(64), abs=1e-5)
    first = prompts[0].condition
    assert first is not None and not (first == Shapes(limit=10, points=64, seed=1).prompts()[0].condition).all()


def test_a_shape_scores_at_the_floor_and_a_moved_one_above_it() -> None:
    right, moved = scored(SMALL), scored(SMALL, 0.3)
    assert all(tuple(one.scores) == Shapes.metrics for one in right)
    for one, other in zip(right, moved, strict=True):
        assert one.scores["chamfer"] < other.scores["chamfer"] and one.scores["hausdorff"] < other.scores["hausdorff"]
    scores = SMALL.score_set(right)
    assert tuple(scores) == Shapes.set_metrics
    mean = np.mean([one.scores["chamfer"] for one in right])
    assert scores["floor_chamfer"].value == pytest.approx(float(mean))  # these outputs are their references
    values = [scores[name].value or 0.0 for name in Shapes.set_metrics]
    assert values[0] < values[1] < values[2]
    assert all(score.n == 10 and score.low and score.high and score.low < score.high for score in scores.values())
    again = SMALL.score_set(right[::-1])  # the order of the outputs does not matter
    assert again["retrieval_chamfer"].value == pytest.approx(scores["retrieval_chamfer"].value)
    lone = SMALL.score_set(right[:1])["swapped_chamfer"]
    assert lone.value is None and "one shape" in lone.reason


def test_retrieval_finds_a_shape_that_is_in_the_pool() -> None:
    """Retrieval compares all shapes by few points first; the shape itself with other points must pass."""
    protocol = SMALL.protocol()
    pool, _ = known_shapes(protocol)
    for index in (0, 100, 511):
        assert nearest(pool[index], protocol).chamfer == 0


def test_degenerate_outputs_are_failures_and_other_kinds_are_bugs() -> None:
    prompt = SMALL.prompts()[0]
    flat = Mesh(np.zeros((3, 3)), np.array([[0, 1, 2]]))
    with pytest.raises(OutputError, match="area"):
        SMALL.score(prompt, flat, [1])
    with pytest.raises(ContractError, match="meshes"):
        SMALL.score(prompt, "a chair", [1])


@pytest.fixture(scope="module")
def shape() -> Mesh:
    return furniture.shape(np.random.default_rng(0), "test", 0).mesh


def write(folder: Path, shape: Mesh, kind: str) -> Path:
    """The same shape, three times as large and off centre, as each kind of file."""
    folder.mkdir(parents=True, exist_ok=True)
    points = world.points(shape, 500, np.random.default_rng(1)).astype(np.float64)
    points[:, :3] = points[:, :3] * 3 + 5
    points[:, 3:] *= 2
    stem, _, _ = kind.partition("-")
    path = folder / f"{kind}.{stem}"
    if kind == "npy":
        np.save(path, points)
    elif kind == "npz":
        np.savez(path, points=points[:, :3], normals=points[:, 3:])
    elif kind in ("ply-cloud", "ply-binary"):
        names = ["x", "y", "z", "nx", "ny", "nz"]
        text = kind == "ply-cloud"
        head = f"ply\nformat {'ascii' if text else 'binary_little_endian'} 1.0\nelement vertex {len(points)}\n"
        head += "".join(f"property float {name}\n" for name in names) + "end_header\n"
        body = "".join(" ".join(f"{v:.7g}" for v in row) + "\n" for row in points).encode()
        path.write_bytes(head.encode() + (body if text else points.astype("<f4").tobytes()))
    else:
        trimesh.Trimesh(shape.vertices * 3 + 5, shape.faces, process=False).export(path)
    return path


@pytest.mark.parametrize("kind", ["npy", "npz", "ply-cloud", "ply-binary", "ply", "obj", "glb"])
def test_each_kind_of_file_gives_the_shape(tmp_path: Path, shape: Mesh, kind: str) -> None:
    write(tmp_path, shape, kind)
    task = PointClouds(folder=str(tmp_path), points=400, score_points=400)
    (prompt,) = task.prompts()
    condition = prompt.condition
    assert condition is not None and condition.shape == (400, 6) and condition.dtype == np.float32
    assert np.abs(condition[:, :3]).max() <= 0.951
    assert np.linalg.norm(condition[:, 3:], axis=1) == pytest.approx(np.ones(400), abs=1e-4)
    scores = task.score(prompt, shape, [1, 2])
    assert scores["chamfer"] < 0.25 and scores["normal_consistency"] > 0.7 and scores["tokens"] == 2


def test_files_come_in_the_order_of_their_names(tmp_path: Path, shape: Mesh) -> None:
    for kind in ("npz", "npy", "obj"):
        write(tmp_path, shape, kind)
    (tmp_path / "notes.txt").write_text("no shape")
    names = [prompt.id for prompt in PointClouds(folder=str(tmp_path), points=9, score_points=99).prompts()]
    assert names == ["npy.npy", "npz.npz", "obj.obj"]
    (first,) = PointClouds(folder=str(tmp_path), points=9, score_points=99, limit=1).prompts()
    assert first.id == "npy.npy"


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.npy", np.ones((500, 3)), "positions and normals"),
        ("a.npy", np.ones((500, 6)), "one place"),
        ("a.npy", np.random.default_rng(0).random((30, 6)), "30 points"),
        ("a.npy", np.full((500, 6), np.nan), "not finite"),
        ("a.npy", b"no array", "cannot be read"),
        ("a.npz", {"points": np.ones((500, 3))}, "lacks normals"),
        ("a.obj", b"v 0 0 0\n", "without normals"),
        ("a.glb", b"no scene", "cannot be read"),
        ("a.ply", CLOUD, "without normals"),
        ("a.obj", b"v 0 0 0\nv 1 0 0\nv 2 0 0\nf 1 2 3\n", "no area"),
    ],
)  # fmt: skip
def test_files_that_are_no_shape_are_named(tmp_path: Path, name: str, content: Any, why: str) -> None:
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        np.savez(path, **content)
    else:
        np.save(path, content)
    with pytest.raises(UsageError, match=why):
        read(path, 100, np.random.default_rng(0))


def test_a_folder_without_shapes_is_named(tmp_path: Path) -> None:
    for folder in ("", str(tmp_path / "absent"), str(tmp_path)):
        says = "holds no shape" if folder == str(tmp_path) else "is not there.* as a parameter of the task"
        with pytest.raises(UsageError, match=says):
            PointClouds(folder=folder).prompts()


def test_furniture_has_prompts_and_a_pool_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stridebench.tasks.shapes.POOL", 8)
    task = Shapes(limit=5, points=64, score_points=96)
    prompts = task.prompts()
    assert {prompt.data["kind"] for prompt in prompts} <= set(furniture.KINDS)
    steps = (np.concatenate([reference(prompt).vertices for prompt in prompts]) + 1) * 64 - 0.5
    np.testing.assert_allclose(steps % 2, 0, atol=1e-9)
    protocol = task.protocol()
    pool, _ = known_shapes(protocol)
    assert nearest(pool[3], protocol).chamfer == 0
