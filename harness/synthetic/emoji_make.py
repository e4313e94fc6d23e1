"""Derives the shipped sprites from Debian's font fonts-noto-color-emoji (SIL Open Font License 1.1).

`python -m harness.synthetic.emoji_make NotoColorEmoji.ttf` writes data/emoji.npz again. The font is not shipped.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from harness.errors import UsageError

CODES = {
    **{"cat": 0x1F431, "panda": 0x1F43C, "frog": 0x1F438, "pig": 0x1F437, "fox": 0x1F98A, "penguin": 0x1F427},
    **{"fish": 0x1F420, "turtle": 0x1F422, "octopus": 0x1F419, "butterfly": 0x1F98B, "banana": 0x1F34C},
    **{"grapes": 0x1F347, "pineapple": 0x1F34D, "strawberry": 0x1F353, "watermelon": 0x1F349, "pizza": 0x1F355},
    **{"burger": 0x1F354, "cake": 0x1F370, "car": 0x1F697, "bus": 0x1F68C, "rocket": 0x1F680, "airplane": 0x2708},
    **{"tree": 0x1F332, "cactus": 0x1F335, "mushroom": 0x1F344, "sunflower": 0x1F33B, "house": 0x1F3E0},
    **{"umbrella": 0x2602, "football": 0x26BD, "camera": 0x1F4F7},
    **{"red heart": 0x2764, "orange heart": 0x1F9E1, "yellow heart": 0x1F49B, "green heart": 0x1F49A},
    **{"blue heart": 0x1F499, "purple heart": 0x1F49C, "red circle": 0x1F534, "orange circle": 0x1F7E0},
    **{"yellow circle": 0x1F7E1, "green circle": 0x1F7E2, "blue circle": 0x1F535, "purple circle": 0x1F7E3},
    **{"red square": 0x1F7E5, "orange square": 0x1F7E7, "yellow square": 0x1F7E8, "green square": 0x1F7E9},
    **{"blue square": 0x1F7E6, "purple square": 0x1F7EA, "red book": 0x1F4D5, "green book": 0x1F4D7},
    **{"blue book": 0x1F4D8, "orange book": 0x1F4D9, "orange diamond": 0x1F536, "blue diamond": 0x1F537},
    **{"red apple": 0x1F34E, "green apple": 0x1F34F},
}
"""Code point of each sprite: a kind, or a colour and a kind."""

SIZES = {24: 24, 16: 16, 12: 24, 8: 16}
"""Side of a sprite in pixels, and the side at which its margin is one pixel: 12 and 8 are 24 and 16 at half scale."""


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
            f"{font} has no picture of {len(missing)} sprites, such as {missing[0]}; take Debian 12's NotoColorEmoji"
        )
    pictures = [Image.open(io.BytesIO(strike[codes[code]].imageData)) for code in CODES.values()]
    arrays = {f"rgba{side}": np.stack([_fit(picture, side) for picture in pictures]) for side in SIZES}
    return {"names": np.array(list(CODES)), **arrays}


def _fit(picture: Image.Image, side: int) -> UInt8[np.ndarray, "S S 4"]:
    """The glyph, centred in a square that leaves its margin, resampled with premultiplied alpha."""
    glyph = picture.convert("RGBA")
    glyph = glyph.crop(glyph.getchannel("A").getbbox())
    whole = SIZES[side]
    width = round(max(glyph.size) * whole / (whole - 2))
    square = Image.new("RGBA", (width, width))
    square.paste(glyph, ((width - glyph.width) // 2, (width - glyph.height) // 2))
    return np.asarray(square.convert("RGBa").resize((side, side), Image.Resampling.LANCZOS).convert("RGBA"))


if __name__ == "__main__":
    np.savez_compressed(Path(__file__).parent / "data" / "emoji.npz", **make(Path(sys.argv[1])))
