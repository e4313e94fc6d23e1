"""The tokenizer of emoji scenes: `stride train backbone emoji-vq`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, Int8, UInt8
from torch import Tensor, nn

from stridebench.harness.backbones.image.vq import CODES, VQ, to_signed
from stridebench.harness.registry import RECIPES
from stridebench.harness.synthetic import emoji
from stridebench.harness.train.loop import Recipe, autocast, round_to_bf16, save_bf16

# Figures of the tokenizer of emoji scenes: reconstruction, use of codes, and agreement of an object's tokens.


def figures(model: VQ, drawn: Sequence[emoji.EmojiScene]) -> dict[str, float]:
    """For both sizes: PSNR in dB, whole and by region; share of codes used and their perplexity; agreement."""
    shares: dict[str, float] = {}
    for size in emoji.SIZES:
        ids, errors = reconstruct(model, drawn, size)
        share = torch.bincount(ids.flatten(), minlength=CODES) / ids.numel()
        regions = np.stack([emoji.regions(scene, size // 4) for scene in drawn])
        shares[f"psnr_{size}"] = psnr(errors)
        for name, region in emoji.REGIONS.items():
            shares[f"psnr_{size}_{name}"] = psnr(errors[torch.from_numpy(regions == region)])
        shares[f"usage_{size}"] = float((share > 0).float().mean())
        shares[f"perplexity_{size}"] = math.exp(float(torch.special.entr(share).sum()))
        shares[f"object_agreement_{size}"] = agreement(drawn, ids, regions)
    return shares


@torch.no_grad()
def reconstruct(
    model: VQ, drawn: Sequence[emoji.EmojiScene], size: int
) -> tuple[Int[Tensor, "B h w"], Float[Tensor, "B h w"]]:
    """Ids, and mean squared error of each 4x4 patch with pixels in 0..1."""
    ids, errors = [], []
    for start in range(0, len(drawn), 50):
        pictures = np.stack([emoji.render(scene, size) for scene in drawn[start : start + 50]])
        ids.append(model.encode(pictures))
        off = (model.decode(ids[-1]).float() - torch.from_numpy(pictures).float()) / 255
        errors.append(nn.functional.avg_pool2d(off.square().mean(-1), 4))
    return torch.cat(ids), torch.cat(errors)


def psnr(errors: Float[Tensor, "*n"]) -> float:
    """Peak signal to noise ratio of mean squared errors of pixels in 0..1."""
    return -10 * math.log10(float(errors.mean()))


def agreement(
    drawn: Sequence[emoji.EmojiScene], ids: Int[Tensor, "B h w"], regions: Int8[np.ndarray, "B h w"]
) -> float:
    """How often an object's token is the most frequent one at its place for that kind and colour."""
    tokens_of: dict[tuple[str, str, int, int], list[int]] = {}
    step = ids.shape[1] * 2 // 16
    for scene, tokens, region in zip(drawn, ids.numpy(), regions, strict=True):
        for thing in scene.things:
            for row in range(thing.side * step):
                for column in range(thing.side * step):
                    cell = (thing.row * step + row, thing.column * step + column)
                    if region[cell] == emoji.OBJECT:
                        key = (thing.kind, thing.colour, row, column)
                        tokens_of.setdefault(key, []).append(int(tokens[cell]))
    most = sum(max(map(tokens.count, set(tokens))) for tokens in tokens_of.values())
    return most / sum(map(len, tokens_of.values()))


BATCH = {64: 12, 32: 16}
KEEP = 0.99
"""Decay of the moving sums; a code follows the encodings of about a hundred steps."""
COMMIT = 0.25
OBJECT_WEIGHT = 5.0
"""Weight of an object's patch in the error and in placing codes; a background's is 1. Backgrounds fill most of a
picture and would otherwise take most of the codebook."""
REVIVE_EVERY, REVIVE_UNTIL, DEAD = 25, 0.8, 0.1 / CODES


