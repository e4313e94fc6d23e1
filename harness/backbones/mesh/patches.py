"""Faces into patches: every patch is a vertex and a fan of faces around it, in the order of their orientation.

Source: Weng et al. 2024, arXiv:2411.07025, section 3.2; ties as in whaohan/bpt at ec80ad9. Here a fan never passes
a face that is turned the other way, so that every mesh keeps its orientation.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

Link = tuple[int, int, int]
"""A face at the centre: its other corners in the order of its orientation, and its number."""


def patches(faces: Sequence[Sequence[int]], vertices: int) -> Iterator[list[int]]:
    """Patches that cover each face once: the centre, then n + 1 vertices whose neighbours make n faces with it.

    The centre is the corner of the first face left that lies in the most faces left.

    Args:
        faces: three vertex numbers each, in the order in which they are to be covered.
        vertices: their number.
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
    """A walk along links, each used once: the vertices passed and the faces used."""
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
    """The lowest end of an open fan, walked back to where it begins; the lowest vertex of a closed one."""
    touched = Counter(corner for link in links for corner in link[:2])
    open_ends = [corner for corner, times in touched.items() if times == 1]
    start = min(open_ends or touched)
    passed: set[int] = set()
    while not ahead[start] or (passed and behind[start] and start not in passed):
        passed.add(start)
        start = behind[start][-1][0]
    return start
