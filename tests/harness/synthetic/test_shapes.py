"""Procedural shapes: closed, of the promised sizes, and held out by parameter."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from stridebench.harness.backbones.mesh import bpt_tokens
from stridebench.harness.errors import UsageError
from stridebench.harness.record.outputs import Mesh
from stridebench.harness.synthetic import shapes
from stridebench.harness.synthetic.shapes_parts import SHARES, STRIPS, Dice

KINDS_AND_LEVELS = [(kind, level) for kind in shapes.KINDS for level in range(3)]


def build(kind: str, level: int, split: str, seed: int) -> Mesh:
    return shapes.build(kind, level, Dice(np.random.default_rng(seed), split))


@pytest.mark.parametrize(("kind", "level"), KINDS_AND_LEVELS)
@pytest.mark.parametrize("split", sorted(SHARES))
def test_every_kind_has_300_to_900_tokens_and_decodes_to_all_faces(kind: str, level: int, split: str) -> None:
    for seed in range(4):
        mesh = build(kind, level, split, seed)
        row = bpt_tokens.encode(mesh)
        assert 300 <= len(row) <= 900
        assert len(bpt_tokens.decode(row).faces) == len(bpt_tokens.quantise(mesh).faces)
        assert np.abs(mesh.vertices).max() == pytest.approx(0.95)


@pytest.mark.parametrize(("kind", "level"), KINDS_AND_LEVELS)
def test_every_part_is_closed_and_turned_outwards(kind: str, level: int) -> None:
    for part in shapes.KINDS[kind](Dice(np.random.default_rng(7), "train"), level):
        edges = Counter(edge for a, b, c in part.faces.tolist() for edge in ((a, b), (b, c), (c, a)))
        assert all(edges[b, a] == 1 == times for (a, b), times in edges.items())
        a, b, c = (part.vertices[part.faces[:, k]] for k in range(3))
        assert (a * np.cross(b, c)).sum() > 0


@pytest.mark.parametrize("kind", sorted(shapes.KINDS))
def test_higher_levels_have_more_faces(kind: str) -> None:
    counts = [[len(build(kind, level, "train", seed).faces) for seed in range(5)] for level in range(3)]
    assert max(counts[0]) < min(counts[1]) and max(counts[1]) < min(counts[2])


def test_parameters_of_tests_are_never_drawn_in_training() -> None:
    values = {split: [Dice(np.random.default_rng(3), split).within(0, 1) for _ in range(1)] for split in SHARES}
    for split in SHARES:
        dice = Dice(np.random.default_rng(3), split)
        values[split] = sorted(dice.within(0, 1) * STRIPS % 1 for _ in range(3000))
    assert values["train"][-1] < 0.7 < 0.75 < values["test"][0]
    assert values["test"][-1] < 0.95


def test_shapes_depend_on_the_generator_only_and_cover_kinds_and_levels() -> None:
    first, second = (shapes.shape(np.random.default_rng(5), "test") for _ in range(2))
    assert np.array_equal(first.mesh.vertices, second.mesh.vertices) and first.category == second.category
    random = np.random.default_rng(0)
    drawn = [shapes.shape(random, "train") for _ in range(1000)]
    levels = np.bincount([one.level for one in drawn]) / 1000
    np.testing.assert_allclose(levels, shapes.LEVELS, atol=0.06)  # four standard deviations
    assert set(one.category for one in drawn) == set(shapes.KINDS)
    assert shapes.shape(random, "train", level=2).level == 2


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


def test_points_need_area() -> None:
    with pytest.raises(UsageError, match="no area"):
        shapes.points(Mesh(np.zeros((3, 3)), np.array([[0, 1, 2]])), 8, np.random.default_rng(0))


@pytest.mark.parametrize(("split", "level"), [("validation", None), ("train", 3)])
def test_unknown_splits_and_levels_are_refused(split: str, level: int | None) -> None:
    with pytest.raises(UsageError, match="splits train, test"):
        shapes.shape(np.random.default_rng(0), split, level)
