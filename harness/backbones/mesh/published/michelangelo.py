"""The point encoder of Michelangelo, as BPT and DeepMesh ship it inside their checkpoints: points to 257 latents.

Modules are named as in the checkpoints. Source: Zhao et al. 2023, arXiv:2306.17115; `miche/` of whaohan/bpt at ec80ad9
(the same files in zhaorw02/DeepMesh at 5c8ac4e) with `shapevae-256.yaml`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

UNUSED = tuple(
    f"conditioner.point_encoder.model.{module}"
    for module in (
        "shape_projection",
        "shape_model.pre_kl.",
        "shape_model.post_kl.",
        "shape_model.transformer.",
        "shape_model.geo_decoder.",
    )
)
"""Beginnings of names of tensors that serve only to reconstruct the shape from the latents."""


@dataclass(frozen=True)
class EncoderSizes:
    """Sizes of the encoder; as published by default.

    Args:
        width, heads, layers: of its attention.
        latents: besides the one of the whole shape.
        octaves: of the sines of a position.
        out: width of what both decoders read.
    """

    width: int = 768
    heads: int = 12
    layers: int = 8
    latents: int = 256
    octaves: int = 8
    out: int = 1024


class Conditioner(nn.Module):
    """Points to the entries that the decoder attends to."""

    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        model = nn.ModuleDict({"encoder": _PointEncoder(sizes)})
        self.point_encoder = nn.ModuleDict({"model": nn.ModuleDict({"shape_model": model})})
        self.cond_head_proj = nn.Linear(sizes.width, sizes.out)
        self.cond_proj = nn.Linear(sizes.width, sizes.out)

    def forward(self, points: Float[Tensor, "n 6"]) -> Float[Tensor, "K C"]:
        """First the entry of the whole shape, then one for each latent."""
        latents = self.get_submodule("point_encoder.model.shape_model.encoder")(points)
        return torch.cat([self.cond_head_proj(latents[:1]), self.cond_proj(latents[1:])])


class _PointEncoder(nn.Module):
    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        width = sizes.width
        self.octaves = sizes.octaves
        self.query = nn.Parameter(torch.randn(1 + sizes.latents, width) * 0.02)
        self.input_proj = nn.Linear(3 * (2 * sizes.octaves + 1) + 3, width)
        self.cross_attn = _Reader(width, sizes.heads)
        self.self_attn = nn.ModuleDict(
            {"resblocks": nn.ModuleList(_Mixer(width, sizes.heads) for _ in range(sizes.layers))}
        )
        self.ln_post = nn.LayerNorm(width)

    def forward(self, points: Float[Tensor, "n 6"]) -> Float[Tensor, "K E"]:
        rates = 2.0 ** torch.arange(self.octaves, device=points.device)
        phase = (points[:, :3, None] * rates.to(points.dtype)).flatten(1)
        data = self.input_proj(torch.cat([points[:, :3], phase.sin(), phase.cos(), points[:, 3:]], 1))
        x = self.cross_attn(self.query, data)
        for block in self.self_attn["resblocks"].children():
            x = block(x)
        out: Tensor = self.ln_post(x)
        return out


class _Reader(nn.Module):
    """Cross-attention and a feed-forward layer, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        linears = {"c_q": (width, width), "c_kv": (width, 2 * width)}
        self.attn = nn.ModuleDict({name: nn.Linear(*size, bias=False) for name, size in linears.items()})
        self.attn["c_proj"] = nn.Linear(width, width)
        self.ln_1, self.ln_2, self.ln_3 = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = _mlp(width)

    def forward(self, x: Float[Tensor, "K E"], data: Float[Tensor, "n E"]) -> Float[Tensor, "K E"]:
        query = heads_of(self.attn["c_q"](self.ln_1(x)), self.heads)
        keys, values = heads_of(self.attn["c_kv"](self.ln_2(data)), self.heads).chunk(2, -1)
        x = x + self.attn["c_proj"](joined(functional.scaled_dot_product_attention(query, keys, values)))
        return x + _feed(self.mlp, self.ln_3(x))


class _Mixer(nn.Module):
    """Self-attention and a feed-forward layer, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attn = nn.ModuleDict({"c_qkv": nn.Linear(width, 3 * width, bias=False), "c_proj": nn.Linear(width, width)})
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = _mlp(width)

    def forward(self, x: Float[Tensor, "K E"]) -> Float[Tensor, "K E"]:
        q, k, v = heads_of(self.attn["c_qkv"](self.ln_1(x)), self.heads).chunk(3, -1)
        x = x + self.attn["c_proj"](joined(functional.scaled_dot_product_attention(q, k, v)))
        return x + _feed(self.mlp, self.ln_2(x))


def _mlp(width: int) -> nn.ModuleDict:
    return nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})


def _feed(mlp: nn.ModuleDict, x: Tensor) -> Tensor:
    out: Tensor = mlp["c_proj"](functional.gelu(mlp["c_fc"](x)))
    return out


def heads_of(x: Float[Tensor, "N HD"], heads: int) -> Float[Tensor, "1 H N D"]:
    """Head by head, as attention takes it."""
    return x.reshape(len(x), heads, -1).transpose(0, 1)[None]


def joined(x: Float[Tensor, "1 H N D"]) -> Float[Tensor, "N HD"]:
    """Heads side by side again."""
    return x[0].transpose(0, 1).flatten(1)
