"""Procedural shapes, free ones and furniture on a grid: closed, of the promised sizes, and held out by parameter."""

from __future__ import annotations

from collections import Counter
from types import ModuleType

import numpy as np
import pytest

from stridebench.harness.backbones.mesh import bpt_tokens
from stridebench.harness.errors import UsageError
from stridebench.harness.record.outputs import Mesh
from stridebench.harness.synthetic import furniture, shapes
from stridebench.harness.synthetic.furniture import SPLITS, FurnitureDice
from stridebench.harness.synthetic.shapes_parts import SHARES, STRIPS, Dice

DICE = {shapes: Dice, furniture: FurnitureDice}
BOTH = pytest.mark.parametrize("module", DICE, ids=["shapes", "furniture"])


def build(module: ModuleType, kind: str, level: int, split: str, seed: int) -> Mesh:
    mesh: Mesh = module.build(kind, level, DICE[module](np.random.default_rng(seed), split))
    return mesh


@pytest.mark.parametrize("level", range(3))
@pytest.mark.parametrize("split", SPLITS)
def test_sequences_have_the_promised_lengths_and_decode_to_all_faces(split: str, level: int) -> None:
    for module, (least, most), seeds in ((shapes, (300, 900), 4), (furniture, (80, 350), 8)):
        for kind in module.KINDS:
            for seed in range(seeds):
                mesh = build(module, kind, level, split, seed)
                row, exact = bpt_tokens.encode(mesh), bpt_tokens.quantise(mesh)
                assert least <= len(row) <= most, kind
                assert len(bpt_tokens.decode(row).faces) == len(exact.faces)
                if module is shapes:
                    assert np.abs(mesh.vertices).max() == pytest.approx(0.95)
                    continue
                assert (exact.vertices % 2 == 0).all()
                np.testing.assert_allclose(np.unique(mesh.vertices), np.unique((exact.vertices + 0.5) / 64 - 1))
                low, high = mesh.vertices.min(0), mesh.vertices.max(0)
                assert (low >= -1).all() and np.abs(low + high).max() <= 0.05  # the middle of two cells is no cell


@BOTH
def test_every_part_is_closed_and_turned_outwards_and_higher_levels_have_more_faces(module: ModuleType) -> None:
    for kind, parts in module.KINDS.items():
        for level in range(3):
            for part in parts(DICE[module](np.random.default_rng(7), "train"), level):
                edges = Counter(edge for a, b, c in part.faces.tolist() for edge in ((a, b), (b, c), (c, a)))
                assert all(edges[b, a] == 1 == times for (a, b), times in edges.items())
                a, b, c = (part.vertices[part.faces[:, k]] for k in range(3))
                assert (a * np.cross(b, c)).sum() > 0
        counts = [[len(build(module, kind, level, "train", seed).faces) for seed in range(5)] for level in range(3)]
        assert max(counts[0]) < min(counts[1]) and max(counts[1]) < min(counts[2])


@BOTH
def test_shapes_depend_on_the_generator_only_and_cover_kinds_and_levels(module: ModuleType) -> None:
    first, second = (module.shape(np.random.default_rng(5), "test") for _ in range(2))
    assert np.array_equal(first.mesh.vertices, second.mesh.vertices) and first.category == second.category
    random = np.random.default_rng(0)
    drawn = [module.shape(random, "train") for _ in range(1000)]
    np.testing.assert_allclose(np.bincount([one.level for one in drawn]) / 1000, shapes.LEVELS, atol=0.06)
    assert {one.category for one in drawn} == set(module.KINDS)
    assert module.shape(random, "train", level=2).level == 2
    for split, level in (("validation", None), ("train", 3)):
        with pytest.raises(UsageError, match="splits train, test"):
            module.shape(random, split, level)


def test_parameters_of_tests_are_never_drawn_in_training() -> None:
    values = {}
    for split in SHARES:
        dice = Dice(np.random.default_rng(3), split)
        values[split] = sorted(dice.within(0, 1) * STRIPS % 1 for _ in range(3000))
    assert values["train"][-1] < 0.7 < 0.75 < values["test"][0]
    assert values["test"][-1] < 0.95
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
