"""Building blocks of the encoder and the decoder of a mesh model: sizes, norms, attentions, gated layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.errors import WeightsError

EPS = 1e-6


@dataclass(frozen=True)
class Sizes:
    """Sizes of a mesh model.

    Args:
        width: E.
        layers: of the decoder.
        heads: of all attentions; width / heads is even.
        hidden: of the gated layers.
        latents: their number for a point cloud.
        encoder_layers: of self-attention among the latents.
        context: the most tokens.
        window: number of last positions, its own included, whose entries a row attends to; 0: all.
        shared_coordinates: whether the encoder adds to a point the decoder's rows of its quantised coordinates, which
            are weighted by the normal.
    """

    width: int = 128
    layers: int = 12
    heads: int = 4
    hidden: int = 384
    latents: int = 96
    encoder_layers: int = 2
    context: int = 1024
    window: int = 0
    shared_coordinates: bool = False

    @staticmethod
    def read(name: str, fields: Mapping[str, Any]) -> Sizes:
        """The sizes in the fields of a configuration file.

        Raises:
            WeightsError: a field is missing, unknown or not a whole number.
        """
        names = set(Sizes.__dataclass_fields__)
        whole = all(isinstance(value, int) for value in fields.values())
        if set(fields) | {"shared_coordinates"} != names or not whole:
            raise WeightsError(
                f"{name}: the configuration of a mesh model gives {', '.join(sorted(names))} as whole numbers; found "
                f"{dict(fields)}"
            )
        return Sizes(**fields)


def split_heads(x: Float[Tensor, "B N W"], heads: int) -> Float[Tensor, "B H N D"]:
    """Head by head."""
    return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)


def attend(
    q: Float[Tensor, "B H N D"], k: Float[Tensor, "B H N D"], v: Float[Tensor, "B H N D"], mask: Tensor | None
) -> Float[Tensor, "B N E"]:
    """Causal or masked attention, in fp32, because a CPU runs its backward pass in half the time of bf16."""
    with torch.autocast("cpu", enabled=False):
        attended = functional.scaled_dot_product_attention(
            q.float(), k.float(), v.float(), attn_mask=mask, is_causal=mask is None
        )
    return attended.transpose(1, 2).flatten(2)


def consult(
    q: Float[Tensor, "B H N D"], k: Float[Tensor, "B H M D"], v: Float[Tensor, "B H M D"], bias: Tensor | None = None
) -> Float[Tensor, "B N E"]:
    """Attention to all of few entries by plain products, whose backward pass is ten times faster than the fused one."""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    weights = (scores if bias is None else scores + bias).softmax(-1)
    attended: Tensor = weights.to(v.dtype) @ v
    return attended.transpose(1, 2).flatten(2)


def turn(x: Float[Tensor, "... D"], cos: Float[Tensor, "... D"], sin: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
    """Rotate pairs (d, d + D/2)."""
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


def angles(context: int, size: int) -> tuple[Float[Tensor, "T D"], Float[Tensor, "T D"]]:
    """Cosines and signed sines for `turn`, by position."""
    rate = 10_000.0 ** (-torch.arange(0, size, 2).float() / size)
    angle = torch.arange(context).float()[:, None] * rate
    return torch.cat([angle.cos()] * 2, 1), torch.cat([-angle.sin(), angle.sin()], 1)


def norm(width: int) -> nn.LayerNorm:
    """LayerNorm without bias: its backward pass is one kernel on a CPU, a fifth of the time of RMSNorm's."""
    return nn.LayerNorm(width, EPS, bias=False)


class Gated(nn.Module):
    """A norm and a SiLU-gated layer, added to its input."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm = norm(sizes.width)
        self.gate_up = nn.Linear(sizes.width, 2 * sizes.hidden, bias=False)
        self.down = nn.Linear(sizes.hidden, sizes.width, bias=False)

    def forward(self, x: Float[Tensor, "B N E"]) -> Float[Tensor, "B N E"]:
        """Input and output of equal shape."""
        gate, up = self.gate_up(self.norm(x)).chunk(2, -1)
        out: Tensor = x + self.down(functional.silu(gate) * up)
        return out
