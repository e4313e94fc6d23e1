"""Procedural furniture: closed, on the grid, of the promised sizes, and held out by length."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from stridebench.harness.backbones.mesh import bpt_tokens
from stridebench.harness.errors import UsageError
from stridebench.harness.record.outputs import Mesh
from stridebench.harness.synthetic import furniture
from stridebench.harness.synthetic.furniture import SPLITS, FurnitureDice

KINDS_AND_LEVELS = [(kind, level) for kind in furniture.KINDS for level in range(3)]


def build(kind: str, level: int, split: str, seed: int) -> Mesh:
    return furniture.build(kind, level, FurnitureDice(np.random.default_rng(seed), split))


@pytest.mark.parametrize(("kind", "level"), KINDS_AND_LEVELS)
@pytest.mark.parametrize("split", SPLITS)
def test_every_kind_lies_on_even_steps_and_decodes_to_all_faces(kind: str, level: int, split: str) -> None:
    for seed in range(8):
        mesh = build(kind, level, split, seed)
        row, exact = bpt_tokens.encode(mesh), bpt_tokens.quantise(mesh)
        assert 80 <= len(row) <= 350
        assert len(bpt_tokens.decode(row).faces) == len(exact.faces)
        assert (exact.vertices % 2 == 0).all()
        np.testing.assert_allclose(np.unique(mesh.vertices), np.unique((exact.vertices + 0.5) / 64 - 1))
        low, high = mesh.vertices.min(0), mesh.vertices.max(0)
        assert (low >= -1).all() and np.abs(low + high).max() <= 0.05  # the middle of two cells is no cell


@pytest.mark.parametrize(("kind", "level"), KINDS_AND_LEVELS)
def test_every_part_is_closed_and_turned_outwards(kind: str, level: int) -> None:
    for part in furniture.KINDS[kind](FurnitureDice(np.random.default_rng(7), "train"), level):
        edges = Counter(edge for a, b, c in part.faces.tolist() for edge in ((a, b), (b, c), (c, a)))
        assert all(edges[b, a] == 1 == times for (a, b), times in edges.items())
        a, b, c = (part.vertices[part.faces[:, k]] for k in range(3))
        assert (a * np.cross(b, c)).sum() > 0


@pytest.mark.parametrize("kind", sorted(furniture.KINDS))
def test_higher_levels_have_more_faces(kind: str) -> None:
    counts = [[len(build(kind, level, "train", seed).faces) for seed in range(5)] for level in range(3)]
    assert max(counts[0]) < min(counts[1]) and max(counts[1]) < min(counts[2])


def test_lengths_of_tests_are_never_drawn_in_training() -> None:
    for split, held_out in (("train", False), ("test", True)):
        dice = FurnitureDice(np.random.default_rng(3), split)
        lengths = {dice.length(2, 20) for _ in range(300)}
        assert lengths == {n for n in range(2, 21) if (n % 5 == 3) == held_out}


def test_plain_boxes_are_closed_and_lie_in_the_grid() -> None:
    one = furniture.boxes(np.random.default_rng(0), 3)
    assert one.mesh.vertices.shape == (24, 3) and one.mesh.faces.shape == (36, 3)
    steps = bpt_tokens.quantise(one.mesh).vertices
    assert (steps % 2 == 0).all() and np.abs(one.mesh.vertices).max() <= 1


def test_furniture_depends_on_the_generator_only_and_covers_kinds_and_levels() -> None:
    first, second = (furniture.shape(np.random.default_rng(5), "test") for _ in range(2))
    assert np.array_equal(first.mesh.vertices, second.mesh.vertices) and first.category == second.category
    random = np.random.default_rng(0)
    drawn = [furniture.shape(random, "train") for _ in range(400)]
    levels = np.bincount([one.level for one in drawn]) / 400
    np.testing.assert_allclose(levels, furniture.LEVELS, atol=0.1)  # four standard deviations
    assert set(one.category for one in drawn) == set(furniture.KINDS)
    assert furniture.shape(random, "train", level=2).level == 2


@pytest.mark.parametrize(("split", "level"), [("validation", None), ("train", 3)])
def test_unknown_splits_and_levels_are_refused(split: str, level: int | None) -> None:
    with pytest.raises(UsageError, match="splits train, test"):
        furniture.shape(np.random.default_rng(0), split, level)
