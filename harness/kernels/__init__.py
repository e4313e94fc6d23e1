"""Matrix products for few rows: packed fp32 and bf16, and weights rounded to 8 and 4 bits; a convolution block."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """x + a narrow 3x3 convolution of x, in the picture tokenizer and in MuLo-SD's samplers.

    There is no norm over the picture, or a token would depend on far objects.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.GELU(),
            nn.Conv2d(width, width // 2, 3, padding=1),
            nn.GELU(),
            nn.Conv2d(width // 2, width, 1),
        )

    def forward(self, x: Float[Tensor, "B C h w"]) -> Float[Tensor, "B C h w"]:
        out: Tensor = x + self.inner(x)
        return out
