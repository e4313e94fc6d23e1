"""Places of the objects of an emoji scene: on a lattice of 8 pixels of 64, without overlap, as the caption says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

STEP = 8
CELLS = 64 // STEP

Test = Callable[[float, float], bool]
"""Takes how far the first object's centre lies right of and below the second's, in lattice steps."""

_RELATED: dict[str, Test] = {
    "left of": lambda across, down: across <= -2 and abs(across) > 1.5 * abs(down),
    "right of": lambda across, down: across >= 2 and abs(across) > 1.5 * abs(down),
    "above": lambda across, down: down <= -2 and abs(down) > 1.5 * abs(across),
    "below": lambda across, down: down >= 2 and abs(down) > 1.5 * abs(across),
}
RELATIONS = tuple(_RELATED)


def place(random: np.random.Generator, sides: Sequence[int], relation: str) -> list[tuple[int, int]]:
    """Rows and columns of boxes that do not overlap; the first stands in ``relation`` to the second, "" for none."""
    related = _RELATED.get(relation)
    while True:
        free = [CELLS + 1 - side for side in sides]
        rows, columns = (random.random((2, len(sides))) * free).astype(int).tolist()
        boxes = list(zip(rows, columns, sides, strict=True))
        if any(_overlap(boxes[a], boxes[b]) for a in range(len(boxes)) for b in range(a)):
            continue
        if related and not related(*_offset(boxes[0], boxes[1])):
            continue
        return list(zip(rows, columns, strict=True))


Box = tuple[int, int, int]


def _overlap(a: Box, b: Box) -> bool:
    rows = a[0] < b[0] + b[2] and b[0] < a[0] + a[2]
    return rows and a[1] < b[1] + b[2] and b[1] < a[1] + a[2]


def _offset(a: Box, b: Box) -> tuple[float, float]:
    return a[1] + a[2] / 2 - b[1] - b[2] / 2, a[0] + a[2] / 2 - b[0] - b[2] / 2
