"""How near up- and down-sampled tokens come to those of the real picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int8
from torch import Tensor
from torch.nn import functional

from harness.synthetic import emoji
from methods.drafters.scales.net import Pair
from methods.drafters.scales.samplers import Samplers
from methods.training.scales.scenes import CELL, encoded

REGIONS = {"smooth": emoji.SMOOTH, "textured": emoji.TEXTURED, "object": emoji.OBJECT}
PART = 50
"""Scenes held at a time."""


class Compared(NamedTuple):
    """Cell by cell: whether the token is the real picture's, the squared error of its pixels in 0..1, its region."""

    same: Bool[Tensor, "B h w"]
    error: Float[Tensor, "B h w"]
    regions: Int8[Tensor, "B h w"]


def figures(pair: Pair, tokenizer: Any, drawn: Sequence[emoji.Scene]) -> dict[str, float]:
    """``{direction}_{source}_same``, share of tokens equal to the real ones, and ``_psnr`` in dB; whole and by region.

    Sources: the trained pair; the untrained repeat, bilinear and average; the real tokens, whose PSNR is the ceiling.
    """
    parts = [_compared(pair, tokenizer, drawn[start : start + PART]) for start in range(0, len(drawn), PART)]
    found = {}
    for key in parts[0]:
        same, error, regions = (
            torch.cat(field) for field in zip(*(component[key] for component in parts), strict=True)
        )
        for region, inside in (("", regions >= 0), *((f"_{name}", regions == at) for name, at in REGIONS.items())):
            found[f"{key}_same{region}"] = float(same[inside].float().mean())
            found[f"{key}_psnr{region}"] = -10 * math.log10(float(error[inside].mean()))
    return found


@torch.no_grad()
def _compared(pair: Pair, tokenizer: Any, drawn: Sequence[emoji.Scene]) -> dict[str, Compared]:
    """By direction and source."""
    book, scales = tokenizer.codebook, encoded(tokenizer, drawn)
    trained = Samplers.of(pair, book)
    repeat, bilinear = (Samplers.untrained(kind, book, trained.factor) for kind in ("repeat", "bilinear"))
    changes = {
        "up": {"trained": trained.up, "repeat": repeat.up, "bilinear": bilinear.up},
        "down": {"trained": trained.down, "average": repeat.down},
    }
    found = {}
    for name, other in (("up", "down"), ("down", "up")):
        pixels, real = scales[name]
        regions = torch.from_numpy(np.stack([emoji.regions(scene, real.shape[1]) for scene in drawn]))
        made = {source: torch.stack([*map(change, scales[other].ids)]) for source, change in changes[name].items()}
        for source, ids in (made | {"real": real}).items():
            painted = tokenizer.decode(ids).permute(0, 3, 1, 2).float() / 127.5 - 1
            error = functional.avg_pool2d(((painted - pixels) / 2).square().mean(1), CELL)
            found[f"{name}_{source}"] = Compared(ids == real, error, regions)
    return found
