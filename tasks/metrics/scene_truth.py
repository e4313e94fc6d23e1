"""The detector's accuracy: the objects of a scene, and which of them were detected."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stridebench.harness.synthetic import emoji
from stridebench.tasks.metrics.attributes import DetectedObject, judge

NEAR = 4.0
"""Tolerance of a centre in pixels, of 64: one token."""


def truth(scene: emoji.Scene) -> list[DetectedObject]:
    """Return the objects of a scene as a perfect detector would find them."""
    objects = []
    for thing in scene.things:
        x, y = (8 * corner + 4 * thing.side for corner in (thing.column, thing.row))
        objects.append(DetectedObject(thing.kind, thing.colour, x, y, 8 * thing.side))
    return objects


def exact(objects: Sequence[DetectedObject], scene: emoji.Scene) -> dict[str, bool]:
    """Return whether the detected objects of a scene are right: kinds, numbers, colours, and centres within a cell."""
    real = truth(scene)
    nearest = [min(objects, key=lambda s: abs(s.x - o.x) + abs(s.y - o.y), default=None) for o in real]
    near = [s is not None and max(abs(s.x - o.x), abs(s.y - o.y)) <= NEAR for s, o in zip(nearest, real, strict=True)]
    return {
        "object": {s.kind for s in objects} == {o.kind for o in real},
        "count": sorted(s.kind for s in objects) == sorted(o.kind for o in real),
        "colour": sorted((s.kind, s.colour) for s in objects) == sorted((o.kind, o.colour) for o in real),
        "position": all(near)
        and all(s is not None and s.kind == o.kind for s, o in zip(nearest, real, strict=True))
        and len(objects) == len(real),
    }


def shares(detected: Sequence[Sequence[DetectedObject]], scenes: Sequence[emoji.Scene]) -> dict[str, float]:
    """Return shares of exactly detected scenes by aspect, and as ``asked_...`` of scenes that match their prompt."""
    right: dict[str, list[float]] = {}
    for objects, scene in zip(detected, scenes, strict=True):
        judged = {f"asked_{name}": score for name, score in judge(objects, emoji.specification(scene)).items()}
        for name, value in (exact(objects, scene) | judged).items():
            right.setdefault(name, []).append(float(value))
    return {name: float(np.mean(values)) for name, values in right.items()}
