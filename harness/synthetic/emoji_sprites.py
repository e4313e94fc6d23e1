"""The pictures that emoji scenes are composed of: 36 kinds, six of which come in colours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from harness.errors import UsageError

DATA = Path(__file__).parent / "data" / "emoji.npz"

COLOURS = ("red", "orange", "yellow", "green", "blue", "purple")
COLOURED: dict[str, tuple[str, ...]] = {
    "heart": COLOURS,
    "circle": COLOURS,
    "square": COLOURS,
    "book": ("red", "orange", "green", "blue"),
    "diamond": ("orange", "blue"),
    "apple": ("red", "green"),
}
"""Kinds that have a colour, and the colours that each comes in."""

PLAIN = (
    *("cat", "panda", "frog", "pig", "fox", "penguin", "fish", "turtle", "octopus", "butterfly"),
    *("banana", "grapes", "pineapple", "strawberry", "watermelon", "pizza", "burger", "cake"),
    *("car", "bus", "rocket", "airplane", "tree", "cactus", "mushroom", "sunflower"),
    *("house", "umbrella", "football", "camera"),
)
KINDS = (*PLAIN, *COLOURED)


@dataclass(frozen=True, eq=False)
class Sprite:
    """One picture at one side S.

    Args:
        colour: its colours times its opacity, 0 to 255.
        clear: one minus its opacity, 0 to 1.
    """

    colour: Float32[np.ndarray, "S S 3"]
    clear: Float32[np.ndarray, "S S 1"]


@cache
def sprite(kind: str, colour: str, side: int) -> Sprite:
    """The picture of a kind (in a colour, "" where it has none) at 24, 16, 12 or 8 pixels."""
    index, layers = _layers(side)
    rgba = layers[index[f"{colour} {kind}".strip()]].astype(np.float32)
    opacity = rgba[..., 3:] / 255
    return Sprite(rgba[..., :3] * opacity, 1 - opacity)


@cache
def _layers(side: int) -> tuple[dict[str, int], Float32[np.ndarray, "sprites S S 4"]]:
    try:
        with np.load(DATA) as data:
            return {str(name): i for i, name in enumerate(data["names"])}, data[f"rgba{side}"]
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"the sprites in {DATA} cannot be read ({error}). Install stridebench again") from error
