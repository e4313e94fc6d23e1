"""Spatial relations of boxes, as T2I-CompBench++ scores them.

Source: Karine-Huang/T2I-CompBench, UniDet_eval/2D_spatial_eval.py, 3D_spatial_eval.py, numeracy_eval.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

Box = tuple[float, float, float, float]
"""x0, y0, x1, y1 in pixels."""

BESIDE = ("next to", "on side of", "near")
LOCALITIES_3D = ("in front of", "behind", "hidden")


def position_2d(relation: str | None, one: Box, other: Box, *, overlap: float = 0.1, near: float = 150) -> float:
    """Score how well two boxes have a relation, in [0, 1]. "on top of" scores 0, as in the official code."""
    dx, dy = _offset(one, other)
    if relation in BESIDE:
        return 1.0 if abs(dx) < near or abs(dy) < near else near / max(abs(dx), abs(dy))
    offsets = {
        "on the right of": (-dx, dy),
        "on the left of": (dx, dy),
        "on the bottom of": (-dy, dx),
        "on the top of": (dy, dx),
    }
    if relation not in offsets:
        return 0.0
    ahead, sideways = offsets[relation]
    if ahead <= 0 or abs(ahead) <= abs(sideways):
        return 0.0
    shared = iou(one, other)
    return 1.0 if shared < overlap else overlap / shared


def position_3d(
    relation: str | None, one: Box, other: Box, depth: Float[np.ndarray, "A B"], *, overlap: float = 0.5
) -> float:
    """Score how well one box is before or behind another, in [0, 1]; larger depth values are nearer.

    The depth map is indexed [x, y], as in the official code.
    """
    if relation not in LOCALITIES_3D:
        return position_2d(relation, one, other)
    means = [depth[int(b[0]) : int(b[2]), int(b[1]) : int(b[3])].mean() for b in (one, other)]
    shared, ahead = iou(one, other), float(means[0] - means[1])
    holds = ahead > 0 if relation == "in front of" else ahead < 0
    if not holds or shared == overlap:
        return 0.0
    return 1.0 if shared > overlap else shared / overlap


def iou(one: Box, other: Box) -> float:
    """Return the intersection over union of two boxes of areas above 0."""
    width = max(0.0, min(one[2], other[2]) - max(one[0], other[0]))
    height = max(0.0, min(one[3], other[3]) - max(one[1], other[1]))
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return width * height / (areas - width * height)


def same(one: Box, other: Box) -> bool:
    """Return whether nine tenths of the pixels of one box lie in the other."""
    width = max(0.0, min(one[2], other[2]) - max(one[0], other[0]) + 1)
    height = max(0.0, min(one[3], other[3]) - max(one[1], other[1]) + 1)
    areas = [(box[2] - box[0] + 1) * (box[3] - box[1] + 1) for box in (one, other)]
    shared = width * height
    return shared / (sum(areas) - shared) > 0.9 or any(shared / area > 0.9 for area in areas)


def _offset(one: Box, other: Box) -> tuple[float, float]:
    return (other[0] + other[2] - one[0] - one[2]) / 2, (other[1] + other[3] - one[1] - one[3]) / 2
