"""Handwritten digits of 8x8 pixels in 17 levels of grey, class by class.

Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI 1998 (CC BY 4.0), as distributed by
scikit-learn (see data/digits-licence.txt). Every sixth picture is held out: 299 of 1,797.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stridebench.harness.errors import OutputError, UsageError
from stridebench.harness.record.outputs import Picture

if TYPE_CHECKING:
    from jaxtyping import UInt8

DATA = Path(__file__).parent / "data" / "digits.npz"
SIDE = 8
LEVELS = 17
"""Number of grey levels. 0 is black and 16 white: a level counts the points of 4x4 that a pen covered."""
CLASSES = 10
VOCABULARY: tuple[str, ...] = ("digit", *map(str, range(CLASSES)))
"""Every word of every caption."""
SPLITS = ("train", "held-out")
HELD_OUT = 6
_GREY = np.round(np.arange(LEVELS) * 255 / (LEVELS - 1)).astype(np.uint8)


class Digits(NamedTuple):
    """Pictures and their classes."""

    levels: UInt8[np.ndarray, "n 8 8"]
    labels: UInt8[np.ndarray, " n"]


@cache
def _all() -> Digits:
    with np.load(DATA) as body:
        return Digits(body["levels"], body["labels"])


def load(split: str) -> Digits:
    """Return the real digits of a split, always in the same order, or raise UsageError if the split is unknown."""
    if split not in SPLITS:
        raise UsageError(f"there is no split {split!r} of the digits; choose one of {', '.join(SPLITS)}")
    digits = _all()
    chosen = (np.arange(len(digits.labels)) % HELD_OUT == HELD_OUT - 1) == (split == "held-out")
    return Digits(digits.levels[chosen], digits.labels[chosen])


def caption(label: int) -> str:
    """A class in words."""
    return f"digit {label}"


def picture(levels: UInt8[np.ndarray, "8 8"]) -> Picture:
    """Levels 0 to 16 as grey pixels."""
    return Picture(np.repeat(_GREY[levels][:, :, None], 3, 2))


def levels(image: Picture) -> UInt8[np.ndarray, "8 8"]:
    """Return the levels nearest to the pixels of a picture, or raise OutputError if it is not of 8x8 pixels."""
    if image.pixels.shape[:2] != (SIDE, SIDE):
        height, width = image.pixels.shape[:2]
        raise OutputError(f"a digit has {SIDE}x{SIDE} pixels and this picture {height}x{width}")
    grey = image.pixels.astype(np.float64).mean(2)
    nearest: UInt8[np.ndarray, "8 8"] = np.round(grey * (LEVELS - 1) / 255).astype(np.uint8)
    return nearest
