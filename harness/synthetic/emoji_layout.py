"""Where the objects of an emoji scene stand: few arrangements, each of which is moved down by up to one place.

Arrangements repeat, so a model sees the shape of a number and of a relation often enough to learn it. They are not
moved sideways: a model that draws row by row then often began the second of two objects at a wrong column.
"""

from __future__ import annotations

STEP = 8
"""Pixels of 64 between two places of the lattice."""
CELLS = 64 // STEP
SIDE = 3
"""Side of an object in lattice steps: 24 pixels of 64, 12 of 32."""
SHIFTS = 2
"""An arrangement is moved down by 0 or 1 step."""

Corner = tuple[int, int]
"""Row and column of an object's upper left corner, in lattice steps."""

ARRANGEMENTS: dict[int, tuple[str, tuple[Corner, ...]]] = {
    1: ("at centre", ((2, 2),)),
    2: ("in row", ((2, 0), (2, 4))),
    3: ("in triangle", ((0, 2), (4, 0), (4, 4))),
    4: ("at corners", ((0, 0), (0, 4), (4, 0), (4, 4))),
}
"""Words and places of equal objects, by number."""

_RELATED: dict[str, tuple[Corner, Corner]] = {
    "left of": ((2, 0), (2, 4)),
    "right of": ((2, 4), (2, 0)),
    "above": ((0, 2), (4, 2)),
    "below": ((4, 2), (0, 2)),
}
"""Places of the first and the second of two different objects."""
RELATIONS = tuple(_RELATED)


def places(number: int, relation: str, down: int) -> list[Corner]:
    """Corners of the objects, none of which overlap.

    Args:
        number: of the objects, 1 to 4.
        relation: of the first object to the second; "" for equal objects.
        down: how far all of them are moved, 0 or 1.
    """
    corners = _RELATED[relation] if relation else ARRANGEMENTS[number][1]
    return [(row + down, column) for row, column in corners]
