"""Derives the shipped sprites from Debian's font fonts-noto-color-emoji (SIL Open Font License 1.1).

`python -m tests.support.emoji_font NotoColorEmoji.ttf` writes emoji.npz again. The font is not shipped.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from stridebench.harness.errors import UsageError
from stridebench.harness.synthetic.emoji_sprites import DATA

if TYPE_CHECKING:
    from jaxtyping import UInt8

KINDS = {"tree": "🌲", "car": "🚗", "fish": "🐠"}
"""Characters of sprites that have one colour in the font."""
COLOURS = {
    "heart": {"red": "❤", "orange": "🧡", "yellow": "💛", "green": "💚", "blue": "💙", "purple": "💜"},
    "circle": {"red": "🔴", "orange": "🟠", "yellow": "🟡", "green": "🟢", "blue": "🔵", "purple": "🟣"},
    "square": {"red": "🟥", "orange": "🟧", "yellow": "🟨", "green": "🟩", "blue": "🟦", "purple": "🟪"},
}
"""Characters of sprites that have several colours, by kind."""
CODES = {name: ord(sprite) for name, sprite in KINDS.items()} | {
    f"{colour} {kind}": ord(sprite) for kind, colours in COLOURS.items() for colour, sprite in colours.items()
}
"""Code point of each sprite: a kind, or a colour and a kind."""

SIZES = {24: 24, 12: 24}
"""Side of a sprite in pixels: the side at which its margin is one pixel; 12 is 24 at half scale."""


def make(font: Path) -> dict[str, Any]:
    """Arrays of the shipped file: ``names`` and, for each side S, ``rgba{S}`` [sprite, S, S, 4].

    Raises:
        UsageError: the font lacks one of the pictures.
    """
    from fontTools.ttLib import TTFont

    table = TTFont(font)
    codes, strike = table.getBestCmap(), table["CBDT"].strikeData[0] if "CBDT" in table else {}
    missing = [name for name, code in CODES.items() if codes.get(code) not in strike]
    if missing:
        raise UsageError(
            f"{font} lacks pictures of {len(missing)} sprites, such as {missing[0]}; take Debian 12's NotoColorEmoji"
        )
    pictures = [Image.open(io.BytesIO(strike[codes[code]].imageData)) for code in CODES.values()]
    arrays = {f"rgba{side}": np.stack([_fit(picture, side) for picture in pictures]) for side in SIZES}
    return {"names": np.array(list(CODES)), **arrays}


def _fit(picture: Image.Image, side: int) -> UInt8[np.ndarray, "S S 4"]:
    """The glyph, centred in a square that leaves its margin, resampled with premultiplied alpha."""
    glyph = picture.convert("RGBA")
    glyph = glyph.crop(glyph.getchannel("A").getbbox())
    full = SIZES[side]
    width = round(max(glyph.size) * full / (full - 2))
    square = Image.new("RGBA", (width, width))
    square.paste(glyph, ((width - glyph.width) // 2, (width - glyph.height) // 2))
    return np.asarray(square.convert("RGBa").resize((side, side), Image.Resampling.LANCZOS).convert("RGBA"))


if __name__ == "__main__":
    np.savez_compressed(DATA, **make(Path(sys.argv[1])))
