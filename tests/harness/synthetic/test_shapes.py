"""Procedural furniture on a grid: closed, of the promised sizes, and held out by parameter."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from stridebench.harness.backbones.mesh import bpt_tokens
from stridebench.harness.errors import UsageError
from stridebench.harness.record.outputs import Mesh
from stridebench.harness.synthetic import furniture, shapes
from stridebench.harness.synthetic.furniture import KINDS, SPLITS, FurnitureDice


def build(kind: str, level: int, split: str, seed: int) -> Mesh:
    return furniture.build(kind, level, FurnitureDice(np.random.default_rng(seed), split))


@pytest.mark.parametrize("level", range(3))
@pytest.mark.parametrize("split", SPLITS)
def test_sequences_have_the_promised_lengths_and_decode_to_all_faces(split: str, level: int) -> None:
    for kind in KINDS:
        for seed in range(8):
            mesh = build(kind, level, split, seed)
            row, exact = bpt_tokens.encode(mesh), bpt_tokens.quantise(mesh)
            assert 80 <= len(row) <= 350, kind
            assert len(bpt_tokens.decode(row).faces) == len(exact.faces)
            assert (exact.vertices % 2 == 0).all()
            np.testing.assert_allclose(np.unique(mesh.vertices), np.unique((exact.vertices + 0.5) / 64 - 1))
            low, high = mesh.vertices.min(0), mesh.vertices.max(0)
            assert (low >= -1).all() and np.abs(low + high).max() <= 0.05  # the middle of two cells is no cell


def test_every_part_is_closed_and_turned_outwards_and_higher_levels_have_more_faces() -> None:
    for kind, parts in KINDS.items():
        for level in range(3):
            for part in parts(FurnitureDice(np.random.default_rng(7), "train"), level):
                edges = Counter(edge for a, b, c in part.faces.tolist() for edge in ((a, b), (b, c), (c, a)))
                assert all(edges[b, a] == 1 == times for (a, b), times in edges.items())
                a, b, c = (part.vertices[part.faces[:, k]] for k in range(3))
                assert (a * np.cross(b, c)).sum() > 0
        counts = [[len(build(kind, level, "train", seed).faces) for seed in range(5)] for level in range(3)]
        assert max(counts[0]) < min(counts[1]) and max(counts[1]) < min(counts[2])


def test_shapes_depend_on_the_generator_only_and_cover_kinds_and_levels() -> None:
    first, second = (furniture.shape(np.random.default_rng(5), "test") for _ in range(2))
    assert np.array_equal(first.mesh.vertices, second.mesh.vertices) and first.category == second.category
    random = np.random.default_rng(0)
    drawn = [furniture.shape(random, "train") for _ in range(1000)]
    np.testing.assert_allclose(np.bincount([one.level for one in drawn]) / 1000, shapes.LEVELS, atol=0.06)
    assert {one.category for one in drawn} == set(KINDS)
    assert furniture.shape(random, "train", level=2).level == 2
    for split, level in (("validation", None), ("train", 3)):
        with pytest.raises(UsageError, match="splits train, test"):
            furniture.shape(random, split, level)


def test_parameters_of_tests_are_never_drawn_in_training() -> None:
    for split, held_out in (("train", False), ("test", True)):
        lengths = {FurnitureDice(np.random.default_rng(n), split).length(2, 20) for n in range(300)}
        assert lengths == {n for n in range(2, 21) if (n % 5 == 3) == held_out}


def test_plain_boxes_are_closed_and_lie_in_the_grid() -> None:
    one = furniture.boxes(np.random.default_rng(0), 3)
    assert one.mesh.vertices.shape == (24, 3) and one.mesh.faces.shape == (36, 3)
    steps = bpt_tokens.quantise(one.mesh).vertices
    assert (steps % 2 == 0).all() and np.abs(one.mesh.vertices).max() <= 1


def test_points_lie_on_the_surface_in_proportion_to_area() -> None:
    """Two triangles of areas 1/2 and 2; 4,000 points give the larger 0.8 of them within 0.03 (4.7 deviations)."""
    vertices = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [5, 0, 0], [5, 2, 0], [5, 0, 2.0]])
    cloud = shapes.points(Mesh(vertices, np.array([[0, 1, 2], [3, 4, 5]])), 4000, np.random.default_rng(0))
    assert cloud.shape == (4000, 6) and cloud.dtype == np.float32
    large = cloud[:, 0] == 5
    assert large.mean() == pytest.approx(0.8, abs=0.03)
    np.testing.assert_allclose(cloud[large, 3:], np.tile([1, 0, 0], (large.sum(), 1)))
    np.testing.assert_allclose(cloud[~large, 3:], np.tile([0, 0, 1], ((~large).sum(), 1)))
    small = cloud[~large]
    assert (small[:, :2] >= 0).all() and (small[:, 0] + small[:, 1] <= 1 + 1e-6).all()
    np.testing.assert_allclose(small[:, :2].mean(0), 1 / 3, atol=0.04)
    with pytest.raises(UsageError, match="no area"):
        shapes.points(Mesh(np.zeros((3, 3)), np.array([[0, 1, 2]])), 8, np.random.default_rng(0))
