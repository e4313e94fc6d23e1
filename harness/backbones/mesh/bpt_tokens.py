"""Meshes as tokens: block-wise indices of quantised vertices, face patches around shared vertices.

Source: Weng et al. 2024, arXiv:2411.07025 (BPT), sections 3.1 and 3.2, in the layout of the released code
(whaohan/bpt at ec80ad9, 8 blocks of 16 steps an axis). Coordinates are in [-1, 1], z is vertical.

A vertex is a block id (0 to 511) and an offset id (512 to 4607); a block id that repeats within a patch is left out.
A patch is a centre and the fan of vertices around it: n + 1 of them give n faces. The centre's block is written with
ids 4608 to 5119, which marks the start of a patch, and the vertex after it always names its block. As in the released
code the first patch is an exception to both: an ordinary block id starts it. The end token 5120 closes the mesh.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from stridebench.harness.errors import OutputError, UsageError
from stridebench.harness.record.outputs import Mesh

Link = tuple[int, int, int]
"""A face at the centre: its other corners in the order of its orientation, and its number."""


def patches(faces: Sequence[Sequence[int]], vertices: int) -> Iterator[list[int]]:
    """Yield patches that cover each face once: the centre, then n + 1 vertices whose neighbours make n faces with it.

    The centre is the corner of the first face left that lies in the most faces left; ties as in whaohan/bpt. Here a fan
    never passes a face that is turned the other way, so that every mesh keeps its orientation.
    """
    around: list[list[Link]] = [[] for _ in range(vertices)]
    for number, (a, b, c) in enumerate(faces):
        around[a].append((b, c, number))
        around[b].append((c, a, number))
        around[c].append((a, b, number))
    left = [len(links) for links in around]
    done = bytearray(len(faces))
    for number, face in enumerate(faces):
        while not done[number]:
            centre = max(face, key=left.__getitem__)
            fan, used = _fan([link for link in around[centre] if not done[link[2]]])
            for covered in used:
                done[covered] = 1
                for corner in faces[covered]:
                    left[corner] -= 1
            yield [centre, *fan]


def _fan(links: Sequence[Link]) -> tuple[list[int], list[int]]:
    """Walk along links, each used once; return the vertices passed and the faces used."""
    ahead: dict[int, list[Link]] = defaultdict(list)
    behind: dict[int, list[Link]] = defaultdict(list)
    for link in sorted(links, reverse=True):
        ahead[link[0]].append(link)
        behind[link[1]].append(link)
    fan = [_start(links, ahead, behind)]
    used: list[int] = []
    while ahead[fan[-1]]:
        link = ahead[fan[-1]].pop()
        fan.append(link[1])
        used.append(link[2])
    return fan, used


def _start(links: Sequence[Link], ahead: dict[int, list[Link]], behind: dict[int, list[Link]]) -> int:
    """Return the lowest end of an open fan, walked back to where it begins, or the lowest vertex of a closed one."""
    touched = Counter(corner for link in links for corner in link[:2])
    open_ends = [corner for corner, times in touched.items() if times == 1]
    start = min(open_ends or touched)
    passed: set[int] = set()
    while not ahead[start] or (passed and behind[start] and start not in passed):
        passed.add(start)
        start = behind[start][-1][0]
    return start


BLOCKS = 8
"""Blocks an axis."""
STEPS = 16
"""Steps an axis within a block."""
SIZE = BLOCKS * STEPS
"""Steps an axis: 128, seven bits."""
OFFSETS = BLOCKS**3
"""The first offset id."""
CENTRES = OFFSETS + STEPS**3
"""The first id of a centre's block."""
EOS = CENTRES + BLOCKS**3
"""The end token: 5120."""
SOS = EOS + 1
"""The token before every sequence; it is never part of a mesh."""
VOCABULARY = SOS + 1
ORDER = 32
"""Vertices are sorted by cubes of this many steps, then by z, y and x, so that neighbouring faces stay close."""


def quantise(mesh: Mesh) -> Mesh:
    """Return vertices as steps int64 in 0 to 127, merged and sorted; faces without repeats, lowest vertex first.

    Raises UsageError if a coordinate lies outside [-1, 1] or is not finite, or no face is left.
    """
    if not (np.abs(mesh.vertices) <= 1).all():
        raise UsageError("the mesh has coordinates outside [-1, 1]; scale it with `normalise`")
    steps = np.rint((mesh.vertices + 1) / 2 * SIZE - 0.5).astype(np.int64).clip(0, SIZE - 1)
    tidy = tidied(steps, mesh.faces)
    if tidy is None:
        raise UsageError(f"no face of the mesh is left at {SIZE} steps an axis; it is too small or flat")
    return tidy


