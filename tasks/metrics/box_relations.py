"""How boxes stand to each other, as T2I-CompBench++ scores it.

Source: Karine-Huang/T2I-CompBench, UniDet_eval/2D_spatial_eval.py, 3D_spatial_eval.py, numeracy_eval.py.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

Box = tuple[float, float, float, float]
"""x0, y0, x1, y1 in pixels."""

BESIDE = ("next to", "on side of", "near")
LOCALITIES_3D = ("in front of", "behind", "hidden")


def position_2d(relation: str | None, one: Box, other: Box, *, overlap: float = 0.1, near: float = 150) -> float:
    """How well two boxes stand in a relation, in [0, 1]. "on top of" is no relation here, as in the official code."""
    dx, dy = _apart(one, other)
    if relation in BESIDE:
        return 1.0 if abs(dx) < near or abs(dy) < near else near / max(abs(dx), abs(dy))
    along = {
        "on the right of": (-dx, dy),
        "on the left of": (dx, dy),
        "on the bottom of": (-dy, dx),
        "on the top of": (dy, dx),
    }
    if relation not in along:
        return 0.0
    ahead, extra_ids = along[relation]
    if ahead <= 0 or abs(ahead) <= abs(extra_ids):
        return 0.0
    shared = iou(one, other)
    return 1.0 if shared < overlap else overlap / shared


def position_3d(
    relation: str | None, one: Box, other: Box, depth: Float[np.ndarray, "A B"], *, overlap: float = 0.5
) -> float:
    """How well two boxes stand before or behind each other, in [0, 1]; larger depth values are nearer.

    The map is indexed [x, y], as the official code does.
    """
    if relation not in LOCALITIES_3D:
        return position_2d(relation, one, other)
    means = [depth[int(b[0]) : int(b[2]), int(b[1]) : int(b[3])].mean() for b in (one, other)]
    shared, ahead = iou(one, other), float(means[0] - means[1])
    right = ahead > 0 if relation == "in front of" else ahead < 0
    if not right or shared == overlap:
        return 0.0
    return 1.0 if shared > overlap else shared / overlap


def iou(one: Box, other: Box) -> float:
    """Intersection over union of two boxes of areas above 0."""
    wide = max(0.0, min(one[2], other[2]) - max(one[0], other[0]))
    high = max(0.0, min(one[3], other[3]) - max(one[1], other[1]))
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return wide * high / (areas - wide * high)


def same(one: Box, other: Box) -> bool:
    """Whether nine tenths of one of two boxes, pixels counted, lie in the other."""
    wide = max(0.0, min(one[2], other[2]) - max(one[0], other[0]) + 1)
    high = max(0.0, min(one[3], other[3]) - max(one[1], other[1]) + 1)
    areas = [(box[2] - box[0] + 1) * (box[3] - box[1] + 1) for box in (one, other)]
    shared = wide * high
    return shared / (sum(areas) - shared) > 0.9 or any(shared / area > 0.9 for area in areas)


def _apart(one: Box, other: Box) -> tuple[float, float]:
    return (other[0] + other[2] - one[0] - one[2]) / 2, (other[1] + other[3] - one[1] - one[3]) / 2
