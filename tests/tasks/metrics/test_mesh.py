"""Conventions of the mesh metrics on meshes that can be measured by hand, and the sheet of meshes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stridebench.harness.errors import OutputError, StoreError
from stridebench.harness.record import outputs
from stridebench.harness.record.outputs import Mesh
from stridebench.tasks.metrics.mesh import (
    METRICS,
    Fragments,
    Protocol,
    Surface,
    compare,
    distances,
    fragments,
    sample,
    scaled,
    scores,
)

UP = [0.0, 0.0, 1.0]
BOX_FACES = [
    [0, 2, 3], [0, 3, 1], [4, 5, 7], [4, 7, 6], [0, 1, 5], [0, 5, 4],
    [2, 6, 7], [2, 7, 3], [0, 4, 6], [0, 6, 2], [1, 3, 7], [1, 7, 5],
]  # fmt: skip


def box(shift: float = 0.0, size: float = 1.0) -> Mesh:
    corners = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], dtype=float)
    return Mesh(corners * size + shift, np.array(BOX_FACES))


def square(z: float) -> Mesh:
    return Mesh(np.array([[0.0, 0, z], [1, 0, z], [1, 1, z], [0, 1, z]]), np.array([[0, 1, 2], [0, 2, 3]]))


def cloud(*points: tuple[float, float, float], normal: list[float] = UP) -> Surface:
    return Surface(np.array(points, dtype=float), np.array([normal] * len(points)))


def merged(*meshes: Mesh) -> Mesh:
    starts = np.cumsum([0, *(len(mesh.vertices) for mesh in meshes)])
    faces = [mesh.faces + start for mesh, start in zip(meshes, starts, strict=False)]
    return Mesh(np.concatenate([mesh.vertices for mesh in meshes]), np.concatenate(faces))


def test_chamfer_is_the_sum_of_both_means_and_hausdorff_the_larger_of_both_largest() -> None:
    """From the one point to the two: 1. Back: 1 and 3, mean 2."""
    one, two = cloud((0, 0, 0)), cloud((1, 0, 0), (0, 3, 0))
    measured = distances(one, two)
    assert (measured.chamfer, measured.hausdorff) == (1 + 2, 3)
    assert distances(two, one) == measured
    squares = distances(one, two, squared=True)
    assert (squares.chamfer, squares.hausdorff) == (1 + 5, 9)


def test_normal_consistency_ignores_which_side_is_out() -> None:
    """Cosines are 1 and 0.6 in one direction (both points are nearest to the same one) and 1 in the other."""
    one = cloud((0, 0, 0))
    two = Surface(np.array([[1.0, 0, 0], [0, 3, 0]]), np.array([[0, 0, -1.0], [0.8, 0, 0.6]]))
    assert distances(one, two).normals == pytest.approx((1 + 0.8) / 2)
    assert distances(two, one).normals == pytest.approx((0.8 + 1) / 2)


def test_two_parallel_squares_are_twice_their_distance_apart() -> None:
    """The squares are 7 apart, so each nearest distance lies between 7 and the root of 49 + 0.2 squared."""
    measured = compare(square(0), square(7), Protocol())
    assert 14 < measured.chamfer < 14.01 and 7 < measured.hausdorff < 7.01
    assert measured.normals == pytest.approx(1)


def test_points_are_uniform_by_area_and_repeat_with_the_seed() -> None:
    """One triangle of area 4.5, one of 0.5: 900 of 1,000 points, by a binomial of standard deviation 9.5."""
    corners = [[0.0, 0, 0], [3, 0, 0], [0, 3, 0], [5, 0, 0], [6, 0, 0], [5, 1, 0]]
    mesh = Mesh(np.array(corners), np.array([[0, 1, 2], [3, 4, 5]]))
    surface = sample(mesh, Protocol(points=1000))
    assert abs(int((surface.points[:, 0] <= 3).sum()) - 900) < 50
    np.testing.assert_array_equal(surface.points, sample(mesh, Protocol(points=1000)).points)
    assert not np.array_equal(surface.points, sample(mesh, Protocol(points=1000, seed=1)).points)
    assert not np.array_equal(surface.points, sample(mesh, Protocol(points=1000), stream=1).points)


def test_the_distance_of_a_mesh_to_itself_is_the_floor() -> None:
    few, many = compare(box(), box(), Protocol(points=64)), compare(box(), box(), Protocol(points=4096))
    assert 0 < many.chamfer < few.chamfer / 5


def test_each_scale_has_its_size() -> None:
    large = merged(box(3.0, 2.0), square(3.5))
    bare = Mesh(np.concatenate([box(3.0, 2.0).vertices, [[99.0, 0, 0]]]), np.array(BOX_FACES))
    cube, sphere = scaled(bare, "cube").vertices[:8], scaled(bare, "sphere").vertices[:8]
    assert np.abs(cube).max() == pytest.approx(0.95) and cube.min() == pytest.approx(-0.95)
    assert np.linalg.norm(sphere, axis=1) == pytest.approx(np.ones(8))
    assert scaled(large, "none") is large
    assert compare(box(), box(5.0, 3.0), Protocol(scale="cube")).chamfer < 0.2
    assert compare(box(), box(5.0), Protocol()).chamfer > 0.2


@given(st.integers(1, 4), st.floats(0.1, 5))
def test_separate_boxes_are_closed_components(count: int, size: float) -> None:
    mesh = merged(*(box(3.0 * size * n, size) for n in range(count)))
    assert fragments(mesh) == Fragments(count, 0.0, 12 * count)


def test_open_edges_are_those_of_one_face_only() -> None:
    """Two triangles: five edges, four open. Three on one edge: seven, six open. Merged before counting."""
    assert fragments(square(0)) == Fragments(1, 4 / 5, 2)
    corners = square(0).vertices[[0, 1, 2, 0, 2, 3]]
    assert fragments(Mesh(corners, np.array([[0, 1, 2], [3, 4, 5]]))) == Fragments(1, 4 / 5, 2)
    fan = np.array([[0.0, 0, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0], [-1, 0, 0]])
    assert fragments(Mesh(fan, np.array([[0, 1, 2], [0, 1, 3], [0, 1, 4]]))) == Fragments(1, 6 / 7, 3)
    touching = Mesh(fan, np.array([[0, 1, 2], [0, 3, 4]]))
    assert fragments(touching).components == 1
    folded = Mesh(fan, np.array([[0, 1, 2], [3, 3, 4]]))
    assert fragments(folded) == Fragments(1, 1.0, 1)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_mesh_that_cannot_be_measured_is_an_error(broken: float) -> None:
    bad = box()
    bad.vertices[3, 1] = broken
    line = Mesh(np.array([[0.0, 0, 0], [1, 0, 0], [2, 0, 0]]), np.array([[0, 1, 2]]))
    for mesh, why in ((bad, "not finite"), (line, "no area")):
        for protocol in (Protocol(), Protocol(scale="cube"), Protocol(scale="sphere")):
            with pytest.raises(OutputError, match=why):
                sample(mesh, protocol)
        with pytest.raises(OutputError, match=why):
            fragments(mesh)
        with pytest.raises(OutputError, match=why):
            scores(mesh, sample(box(), Protocol()), Protocol(), 5)


def test_scores_have_all_metrics() -> None:
    result = scores(box(), sample(box(), Protocol(), 1), Protocol(), 77)
    assert tuple(result) == METRICS and result["tokens"] == 77 and result["faces"] == 12


def test_a_sheet_shows_meshes(tmp_path: Path) -> None:
    from matplotlib.image import imread

    from stridebench.reports import meshes

    paths = [outputs.save(mesh, tmp_path / name) for name, mesh in (("a", box(-0.5)), ("b", square(0)))]
    pixels = imread(meshes.write([path for path in paths if path], tmp_path / "s" / "sheet.png", ["one", "two"]))
    left, right = (half[..., :3].min(2) < 0.9 for half in np.array_split(pixels, 2, axis=1))
    # a box covers more of its half than a square seen from the side
    assert left[30:].sum() > 2 * right[30:].sum() > 100
    blue = pixels[..., 2] - pixels[..., 0] > 0.1
    assert blue.mean() > 0.05
    (tmp_path / "c.ply").write_text("ply\n")
    for wrong in ([tmp_path / "c.ply"], [tmp_path / "absent.ply"], []):
        with pytest.raises(StoreError):
            meshes.write(wrong, tmp_path / "sheet.png")
