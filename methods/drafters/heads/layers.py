"""Layers between a row of the target and the unembedding of a head: residual blocks, attention to a condition.

Sources: Cai et al. 2024, Medusa, arXiv:2401.10774, section 2.1; Stern et al. 2018, arXiv:1811.03115, section 6; Chen et
al., XSpecMesh, eq. 4. That paper leaves norm and residual open: here are both, and the output starts at zero.
Symbols: D heads, E width, N rows; M rows of a condition, C wide; A heads of an attention, W = E / A.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional


class Residual(nn.Module):
    """One residual block of every head; it adds zero until it is trained.

    Args:
        inner: 0 is Medusa's block; more is blockwise decoding's, through ``inner`` units.
    """

    def __init__(self, heads: int, width: int, inner: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(heads, inner, width) * width**-0.5) if inner else None
        self.last = nn.Parameter(torch.zeros(heads, width, inner or width))
        self.bias = nn.Parameter(torch.zeros(heads, 1, width))

    def forward(self, x: Float[Tensor, "D N E"]) -> Float[Tensor, "D N E"]:
        """Each head's own rows."""
        if self.first is None:
            return x + functional.silu(x @ self.last.transpose(1, 2) + self.bias)
        inside = functional.relu(x @ self.first.transpose(1, 2))
        return x + inside @ self.last.transpose(1, 2) + self.bias


class ConditionKV(NamedTuple):
    """Keys and values of a condition, for each head."""

    keys: Float[Tensor, "D A M W"]
    values: Float[Tensor, "D A M W"]


class CrossAttention(nn.Module):
    """A norm and attention of every head to the rows of a condition, added to the rows; zero until it is trained.

    Args:
        heads: D.
        width: E.
        condition: C.
        attention: A, which divides E.
    """

    def __init__(self, heads: int, width: int, condition: int, attention: int) -> None:
        super().__init__()
        self.attention = attention
        self.norm = nn.Parameter(torch.ones(heads, 1, width))
        self.query = nn.Parameter(torch.randn(heads, width, width) * width**-0.5)
        self.key = nn.Parameter(torch.randn(heads, condition, width) * condition**-0.5)
        self.value = nn.Parameter(torch.randn(heads, condition, width) * condition**-0.5)
        self.out = nn.Parameter(torch.zeros(heads, width, width))

    def look(self, condition: Float[Tensor, "M C"]) -> ConditionKV:
        """Keys and values, computed once for a condition."""
        return ConditionKV(self._split(condition @ self.key), self._split(condition @ self.value))

    def forward(self, x: Float[Tensor, "D N E"], condition: ConditionKV) -> Float[Tensor, "D N E"]:
        """Each head's own rows."""
        query = self._split((functional.layer_norm(x, x.shape[-1:]) * self.norm) @ self.query)
        scores = (query * query.shape[-1] ** -0.5) @ condition.keys.transpose(-1, -2)
        attended = scores.softmax(-1).to(condition.values.dtype) @ condition.values
        out: Tensor = x + attended.transpose(1, 2).flatten(2) @ self.out
        return out

    def _split(self, x: Float[Tensor, "D n E"]) -> Float[Tensor, "D A n W"]:
        return x.view(*x.shape[:-1], self.attention, -1).transpose(1, 2)
