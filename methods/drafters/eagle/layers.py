"""Layers of a feature drafter's net: products, norms, rotations.

Symbols: B branches or sequences, H heads, N entries, D width of a head, I and O of a linear layer.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from harness.core.packed_linear import Product, product


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


def rotate(x: Float[Tensor, "B H N D"], positions: Int[Tensor, " N"], theta: float) -> Float[Tensor, "B H N D"]:
    """Rotary positions as Llama has them: dimension j is rotated with j + D / 2."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * theta ** (-torch.arange(half, device=x.device) / half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    left, right = x[..., :half], x[..., half:]
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)