class EmojiVQ(Recipe):
    """Reconstruct scenes at both sizes. Codes are moving averages of encodings; unused codes restart at one."""

    summary = "VQ tokenizer of emoji scenes: 1024 codes, a token for 4x4 pixels"
    source = "stridebench.harness.synthetic.emoji, from Noto Color Emoji (SIL OFL 1.1)"
    steps = 2000
    hours = 0.5
    rate = 2e-3
    warmup = 100
    fall = 0.6
    decay = 0.0

    def build(self, requirements: Mapping[str, Path]) -> nn.Module:
        model = VQ()
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the stubs lack it
        return model

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        assert isinstance(model, VQ)
        total = torch.zeros(())
        encodings, weights = [], []
        for size, count in BATCH.items():
            drawn = [emoji.scene(random, "train") for _ in range(count)]
            weight = _weights(drawn, size // 4)
            error, spread = _error(model, to_signed(_pictures(drawn, size)), weight)
            total = total + error / len(BATCH)
            encodings.append(spread.flatten(0, 2))
            weights.append(weight.flatten())
        _follow(model, torch.cat(encodings), torch.cat(weights), step, self.steps)
        return total

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        assert isinstance(model, VQ)
        return figures(model, emoji.scenes(1, "held-out", 2000))

    def export(self, model: nn.Module, folder: Path) -> None:
        round_to_bf16(model.state_dict().values())
        save_bf16(model, folder)

    def load(self, folder: Path) -> VQ:
        """A finished tokenizer, for recipes that require this one."""
        return VQ.load(folder)


def _pictures(drawn: Sequence[emoji.EmojiScene], size: int) -> UInt8[Tensor, "B size size 3"]:
    return torch.from_numpy(np.stack([emoji.render(s, size) for s in drawn]))


def _weights(drawn: Sequence[emoji.EmojiScene], cells: int) -> Float[Tensor, "B h w"]:
    objects = np.stack([emoji.regions(s, cells) for s in drawn]) == emoji.OBJECT
    return 1 + (OBJECT_WEIGHT - 1) * torch.from_numpy(objects).float()


def _error(
    model: VQ, pixels: Float[Tensor, "B 3 H W"], weight: Float[Tensor, "B h w"]
) -> tuple[Tensor, Float[Tensor, "B h w C"]]:
    """Absolute and squared error of the pixels with the commitment's; and the encodings."""
    with autocast():
        spread = model.spread(pixels)
    # The nearest code is found in fp32: bf16 cannot tell close ones apart.
    codes = model.codebook[model.nearest(spread.detach())]
    with autocast():
        painted = model.paint(spread + (codes - spread).detach())
    share = weight / weight.sum()
    off = (painted.float() - pixels).abs()
    patch = nn.functional.avg_pool2d((off + 2 * off.square()).mean(1), 4)
    commit = (spread - codes).square().sum(-1)
    return (share * (patch + COMMIT * commit)).sum(), spread.detach()


@torch.no_grad()
def _follow(model: VQ, encodings: Float[Tensor, "n C"], weight: Float[Tensor, " n"], step: int, steps: int) -> None:
    """Move each code toward the encodings nearest to it. A code without any moves to an encoding drawn by weight."""
    if step == 0:
        model.book.copy_(encodings[torch.multinomial(weight, CODES)] / CODES)
    ids, share = model.nearest(encodings), weight / weight.sum()
    model.used.mul_(KEEP).index_add_(0, ids, share, alpha=1 - KEEP)
    model.book.mul_(KEEP).index_add_(0, ids, encodings * share[:, None], alpha=1 - KEEP)
    if step % REVIVE_EVERY == 0 and step < REVIVE_UNTIL * steps:
        dead = (model.used < DEAD).nonzero()[:, 0]
        if len(dead):
            model.book[dead] = encodings[torch.multinomial(weight, len(dead))] / CODES
            model.used[dead] = 1 / CODES


RECIPES.register("emoji-vq")(EmojiVQ())
