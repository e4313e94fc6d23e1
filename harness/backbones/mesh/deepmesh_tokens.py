"""DeepMesh's tokens: vertices as patch, block and offset ids on 512 steps an axis, in fans around a centre.

A vertex is a patch id (0 to 63), a block id in it (64 to 575) and an offset id in that (576 to 4671); patch and block
are left out where they repeat. A patch id written as 4672 to 4735 starts a fan. The vertex after its centre names all
three again.

Source: Zhao et al. 2025, arXiv:2503.15265; `sft/datasets/serializaiton.py` of zhaorw02/DeepMesh at 5c8ac4e.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from stridebench.harness.errors import OutputError
from stridebench.harness.record.outputs import Mesh

PATCHES, BLOCKS, STEPS = 4, 8, 16
"""An axis is cut into patches, these into blocks, these into steps."""
SIZE = PATCHES * BLOCKS * STEPS
"""Steps an axis: 512, nine bits."""
FIRST_BLOCK = PATCHES**3
FIRST_OFFSET = FIRST_BLOCK + BLOCKS**3
FIRST_CENTRE = FIRST_OFFSET + STEPS**3
SOS = FIRST_CENTRE + PATCHES**3
"""The token before every sequence: 4736."""
EOS = SOS + 1
VOCABULARY = EOS + 1
Vertex = tuple[int, int, int]


def decode(tokens: Sequence[int]) -> Mesh:
    """The mesh of a sequence, vertices float64 in the middle of their steps in [-1, 1]; the end token closes it.

    Axes are those of the points that the model reads. The released sampler turns points (x, y, z) into (z, x, y) and
    its output (a, b, c) into (c, b, a). So (a, b, c) here is (a, c, b) in the frame of the points.

    Raises:
        OutputError: no end token, an id out of place, a fan of fewer than three vertices, or no face at all.
    """
    ids = [int(token) for token in tokens]
    if EOS not in ids:
        raise OutputError(f"the mesh has no end token in {len(ids)} tokens, so it is cut; allow more tokens")
    fans = list(_fans(ids[: ids.index(EOS)]))
    corners = np.array([(fan[0], fan[k], fan[k + 1]) for fan in fans for k in range(1, len(fan) - 1)]).reshape(-1, 3)
    vertices, merged = np.unique(corners, axis=0, return_inverse=True)
    faces = merged.reshape(-1, 3)
    faces = faces[(faces != np.roll(faces, 1, axis=1)).all(1)]
    if not len(faces):
        raise OutputError(f"the {len(ids)} tokens hold no face with three different corners")
    _, first = np.unique(np.sort(faces, 1), axis=0, return_index=True)
    used, places = np.unique(faces[np.sort(first)], return_inverse=True)
    return Mesh(((vertices[used] + 0.5) / SIZE * 2 - 1)[:, [0, 2, 1]], places.reshape(-1, 3))


def _fans(ids: Sequence[int]) -> Iterator[list[Vertex]]:
    """Centre and fan of each patch, as steps."""
    fan: list[Vertex] = []
    patch = block = -1
    expected = "patch"
    for place, token in enumerate(ids):
        kind = _kind(token)
        if expected not in (kind, "any") or kind == "special":
            raise OutputError(f"token {place} of the mesh is {token}, where {_ONE_OF[expected]} has to stand")
        if kind == "patch":
            if token >= FIRST_CENTRE and place:
                yield _checked(fan, place)
                fan = []
            patch, expected = token % FIRST_CENTRE, "block"
        elif kind == "block":
            block, expected = token - FIRST_BLOCK, "offset"
        else:
            fan.append(_steps(patch, block, token - FIRST_OFFSET))
            expected = "any"
    if expected != "any":
        raise OutputError(f"the {len(ids)} tokens of the mesh end where {_ONE_OF[expected]} has to stand")
    yield _checked(fan, len(ids))


_ONE_OF = {"patch": "a patch", "block": "a block", "offset": "an offset", "any": "a patch, a block or an offset"}


def _kind(token: int) -> str:
    if token < 0 or token >= SOS:
        return "special"
    if token < FIRST_BLOCK or token >= FIRST_CENTRE:
        return "patch"
    return "block" if token < FIRST_OFFSET else "offset"


def _checked(fan: list[Vertex], place: int) -> list[Vertex]:
    if len(fan) < 3:
        raise OutputError(f"the fan that ends before token {place} has {len(fan)} vertices; a face needs three")
    return fan


def _steps(patch: int, block: int, offset: int) -> Vertex:
    steps = [
        (patch // PATCHES**place % PATCHES) * BLOCKS * STEPS
        + (block // BLOCKS**place % BLOCKS) * STEPS
        + offset // STEPS**place % STEPS
        for place in (2, 1, 0)
    ]
    return steps[0], steps[1], steps[2]
