"""What of its prompt a picture shows, from the objects found in it: GenEval's judgement, whole and part by part.

Source: Ghosh et al. 2023, arXiv:2310.11513, section 3; the rules are those of ``tasks.metrics.geneval``. Pure
functions: whatever finds the objects is another module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int8

from harness.synthetic.emoji import OBJECT, SMOOTH, TEXTURED
from tasks.metrics import geneval


@dataclass(frozen=True)
class Seen:
    """One object in a picture.

    Args:
        kind: its class. colour: "" where it has none. x, y: centre in pixels, right and down. side: of its square box
            in pixels. score: confidence, 0 to 1.
    """

    kind: str
    colour: str
    x: float
    y: float
    side: float
    score: float = 1.0

    def found(self) -> geneval.Found:
        """The same in GenEval's terms."""
        half = self.side / 2
        box = (self.x - half, self.y - half, self.x + half, self.y + half)
        return geneval.Found(box, self.score, self.colour)


def judge(found: Sequence[Seen], asked: Mapping[str, Any]) -> dict[str, float]:
    """Score one picture, each part 0 or 1.

    A part is GenEval's judgement of what is left of the prompt when only that is asked for.

    Args:
        found: objects in it, in any order. asked: a prompt in GenEval's layout: tag, include (class, count, and color
            or position where they are asked), exclude (class, count).

    Returns:
        ``object``: each class asked for is there at least once. ``overall``: all that GenEval requires holds. And,
        where the prompt asks for it, ``count``: exactly as many; ``colour`` and ``position``: they hold for the most
        confident objects of each class, as many as asked.
    """
    groups: dict[str, list[geneval.Found]] = {}
    for seen in sorted(found, key=lambda seen: -seen.score):
        groups.setdefault(seen.kind, []).append(seen.found())
    include, exclude = asked["include"], asked.get("exclude", ())
    parts = {"object": {"include": [{"class": want["class"], "count": 1} for want in include]}, "overall": asked}
    if exclude:
        parts["count"] = {"include": _without(include, "color", "position"), "exclude": exclude}
    if any("color" in want for want in include):
        parts["colour"] = {"include": _without(include, "position")}
    if any("position" in want for want in include):
        parts["position"] = {"include": _without(include, "color")}
    return {name: float(geneval.judge(groups, part).correct) for name, part in parts.items()}


def _without(include: Sequence[Mapping[str, Any]], *keys: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in want.items() if key not in keys} for want in include]


def regions(
    found: Sequence[Seen], textured: bool, cells: int = 16, pixels: int = 64
) -> Int8[np.ndarray, "cells cells"]:
    """Region of each token's cell in a picture that a model made: OBJECT where its middle lies in a found box.

    Args:
        found: objects, in pixels. textured: the background asked for. cells, pixels: of a side.
    """
    middle = (np.arange(cells) + 0.5) * pixels / cells
    out = np.full((cells, cells), TEXTURED if textured else SMOOTH, dtype=np.int8)
    for seen in found:
        rows, columns = (np.abs(middle - centre) < seen.side / 2 for centre in (seen.y, seen.x))
        out[np.ix_(rows, columns)] = OBJECT
    return out