def tidied(steps: npt.NDArray[np.int64], faces: npt.NDArray[np.int64]) -> Mesh | None:
    """Merge equal vertices, drop faces that collapse or repeat, and sort both; return None if no face is left."""
    cube = steps // ORDER
    side = SIZE // ORDER
    block = (cube[:, 2] * side + cube[:, 1]) * side + cube[:, 0]
    key = ((block * SIZE + steps[:, 2]) * SIZE + steps[:, 1]) * SIZE + steps[:, 0]
    _, first, merged = np.unique(key, return_index=True, return_inverse=True)
    corners = merged[faces]
    corners = corners[(corners != np.roll(corners, 1, axis=1)).all(1)]
    if not len(corners):
        return None
    turn = (corners.argmin(1)[:, None] + np.arange(3)) % 3
    corners = np.unique(np.take_along_axis(corners, turn, 1), axis=0)
    corners = corners[np.lexsort(np.sort(corners, 1).T[::-1])]
    used, places = np.unique(corners, return_inverse=True)
    return Mesh(steps[first][used], places.reshape(-1, 3))


def encode(mesh: Mesh) -> list[int]:
    """Return the token ids of a mesh, the end token last; raises as `quantise`."""
    exact = quantise(mesh)
    block_steps, offset_steps = exact.vertices // STEPS, exact.vertices % STEPS
    blocks = (block_steps @ [BLOCKS**2, BLOCKS, 1]).tolist()
    offsets = (offset_steps @ [STEPS**2, STEPS, 1] + OFFSETS).tolist()
    tokens: list[int] = []
    for patch in patches(exact.faces.tolist(), len(exact.vertices)):
        named_block = -1 if tokens else blocks[patch[0]]
        for place, vertex in enumerate(patch):
            block = blocks[vertex]
            if place == 0:
                tokens.append(block + CENTRES if tokens else block)
            elif block != named_block:
                tokens.append(block)
                named_block = block
            tokens.append(offsets[vertex])
    return [*tokens, EOS]


def decode(tokens: Sequence[int]) -> Mesh:
    """Return the mesh of a sequence, vertices float64 in the middle of their steps; later ids are ignored.

    Raises OutputError: no end token, an id out of place, a patch of fewer than three vertices, or no face at all.
    """
    ids = [int(token) for token in tokens]
    if EOS not in ids:
        raise OutputError(f"the mesh has no end token in {len(ids)} tokens, so it is cut; allow more tokens")
    fans = list(_fans(ids[: ids.index(EOS)]))
    corners = [(fan[0], fan[k], fan[k + 1]) for fan in fans for k in range(1, len(fan) - 1)]
    steps = np.array(corners, dtype=np.int64).reshape(-1, 3)
    tidy = tidied(steps, np.arange(len(steps)).reshape(-1, 3)) if len(steps) else None
    if tidy is None:
        raise OutputError(f"the {len(ids)} tokens hold no face with three different corners")
    return Mesh((tidy.vertices + 0.5) / SIZE * 2 - 1, tidy.faces)


def _fans(ids: Sequence[int]) -> Iterable[list[tuple[int, int, int]]]:
    """Yield centre and fan of each patch, as steps."""
    fan: list[tuple[int, int, int]] = []
    block, fresh = -1, False
    for place, token in enumerate(ids):
        starts = CENTRES <= token < EOS
        if not 0 <= token < EOS:
            raise OutputError(f"token {place} of the mesh is {token}, which no mesh holds")
        if OFFSETS <= token < CENTRES:
            if block < 0:
                raise OutputError(f"token {place} of the mesh is the offset {token}, before any block")
            fan.append(_steps(block, token - OFFSETS))
            fresh = False
            continue
        if fresh:
            raise OutputError(f"token {place} of the mesh is the block {token}, right behind another block")
        if starts and fan:
            yield _checked(fan, place)
            fan = []
        block, fresh = token - CENTRES if starts else token, True
    if fresh:
        raise OutputError(f"the mesh ends behind the block {ids[-1]} without an offset")
    yield _checked(fan, len(ids))


def _checked(fan: list[tuple[int, int, int]], place: int) -> list[tuple[int, int, int]]:
    if len(fan) < 3:
        raise OutputError(f"the patch that ends before token {place} has {len(fan)} vertices; a face needs three")
    return fan


def _steps(block: int, offset: int) -> tuple[int, int, int]:
    """Return the steps of a vertex from its block (0 to 511) and offset (0 to 4095)."""
    x = block // BLOCKS**2 * STEPS + offset // STEPS**2
    y = block // BLOCKS % BLOCKS * STEPS + offset // STEPS % STEPS
    return x, y, block % BLOCKS * STEPS + offset % STEPS
