"""The samplers of MuLo-SD for emoji scenes: `stride train samplers mulo-2x`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int8
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.registry import RECIPES
from stridebench.harness.synthetic import emoji
from stridebench.methods.drafters.scales.net import Pair, Samplers, SamplerShape
from stridebench.methods.training.scales.samplers_recipe import (
    BANDS,
    CELL,
    Frozen,
    SamplersRecipe,
    SamplerTraining,
    band,
    encoded,
    perceptual,
)

# How close up- and down-sampled tokens are to those of the real picture.


CHUNK = 50
"""Scenes that are resampled at once."""


class ScaleComparison(NamedTuple):
    """For each token: whether it equals the real one, the squared error of its pixels in [0, 1], and its region."""

    same: Bool[Tensor, "B h w"]
    error: Float[Tensor, "B h w"]
    regions: Int8[Tensor, "B h w"]


def figures(pair: Pair, tokenizer: Any, drawn: Sequence[emoji.EmojiScene]) -> dict[str, float]:
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
def _compared(pair: Pair, tokenizer: Any, drawn: Sequence[emoji.EmojiScene]) -> dict[str, ScaleComparison]:
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
            comparisons[f"{name}_{source}"] = ScaleComparison(ids == real, error, regions)
    return comparisons


TOKENIZER = "emoji-vq"
FACTOR = 2
CHECKED = 600
"""Held-out scenes of the figures."""


@dataclass(frozen=True, kw_only=True)
class MuLoSamplers(SamplersRecipe):
    """U_r and D_r together, on scenes drawn at both sizes and encoded by one tokenizer.

    The paper trains 20 M parameters for 150,000 steps of 32 pictures at a rate of 3e-4. These samplers have 0.8 M
    parameters and 400 steps.
    """

    batch: int = 32
    hours: float = 0.4
    rate: float = 2e-3

    source = "stridebench.harness.synthetic.emoji, from Noto Color Emoji (SIL OFL 1.1), and emoji-vq"
    requires = (TOKENIZER,)
    serves = ("embedded-image", "embedded-image-small")

    def build(self, requirements: Mapping[str, Path]) -> SamplerTraining:
        """New samplers, which equal the untrained control.

        Raises:
            UsageError: LPIPS has a weight and cannot be computed on this machine.
        """
        tokenizer = RECIPES.get(TOKENIZER).load(requirements[TOKENIZER]).requires_grad_(False)
        book: Tensor = tokenizer.codebook
        pair = Pair(SamplerShape(FACTOR, len(book), book.shape[1], self.width, self.blocks))
        pair.codebook.copy_(book)
        model = SamplerTraining(pair, self.critics(), Frozen(tokenizer, perceptual() if self.lpips else None))
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the stubs lack it
        return model

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        assert isinstance(model, SamplerTraining)
        scales = encoded(model.frozen.tokenizer, [emoji.scene(random, "train") for _ in range(self.batch)])
        count = scales["down"].ids.shape[1]
        rows = band(count, random) if random.random() < BANDS else slice(0, count)
        return self.both(model, scales, rows, step)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Figures on held-out scenes, with the untrained samplers and the tokenizer's ceiling; see `figures`."""
        assert isinstance(model, SamplerTraining)
        return figures(model.pair, model.frozen.tokenizer, emoji.scenes(1, "held-out", CHECKED))


RECIPES.register("mulo-2x")(
    MuLoSamplers(summary="up- and down-sampler of MuLo-SD for emoji scenes, 8x8 and 16x16 tokens")
)
RECIPES.register("mulo-2x-gan")(
    MuLoSamplers(
        summary="the same with LPIPS and a discriminator, as published; needs the extra image",
        lpips=1.0,
        gan=0.25,
        hours=1.5,
    )
)
