"""DeepMesh's tokens: fans around centres, and the errors of tokens without a mesh."""

from __future__ import annotations

import numpy as np
import pytest

from stridebench.harness.backbones.mesh import deepmesh as dm
from stridebench.harness.errors import OutputError
from tests.support.tiny_mesh import tiny_point_mesh


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
    with pytest.raises(OutputError):
        tiny_point_mesh("deepmesh").decode(tokens)
