"""How close up- and down-sampled tokens are to those of the real picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int8
from torch import Tensor
from torch.nn import functional

from stridebench.harness.synthetic import emoji
from stridebench.methods.drafters.scales.net import Pair
from stridebench.methods.drafters.scales.samplers import Samplers
from stridebench.methods.training.scales.scenes import CELL, encoded

CHUNK = 50
"""Scenes that are resampled at once."""


class Compared(NamedTuple):
    """For each token: whether it equals the real one, the squared error of its pixels in [0, 1], and its region."""

    same: Bool[Tensor, "B h w"]
    error: Float[Tensor, "B h w"]
    regions: Int8[Tensor, "B h w"]


def figures(pair: Pair, tokenizer: Any, drawn: Sequence[emoji.Scene]) -> dict[str, float]:
    """``{direction}_{source}_same``, the share of tokens equal to the real ones, and ``_psnr`` in dB.

    Each figure is given for whole pictures and by region. The sources are the trained samplers, the untrained repeat,
    bilinear and average, and the real tokens, whose PSNR is the ceiling.
    """
    chunks = [_compared(pair, tokenizer, drawn[start : start + CHUNK]) for start in range(0, len(drawn), CHUNK)]
    shares = {}
    for key in chunks[0]:
        same, error, regions = (torch.cat(field) for field in zip(*(chunk[key] for chunk in chunks), strict=True))
        inside = {"": regions >= 0} | {f"_{name}": regions == region for name, region in emoji.REGIONS.items()}
        for region, tokens in inside.items():
            shares[f"{key}_same{region}"] = float(same[tokens].float().mean())
            shares[f"{key}_psnr{region}"] = -10 * math.log10(float(error[tokens].mean()))
    return shares


@torch.no_grad()
def _compared(pair: Pair, tokenizer: Any, drawn: Sequence[emoji.Scene]) -> dict[str, Compared]:
    """The comparison of each direction and source."""
    book, scales = tokenizer.codebook, encoded(tokenizer, drawn)
    trained = Samplers.of(pair, book)
    repeat, bilinear = (Samplers.untrained(kind, book, trained.factor) for kind in ("repeat", "bilinear"))
    changes = {
        "up": {"trained": trained.up, "repeat": repeat.up, "bilinear": bilinear.up},
        "down": {"trained": trained.down, "average": repeat.down},
    }
    comparisons = {}
    for name, other in (("up", "down"), ("down", "up")):
        pixels, real = scales[name]
        regions = torch.from_numpy(np.stack([emoji.regions(scene, real.shape[1]) for scene in drawn]))
        resampled = {source: torch.stack([*map(change, scales[other].ids)]) for source, change in changes[name].items()}
        for source, ids in (resampled | {"real": real}).items():
            painted = tokenizer.decode(ids).permute(0, 3, 1, 2).float() / 127.5 - 1
            error = functional.avg_pool2d(((painted - pixels) / 2).square().mean(1), CELL)
            comparisons[f"{name}_{source}"] = Compared(ids == real, error, regions)
    return comparisons
