"""Meshes as tokens: exact both ways, laid out as published, and strict about tokens without a mesh."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stridebench.harness.backbones.mesh import bpt_tokens as tokens
from stridebench.harness.backbones.mesh import deepmesh as dm
from stridebench.harness.backbones.mesh.bpt_tokens import patches
from stridebench.harness.errors import OutputError, UsageError
from stridebench.harness.record.outputs import Mesh
from stridebench.harness.synthetic import shapes
from tests.support.tiny_mesh import tiny_point_mesh

Corner = tuple[int, int, int]
STEPS = st.integers(0, tokens.SIZE - 1)


def place(steps: Sequence[Sequence[int]]) -> np.ndarray:
    """Coordinates in the middle of steps."""
    return (np.asarray(steps, float) + 0.5) / tokens.SIZE * 2 - 1


def faces_of(mesh: Mesh) -> set[tuple[Corner, ...]]:
    """Faces as corner steps, turned so that the lowest corner is first."""
    exact = tokens.quantise(mesh)
    turned_faces = set()
    for face in exact.vertices[exact.faces].tolist():
        corners = [(x, y, z) for x, y, z in face]
        first = corners.index(min(corners))
        turned_faces.add(tuple(corners[first:] + corners[:first]))
    return turned_faces


def test_one_triangle_by_hand() -> None:
    """Block of (x, y, z) = 64 bx + 8 by + bz, offset = 512 + 256 ox + 16 oy + oz; the lowest z is first.

    Vertices by z: (0, 0, 0), (17, 0, 1) and (1, 2, 19); all lie in one face, so the first is the centre.
    """
    mesh = Mesh(place([(0, 0, 0), (17, 0, 1), (1, 2, 19)]), np.array([[0, 1, 2]]))
    assert tokens.encode(mesh) == [0, 512, 64, 512 + 256 + 1, 1, 512 + 256 + 32 + 3, 5120]


def test_repeated_blocks_are_omitted_and_centres_marked_from_the_second_patch_on() -> None:
    """Two separate triangles. The first patch writes the block once. The second one's centre is 4608 + block, and
    the vertex after it repeats the block."""
    far = [(16, 0, 0), (17, 0, 0), (16, 1, 0)]
    mesh = Mesh(place([(0, 0, 0), (1, 0, 0), (0, 1, 0), *far]), np.array([[0, 1, 2], [3, 4, 5]]))
    near = [0, 512, 768, 528]
    assert tokens.encode(mesh) == [*near, 4608 + 64, 512, 64, 768, 528, 5120]


@pytest.mark.parametrize(
    ("faces", "fans"),
    [
        ([(0, 1, 4), (1, 2, 4), (2, 3, 4), (0, 4, 3)], [(4, 0, 1, 2, 3, 0)]),  # closed, around the vertex of most
        ([(0, 1, 2), (0, 3, 2)], [(0, 1, 2), (0, 3, 2)]),  # orientation turns
    ],
)
def test_a_patch_is_a_fan_around_the_vertex_of_most_faces(
    faces: list[tuple[int, int, int]], fans: list[tuple[int, ...]]
) -> None:
    assert sorted(map(tuple, patches(sorted(faces), 5))) == fans


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(STEPS, STEPS, STEPS), min_size=3, max_size=14, unique=True),
    st.lists(st.tuples(*[st.integers(0, 13)] * 3), min_size=1, max_size=40),
)
def test_decoding_restores_the_faces_and_orientation_of_any_mesh(
    steps: list[Corner], drawn: list[tuple[int, int, int]]
) -> None:
    """Open and closed meshes, several fans at a vertex, more than two faces at an edge."""
    faces = [tuple(corner % len(steps) for corner in face) for face in drawn]
    faces = [face for face in faces if len(set(face)) == 3]
    if not faces:
        return
    mesh = Mesh(place(steps), np.array(faces))
    row = tokens.encode(mesh)
    assert row[-1] == tokens.EOS and all(0 <= token < tokens.EOS for token in row[:-1])
    assert faces_of(tokens.decode(row)) == faces_of(mesh)
    exact = tokens.quantise(mesh)
    fans = list(patches(sorted(map(tuple, exact.faces.tolist())), len(exact.vertices)))
    assert sum(len(fan) - 2 for fan in fans) == len(exact.faces), "each face is covered once"


def test_quantising_merges_drops_and_orders() -> None:
    """Equal steps become one vertex, a collapsed and a repeated face go, vertices are sorted by z before y before x."""
    steps = [(3, 0, 1), (3, 0, 1), (0, 5, 0), (9, 4, 0)]
    exact = tokens.quantise(Mesh(place(steps), np.array([[0, 2, 3], [2, 3, 1], [0, 1, 2]])))
    assert exact.vertices.tolist() == [[9, 4, 0], [0, 5, 0], [3, 0, 1]]
    assert exact.faces.tolist() == [[0, 2, 1]]


def test_normalising_centres_and_scales_the_longest_side() -> None:
    mesh = shapes.normalise(Mesh(np.array([[0.0, 0, 0], [8, 0, 0], [0, 2, 1]]), np.array([[0, 1, 2]])))
    np.testing.assert_allclose(mesh.vertices.min(0), [-0.95, -0.2375, -0.11875])
    np.testing.assert_allclose(mesh.vertices.max(0), [0.95, 0.2375, 0.11875])


@pytest.mark.parametrize(
    ("vertices", "says"),
    [
        ([[0, 0, 0], [2, 0, 0], [0, 1, 0]], "outside"),
        ([[0, 0, 0], [float("nan"), 0, 0], [0, 1, 0]], "outside"),
        ([[0, 0, 0], [1e-4, 0, 0], [0, 1e-4, 0]], "no face"),
    ],
)
def test_meshes_without_tokens_are_refused(vertices: list[list[float]], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        tokens.encode(Mesh(np.array(vertices), np.array([[0, 1, 2]])))


def test_a_point_cannot_be_normalised() -> None:
    with pytest.raises(UsageError, match="no finite size"):
        shapes.normalise(Mesh(np.ones((3, 3)), np.array([[0, 1, 2]])))


GOOD = [0, 512, 768, 528, 4672, 512, 64, 768, 528]


def test_tokens_after_the_end_are_ignored_and_a_first_centre_may_be_marked() -> None:
    plain = faces_of(tokens.decode([*GOOD, 5120]))
    assert len(plain) == 2
    assert faces_of(tokens.decode([*GOOD, 5120, 3, 5121])) == plain
    assert faces_of(tokens.decode([4608, *GOOD[1:], 5120])) == plain


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ([], "no end token"),
        (GOOD, "no end token in 9"),
        ([5120], "0 vertices"),
        ([*GOOD[:3], 5120], "2 vertices"),
        ([*GOOD[:-1], 5120], "2 vertices"),
        ([*GOOD[:3], *GOOD[4:], 5120], "before token 3"),
        ([*GOOD, 64, 5120], "ends behind the block 64"),
        ([512, *GOOD, 5120], "before any block"),
        ([0, *GOOD, 5120], "right behind another block"),
        ([*GOOD[:4], 5121, *GOOD[4:], 5120], "token 4 of the mesh is 5121"),
        ([*GOOD[:4], -1, 5120], "token 4 of the mesh is -1"),
        ([0, 512, 512, 528, 5120], "no face"),
    ],
)
def test_the_error_of_tokens_without_a_mesh_names_the_reason(row: list[int], says: str) -> None:
    with pytest.raises(OutputError, match=says):
        tokens.decode(row)


# DeepMesh's tokens: fans around centres, and the errors of tokens without a mesh.


def vertex(x: int, y: int, z: int, centre: bool = False) -> list[int]:
    """The three ids of a vertex at these of 512 steps."""
    patch, block, offset = (
        sum((value // width % base) * base ** (2 - axis) for axis, value in enumerate((x, y, z)))
        for width, base in ((128, 4), (16, 8), (1, 16))
    )
    return [patch + (dm.FIRST_CENTRE if centre else 0), block + dm.FIRST_BLOCK, offset + dm.FIRST_OFFSET]


def test_deepmesh_tokens_decode_to_fans_around_centres() -> None:
    """Two faces around a first centre, one around a second; repeated ids are omitted, as in the published writer."""
    first = [*vertex(0, 0, 0), *vertex(0, 0, 1)[2:], *vertex(0, 17, 1)[1:], *vertex(300, 17, 1)]
    second = [*vertex(511, 511, 511, True), *vertex(0, 0, 0), *vertex(0, 0, 1)[2:]]
    mesh = dm.decode([*first, *second, dm.EOS, 5])
    steps = np.rint((mesh.vertices + 1) / 2 * 512 - 0.5).astype(int)[:, [0, 2, 1]]
    faces = {frozenset(map(tuple, steps[face].tolist())) for face in mesh.faces}
    a, b, c, d, e = (0, 0, 0), (0, 0, 1), (0, 17, 1), (300, 17, 1), (511, 511, 511)
    assert faces == {frozenset({a, b, c}), frozenset({a, c, d}), frozenset({e, a, b})}
    assert len(mesh.faces) == 3 and len(mesh.vertices) == 5
    with pytest.raises(OutputError):
        tiny_point_mesh("deepmesh").decode([dm.EOS])


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ([*vertex(0, 0, 0), *vertex(1, 1, 1), *vertex(2, 2, 2)], "no end token"),
        ([dm.EOS], "has to stand"),
        ([*vertex(0, 0, 0), *vertex(1, 1, 1), dm.EOS], "needs three"),
        ([*vertex(0, 0, 0), *vertex(1, 1, 1), *vertex(2, 2, 2)[:2], dm.EOS], "an offset has to stand"),
        ([700, 70, dm.EOS], "a patch has to stand"),
        ([3, 700, dm.EOS], "a block has to stand"),
        ([*vertex(0, 0, 0), *vertex(1, 1, 1), dm.SOS, dm.EOS], "has to stand"),
        ([*vertex(0, 0, 0) * 3, dm.EOS], "no face"),
    ],
)
def test_deepmesh_tokens_without_a_mesh_are_failures(tokens: list[int], reason: str) -> None:
    with pytest.raises(OutputError, match=reason):
        dm.decode(tokens)
