"""Codes of pictures and their vectors, and pictures of another size.

Symbols: r linear factor between the scales, V codes of width C.
"""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional


def vectors(codebook: Float[Tensor, "V C"], ids: Int[Tensor, "B h w"]) -> Float[Tensor, "B C h w"]:
    """The vectors of ids, channels first."""
    return functional.embedding(ids, codebook).permute(0, 3, 1, 2)


def nearest_code(codebook: Float[Tensor, "V C"], x: Float[Tensor, "B C h w"]) -> Int[Tensor, "B h w"]:
    """Id of the nearest code by Euclidean distance: |x - c|^2 is least where x.c - |c|^2 / 2 is greatest."""
    return (x.permute(0, 2, 3, 1) @ codebook.T - codebook.square().sum(1) / 2).argmax(-1)


def bilinear(x: Float[Tensor, "B C h w"], factor: int) -> Float[Tensor, "B C H W"]:
    """Interpolated to r times the height and width."""
    return functional.interpolate(x, scale_factor=factor, mode="bilinear")
