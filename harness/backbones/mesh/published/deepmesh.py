"""DeepMesh's decoder in the layout of its published checkpoint: an hourglass that shortens by three, twice.

A level runs its first layers over all of its entries. Every third entry, with the two before it, becomes one entry of
the level below. The result is added to that entry and to the two after it, and the level runs its last layers. So no
entry attends to later ones. All layers also attend to the latents of the point cloud.

Source: Zhao et al. 2025, arXiv:2503.15265; `lit_gpt/model_cache.py` and `sample.py` of zhaorw02/DeepMesh at 5c8ac4e.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.backbones.mesh import deepmesh_tokens as mesh
from stridebench.harness.backbones.mesh.layers import angles, turn
from stridebench.harness.backbones.mesh.published.michelangelo import Conditioner, EncoderSizes, heads_of, joined

EPS = 1e-5
FACTOR = 3
"""Entries that become one."""
Pair = tuple[Tensor, Tensor]
"""Keys and values [1, H, K, D] of a cross-attention."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a DeepMesh; as published for 0.5 B by default.

    Args:
        width, heads, hidden: of the decoder's layers.
        layers: of each level, before it shortens; every level but the last has as many again after.
        window: entries, after which the released sampler forgets half of them; see `sliding_cache`.
        context: tokens of a mesh, as the released script has them.
        points: of a shape.
    """

    width: int = 1280
    heads: int = 10
    hidden: int = 5120
    layers: tuple[int, ...] = (4, 4, 5)
    window: int = 9000
    context: int = 90_000
    points: int = 16_384
    encoder: EncoderSizes = field(default_factory=EncoderSizes)


class DeepMesh(nn.Module):
    """The parameters, named as in the checkpoint."""

    prompt = mesh.SOS
    eos = mesh.EOS
    vocabulary = mesh.VOCABULARY

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        width = sizes.width
        self.lm_head = nn.Linear(width, mesh.VOCABULARY, bias=False)
        parts = {
            "wte": nn.Embedding(mesh.VOCABULARY, width),
            "h": Hourglass(sizes),
            "ln_f": nn.RMSNorm(width, eps=EPS),
        }
        self.transformer = nn.ModuleDict(parts)
        self.conditioner = Conditioner(sizes.encoder)
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(sizes.encoder.out, width)

    def levels(self) -> list[Hourglass]:
        """From the widest to the shortest."""
        levels: list[Any] = [self.transformer["h"]]
        while levels[-1].inner:
            levels.append(levels[-1].hourglass)
        return levels

    def latents(self, points: Float[Tensor, "n 6"]) -> Float[Tensor, "K E"]:
        """What all layers attend to."""
        out: Tensor = self.norm(self.linear(self.conditioner(points)))
        return out

    def rotations(self) -> Pair:
        """Cosines and sines [T, D], through bf16 as in the released code."""
        cos, sin = angles(self.sizes.context, self.sizes.width // self.sizes.heads)
        like = self.lm_head.weight
        return cos.bfloat16().to(like), sin.bfloat16().to(like)


class Hourglass(nn.Module):
    """A level and those below it."""

    def __init__(self, sizes: Sizes, level: int = 0) -> None:
        super().__init__()
        width, count = sizes.width, sizes.layers[level]
        self.pre_layer = nn.ModuleList(Block(sizes) for _ in range(count))
        self.inner: bool = level + 1 < len(sizes.layers)
        if self.inner:
            self.downsample = nn.ModuleDict({"proj": nn.Linear(FACTOR * width, width)})
            self.upsample = nn.ModuleDict({"proj": nn.Linear(width, FACTOR * width)})
            self.hourglass = Hourglass(sizes, level + 1)
            self.post_layer = nn.ModuleList(Block(sizes) for _ in range(count))

    def before(self) -> Iterable[Any]:
        """Layers that run before the level shortens."""
        return self.pre_layer

    def behind(self) -> Iterable[Any]:
        """Layers that run after the level below; the last level has none."""
        return self.post_layer if self.inner else ()


class Block(nn.Module):
    """A layer: self-attention, attention to the point cloud, SiLU-gated; each added to its input."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.width
        self.heads = sizes.heads
        self.norm_1, self.norm_cross, self.norm_2 = (nn.RMSNorm(width, eps=EPS) for _ in range(3))
        self.attn = _linears({"attn": (width, 3 * width), "proj": (width, width)})
        self.cross_attn = _linears(
            {"q_proj": (width, width), "kv_proj": (width, 2 * width), "out_proj": (width, width)}
        )
        gated = {"w1": (width, sizes.hidden), "w2": (width, sizes.hidden), "w3": (sizes.hidden, width)}
        self.mlp = nn.ModuleDict({"swiglu": _linears(gated)})

    def consult(self, latents: Float[Tensor, "K E"]) -> Pair:
        """Keys and values of the point cloud."""
        keys, values = self.cross_attn["kv_proj"](latents).chunk(2, -1)
        return heads_of(keys, self.heads), heads_of(values, self.heads)

    def forward(
        self, x: Float[Tensor, "N E"], rotation: Pair, mask: Float[Tensor, "N T"] | None, cross: Pair, slot: Any
    ) -> Float[Tensor, "N E"]:
        """One pass after the entries of the slot; without a mask rows attend to all earlier entries."""
        q, k, v = heads_of(self.attn["attn"](self.norm_1(x)), self.heads).chunk(3, -1)
        q, k = turn(q, *rotation), turn(k, *rotation)
        keys, values = slot.update(k, v)
        causal = mask is None and len(x) > 1
        attended = functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask, is_causal=causal)
        x = x + self.attn["proj"](joined(attended))
        query = heads_of(self.cross_attn["q_proj"](self.norm_cross(x)), self.heads)
        x = x + self.cross_attn["out_proj"](joined(functional.scaled_dot_product_attention(query, *cross)))
        gated: Any = self.mlp["swiglu"]
        normed = self.norm_2(x)
        out: Tensor = x + gated["w3"](functional.silu(gated["w1"](normed)) * gated["w2"](normed))
        return out


def _linears(widths: dict[str, tuple[int, int]]) -> nn.ModuleDict:
    return nn.ModuleDict({name: nn.Linear(*width, bias=False) for name, width in widths.items()})
