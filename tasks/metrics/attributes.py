"""What a picture shows of its prompt, from the detected objects: GenEval's judgement, as a whole and by aspect.

Source: Ghosh et al. 2023, arXiv:2310.11513, section 3; the rules are those of ``tasks.metrics.geneval``. The
detector is another module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stridebench.harness.synthetic.emoji import OBJECT, SMOOTH, TEXTURED
from stridebench.tasks.metrics import geneval

if TYPE_CHECKING:
    from jaxtyping import Int8


@dataclass(frozen=True)
class DetectedObject:
    """One object in a picture.

    Args:
        kind: its class.
        colour: "" where it has none.
        x: centre in pixels, to the right.
        y: centre in pixels, down.
        side: of its square box in pixels.
        score: confidence, 0 to 1.
    """

    kind: str
    colour: str
    x: float
    y: float
    side: float
    score: float = 1.0

    def detection(self) -> geneval.Detection:
        """Return the object in GenEval's terms."""
        half = self.side / 2
        box = (self.x - half, self.y - half, self.x + half, self.y + half)
        return geneval.Detection(box, self.score, self.colour)


def judge(objects: Sequence[DetectedObject], prompt: Mapping[str, Any]) -> dict[str, float]:
    """Score one picture; each score is 0 or 1 and is GenEval's judgement of the prompt reduced to one aspect.

    Args:
        objects: the detected objects, in any order.
        prompt: a prompt in GenEval's layout: tag, include (class, count, and color or position where the prompt names
            them), exclude (class, count).

    Returns:
        ``object``: each class of the prompt is there at least once. ``overall``: all that GenEval requires holds.
        Where the prompt asks for them, ``count``: the number is exact; ``colour`` and ``position``: they hold for the
        most confident objects of each class, as many as the prompt counts.
    """
    groups: dict[str, list[geneval.Detection]] = {}
    for thing in sorted(objects, key=lambda thing: -thing.score):
        groups.setdefault(thing.kind, []).append(thing.detection())
    include, exclude = prompt["include"], prompt.get("exclude", ())
    parts = {"object": {"include": [{"class": entry["class"], "count": 1} for entry in include]}, "overall": prompt}
    if exclude:
        parts["count"] = {"include": _without(include, "color", "position"), "exclude": exclude}
    if any("color" in entry for entry in include):
        parts["colour"] = {"include": _without(include, "position")}
    if any("position" in entry for entry in include):
        parts["position"] = {"include": _without(include, "color")}
    return {name: float(geneval.judge(groups, part).correct) for name, part in parts.items()}


def _without(include: Sequence[Mapping[str, Any]], *keys: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in entry.items() if key not in keys} for entry in include]


def regions(
    objects: Sequence[DetectedObject], textured: bool, cells: int = 16, pixels: int = 64
) -> Int8[np.ndarray, "cells cells"]:
    """Return the region of each token's cell in a generated picture: OBJECT where its middle lies in a detected box.

    Args:
        objects: detected objects, in pixels.
        textured: whether the prompt's background is textured.
        cells: of a side.
        pixels: of a side.
    """
    middle = (np.arange(cells) + 0.5) * pixels / cells
    out = np.full((cells, cells), TEXTURED if textured else SMOOTH, dtype=np.int8)
    for thing in objects:
        rows, columns = (np.abs(middle - centre) < thing.side / 2 for centre in (thing.y, thing.x))
        out[np.ix_(rows, columns)] = OBJECT
    return out
