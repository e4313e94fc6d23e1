"""Figures of the tokenizer of emoji scenes: reconstruction, use of codes, and agreement of an object's tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor, nn

from stridebench.harness.backbones.image.vq import CODES, VQ
from stridebench.harness.synthetic import emoji


def figures(model: VQ, drawn: Sequence[emoji.Scene]) -> dict[str, float]:
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
    model: VQ, drawn: Sequence[emoji.Scene], size: int
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


def agreement(drawn: Sequence[emoji.Scene], ids: Int[Tensor, "B h w"], regions: Int8[np.ndarray, "B h w"]) -> float:
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
