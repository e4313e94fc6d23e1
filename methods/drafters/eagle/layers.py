"""Layers of a feature drafter's net: products, norms, rotations.

Symbols: B branches or sequences, H heads, N entries, D width of a head, I and O of a linear layer.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.core.packed_linear import Product, product


class Packed(nn.Module):
    """A linear layer for inference, by `product`."""

    def __init__(self, weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None = None) -> None:
        super().__init__()
        self._product: Product = product(weight, bias)
        self._out = len(weight)

    def forward(self, x: Float[Tensor, "B N I"]) -> Float[Tensor, "B N O"]:
        shape = (*x.shape[:2], self._out)
        return self._product(x.flatten(0, 1)).reshape(shape) if x.numel() else x.new_empty(shape)


class Norm(nn.Module):
    """Root mean square norm."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)


class HeadNorm(nn.Module):
    """A norm of each head's query or key.

    Args:
        heads: H; 1: one weight for all heads, by root mean square.
        width: D.
    """

    def __init__(self, heads: int, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(heads, 1, width))
        self.bias = nn.Parameter(torch.zeros(heads, 1, width)) if heads > 1 else None

    def forward(self, x: Float[Tensor, "B H N D"]) -> Float[Tensor, "B H N D"]:
        if self.bias is None:
            return functional.rms_norm(x, x.shape[-1:], eps=self.eps) * self.weight.to(x.dtype)
        return functional.layer_norm(x, x.shape[-1:]) * self.weight.to(x.dtype) + self.bias.to(x.dtype)


def rotate(
    x: Float[Tensor, "B H N D"], positions: Int[Tensor, " N"], rates: Float[Tensor, " R"], sharpness: float = 1.0
) -> Float[Tensor, "B H N D"]:
    """Rotary positions as Llama has them: dimension j is rotated with j + D / 2, by ``rates[j]`` a position."""
    angles = positions[:, None] * rates
    cos, sin = (angles.cos() * sharpness).to(x.dtype), (angles.sin() * sharpness).to(x.dtype)
    left, right = x.chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


def rotate_cells(
    x: Float[Tensor, "B H N D"], places: Int[Tensor, " N"], side: int, theta: float
) -> Float[Tensor, "B H N D"]:
    """As LlamaGen: neighbouring dimensions, half by a cell's row and half by its column; 0 before the first cell.

    Args:
        places: of the cells in raster order, negative in the prompt.
        side: cells a side.
    """
    half = x.shape[-1] // 2
    rates = theta ** (-torch.arange(0, half, 2, device=x.device) / half)
    cells = places.clamp_min(0)
    angles = torch.cat([(cells // side)[:, None] * rates, (cells % side)[:, None] * rates], -1)
    inside = ((places >= 0) & (places < side * side))[:, None]
    cos, sin = ((inside * table).to(x.dtype) for table in (angles.cos(), angles.sin()))
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)
