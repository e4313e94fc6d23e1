"""What a scene holds, and how much of it was found: the detector's own accuracy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.synthetic import emoji
from tasks.metrics.attributes import Seen, judge

NEAR = 4.0
"""Pixels that a centre may be off, of 64: one token."""


def truth(drawn: emoji.Scene) -> list[Seen]:
    """The objects of a scene as a perfect detector would find them."""
    found = []
    for thing in drawn.things:
        x, y = (8 * corner + 4 * thing.side for corner in (thing.column, thing.row))
        found.append(Seen(thing.kind, thing.colour, x, y, 8 * thing.side))
    return found


def exact(found: Sequence[Seen], drawn: emoji.Scene) -> dict[str, bool]:
    """Whether all that was found of a scene is right: kinds, how many, colours, and centres within a cell."""
    real = truth(drawn)
    pairs = [min(found, key=lambda s: abs(s.x - o.x) + abs(s.y - o.y), default=None) for o in real]
    near = [s is not None and max(abs(s.x - o.x), abs(s.y - o.y)) <= NEAR for s, o in zip(pairs, real, strict=True)]
    return {
        "object": {s.kind for s in found} == {o.kind for o in real},
        "count": sorted(s.kind for s in found) == sorted(o.kind for o in real),
        "colour": sorted((s.kind, s.colour) for s in found) == sorted((o.kind, o.colour) for o in real),
        "position": all(near)
        and all(s is not None and s.kind == o.kind for s, o in zip(pairs, real, strict=True))
        and len(found) == len(real),
    }


def shares(found: Sequence[Sequence[Seen]], drawn: Sequence[emoji.Scene]) -> dict[str, float]:
    """Share of scenes found exactly, by part; and, as ``asked_...``, of scenes judged to meet their own prompt."""
    right: dict[str, list[float]] = {}
    for seen, scene in zip(found, drawn, strict=True):
        asked = {f"asked_{name}": score for name, score in judge(seen, emoji.specification(scene)).items()}
        for name, value in (exact(seen, scene) | asked).items():
            right.setdefault(name, []).append(float(value))
    return {name: float(np.mean(values)) for name, values in right.items()}
