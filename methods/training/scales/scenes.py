"""Scenes at the two scales of MuLo-SD, as pixels and as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.synthetic import emoji

SIZES = {"up": 64, "down": 32}
"""Side in pixels of the picture that each direction produces."""
CELL = 4
"""Side of a token in pixels."""


class Scale(NamedTuple):
    """Pictures of one size, in [-1, 1], and their tokens."""

    pixels: Float[Tensor, "B 3 H W"]
    ids: Int[Tensor, "B h w"]

    def band(self, rows: slice, times: int) -> Scale:
        """The part of the pictures that some rows of the small scale's tokens cover.

        Args:
            rows: of the small scale's tokens.
            times: rows of this scale for one of these.
        """
        cell = self.pixels.shape[2] // self.ids.shape[1]
        first, last = rows.start * times, rows.stop * times
        return Scale(self.pixels[:, :, cell * first : cell * last], self.ids[:, first:last])


def encoded(tokenizer: Any, drawn: Sequence[emoji.Scene]) -> dict[str, Scale]:
    """Scenes at the size that each direction produces."""
    scales = {}
    for name, size in SIZES.items():
        pictures = torch.from_numpy(np.stack([emoji.render(scene, size) for scene in drawn]))
        pixels = pictures.permute(0, 3, 1, 2).float() / 127.5 - 1
        scales[name] = Scale(pixels, tokenizer.encode(pictures))
    return scales
