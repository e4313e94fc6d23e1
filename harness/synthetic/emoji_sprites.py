"""The pictures that emoji scenes are composed of: six kinds in six colours.

Hearts, circles and squares exist in every colour. The other kinds are one picture, whose bright hues are replaced.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stridebench.harness.errors import UsageError

if TYPE_CHECKING:
    from jaxtyping import Float32

DATA = Path(__file__).parent / "data" / "emoji.npz"

COLOURS = ("red", "orange", "yellow", "green", "blue", "purple")
DRAWN = ("heart", "circle", "square")
"""Kinds that the font has in every colour."""
TINTED = ("tree", "car", "fish")
"""Kinds that the font has in one colour."""
KINDS = (*DRAWN, *TINTED)


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
    """The picture of a kind in a colour, at 24 or 12 pixels."""
    if kind in DRAWN:
        rgba = _rgba(f"{colour} {kind}", side)
        rgb = rgba[..., :3]
    else:
        rgba = _rgba(kind, side)
        rgb = _tinted(rgba, _tint(colour))
    opacity = rgba[..., 3:] / 255
    return Sprite(rgb * opacity, 1 - opacity)


def _tinted(rgba: Float32[np.ndarray, "S S 4"], tint: Float32[np.ndarray, " 3"]) -> Float32[np.ndarray, "S S 3"]:
    """The picture with its bright hues replaced. What is grey, black or white stays."""
    rgb = rgba[..., :3]
    strongest, weakest = rgb.max(-1, keepdims=True), rgb.min(-1, keepdims=True)
    bright = np.clip((strongest - weakest) / 80 - 0.25, 0, 1)
    usual = np.median(strongest[(bright > 0.5) & (rgba[..., 3:] > 200)])
    shade = np.clip(strongest / usual, 0.6, 1.2)
    new: Float32[np.ndarray, "S S 3"] = np.clip((1 - bright) * rgb + bright * shade * tint, 0, 255).astype(np.float32)
    return new


@cache
def _tint(colour: str) -> Float32[np.ndarray, " 3"]:
    """The colour of the circle's middle."""
    middle: Float32[np.ndarray, " 3"] = _rgba(f"{colour} circle", 24)[8:16, 8:16, :3].mean((0, 1))
    return middle


def _rgba(name: str, side: int) -> Float32[np.ndarray, "S S 4"]:
    index, layers = _layers(side)
    picture: Float32[np.ndarray, "S S 4"] = layers[index[name]].astype(np.float32)
    return picture


@cache
def _layers(side: int) -> tuple[dict[str, int], Float32[np.ndarray, "sprites S S 4"]]:
    try:
        with np.load(DATA) as data:
            return {str(name): i for i, name in enumerate(data["names"])}, data[f"rgba{side}"]
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"the sprites in {DATA} cannot be read ({error}). Install stridebench again") from error
