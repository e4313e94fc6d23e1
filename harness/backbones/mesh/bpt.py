"""BPT's decoder in the layout of its published checkpoint, its encoder of points, and its forward over slots.

Source: Weng et al. 2024, arXiv:2411.07025; `model/model.py` of whaohan/bpt at ec80ad9 over x-transformers 1.26.6. With
the options there, that version scales queries and keys to length 1 and their product by 10, in self- and
cross-attention. Only the cross-attention has four learned entries more. Heads are 64 wide.

The encoder is Michelangelo's, which DeepMesh also ships: points to 257 latents. Source: Zhao et al. 2023,
arXiv:2306.17115; `miche/` of whaohan/bpt at ec80ad9 (the same files in zhaorw02/DeepMesh at 5c8ac4e) with
`shapevae-256.yaml`. Modules are named as in the checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.backbones.mesh import bpt_tokens as mesh
from stridebench.harness.backbones.slots.cache import TappedNet
from stridebench.harness.backbones.slots.net import SlotInputs
from stridebench.harness.core.backbone import TiedEmbeddings

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
    """Sizes of the encoder, as published by default; octaves are those of the sines of a position.

    Its ``latents`` do not count the one of the whole shape.
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
        """Return the entry of the whole shape, then one for each latent."""
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
    """Split rows into heads, as attention takes them."""
    return x.reshape(len(x), heads, -1).transpose(0, 1)[None]


def joined(x: Float[Tensor, "1 H N D"]) -> Float[Tensor, "N HD"]:
    """Put heads side by side again."""
    return x[0].transpose(0, 1).flatten(1)


SCALE = 10.0
MEMORIES = 4
Layer = tuple[Any, Any, Any, Any, Any, Any]
"""Norm and block of self-attention, of cross-attention and of the gated layer."""
Pair = tuple[Tensor, Tensor]
"""Keys and values [1, H, K, D] of a cross-attention."""


@dataclass(frozen=True)
class BPTSizes:
    """Sizes of a BPT, as published by default; codes are the most tokens of a mesh, points those of a shape."""

    dim: int = 1024
    depth: int = 24
    heads: int = 16
    codes: int = 10_000
    points: int = 4096
    encoder: EncoderSizes = field(default_factory=EncoderSizes)

    @property
    def context(self) -> int:
        return self.codes + 1


LOUD, SURE, FAN = 100.0, 4.0, 6
"""Of `draw_fans`: the length of rows of positions, the weight of kinds of ids, and vertices."""


class BPT(nn.Module):
    """The parameters, named as in the checkpoint."""

    prompt = mesh.SOS
    eos = mesh.EOS
    vocabulary = mesh.VOCABULARY

    def __init__(self, sizes: BPTSizes) -> None:
        super().__init__()
        self.sizes = sizes
        dim = sizes.dim
        self.sp_block_embed, self.block_embed, self.offset_embed = (nn.Parameter(torch.randn(1, dim)) for _ in range(3))
        self.sos_token = nn.Parameter(torch.randn(dim))
        self.token_embed = nn.Embedding(mesh.EOS + 1, dim)
        self.abs_pos_emb = nn.Embedding(sizes.codes, dim)
        self.conditioner = Conditioner(sizes.encoder)
        kinds = [lambda sizes: _projections(sizes, sizes.dim), _cross, _gated] * sizes.depth
        layers = [nn.ModuleList([nn.ModuleList([nn.LayerNorm(dim)]), kind(sizes)]) for kind in kinds]
        self.decoder = nn.ModuleDict({"layers": nn.ModuleList(layers), "final_norm": nn.LayerNorm(dim)})
        self.to_logits = nn.Linear(dim, mesh.EOS + 1)

    def weights(self) -> BPTWeights:
        """Return the parameters as the forward reads them. Call it after the model has its type and device."""
        parts: list[Any] = list(self.decoder["layers"].children())
        pairs = [part for norms, block in parts for part in (norms[0], block)]
        layers = [tuple(pairs[place : place + 6]) for place in range(0, len(pairs), 6)]
        return BPTWeights(self, layers, self.table(), self.places())

    def table(self) -> Float[Tensor, "V E"]:
        """Return the embeddings of all ids with those of their kinds; the start token last."""
        rows = self.token_embed.weight
        kinds = rows.new_zeros(rows.shape)
        kinds[: mesh.OFFSETS] = self.block_embed
        kinds[mesh.OFFSETS : mesh.CENTRES] = self.offset_embed
        kinds[mesh.CENTRES : mesh.EOS] = self.sp_block_embed
        return torch.cat([rows + kinds, self.sos_token[None]])

    def places(self) -> Float[Tensor, "T E"]:
        """Return the embeddings of positions; but for the start token, because it stands before the first position."""
        rows = self.abs_pos_emb.weight
        return torch.cat([rows.new_zeros(1, rows.shape[1]), rows])


@torch.no_grad()
def draw_fans(model: BPT) -> None:
    """Let a model of random weights write one fan: a block, six random offsets and the end, which is a valid mesh.

    Rows of the positions are far longer than the results of the layers, so they decide which kind of id follows.
    """
    block, offset, end = torch.linalg.qr(torch.randn(model.sizes.dim, 3)).Q.T
    block, offset, end = (row - row.mean() for row in (block, offset, end))
    model.sos_token.add_(LOUD * block)
    model.abs_pos_emb.weight[:FAN].add_(LOUD * offset)
    model.abs_pos_emb.weight[FAN:].add_(LOUD * (offset + 2 * end))
    rows, kinds = model.to_logits.weight, torch.stack([block, offset, end])
    rows.sub_(
        rows @ torch.linalg.pinv(kinds) @ kinds
    )  # so that ids of one kind are equally likely but for the position
    rows[: mesh.OFFSETS].add_(SURE * block)
    rows[mesh.OFFSETS : mesh.CENTRES].add_(SURE * offset)
    rows[mesh.EOS].add_(SURE * end)


def _projections(sizes: BPTSizes, context: int) -> nn.ModuleDict:
    inner = 64 * sizes.heads
    widths = {
        "to_q": (sizes.dim, inner),
        "to_k": (context, inner),
        "to_v": (context, inner),
        "to_out": (inner, sizes.dim),
    }
    return nn.ModuleDict({name: nn.Linear(*width, bias=False) for name, width in widths.items()})


def _cross(sizes: BPTSizes) -> nn.Module:
    block = _projections(sizes, sizes.encoder.out)
    for name in ("mem_k", "mem_v"):
        block.register_parameter(name, nn.Parameter(torch.randn(sizes.heads, MEMORIES, 64)))
    return block


def _gated(sizes: BPTSizes) -> nn.Module:
    gate = nn.ModuleDict({"proj": nn.Linear(sizes.dim, 8 * sizes.dim)})
    return nn.ModuleDict({"ff": nn.ModuleList([gate, nn.Identity(), nn.Linear(4 * sizes.dim, sizes.dim)])})


def _unit(x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
    return functional.normalize(x, dim=-1)


@dataclass(frozen=True, eq=False)
class BPTWeights:
    """Layers, embeddings [V, E] of ids and [T, E] of positions."""

    model: BPT
    layers: Sequence[Layer]
    table: Tensor
    places: Tensor

    def tied_embeddings(self) -> TiedEmbeddings:
        return TiedEmbeddings(self.table, functional.pad(self.model.to_logits.weight, (0, 0, 0, 1)))

    def bind(self, latents: Float[Tensor, "K C"]) -> BPTNet:
        cross = []
        for _, _, _, block, _, _ in self.layers:
            keys, values = (heads_of(block[name](latents), self.model.sizes.heads) for name in ("to_k", "to_v"))
            keys = _unit(torch.cat([block.mem_k[None], keys], 2))
            cross.append((keys, torch.cat([block.mem_v[None], values], 2)))
        return BPTNet(self, cross)

    def states(self, tokens: Int[Tensor, " N"], latents: Float[Tensor, "K C"]) -> Float[Tensor, "N E"]:
        """Return hidden rows of a whole sequence after the last norm, as heads read them; gradients flow."""
        places = torch.arange(len(tokens), device=tokens.device)
        net = self.bind(latents)
        return net._normed(net._through(SlotInputs(tokens, places, None, [_Whole()] * net.layers), {}))

    def pick(self, layers: Sequence[int]) -> BPTWeights:
        return replace(self, layers=[self.layers[index] for index in layers])


class _Whole:
    """The slot of a pass over a whole sequence: nothing lies in it."""

    def update(self, keys: Tensor, values: Tensor) -> Pair:
        return keys, values


@final
class BPTNet(TappedNet):
    """The forward for one point cloud, with keys and values of each layer's cross-attention."""

    kind = "bpt"

    def __init__(self, weights: BPTWeights, cross: Sequence[Pair]) -> None:
        self._weights, self._cross = weights, cross
        self.layers = len(cross)

    def tied_embeddings(self) -> TiedEmbeddings:
        return self._weights.tied_embeddings()

    def pick(self, layers: Sequence[int]) -> BPTNet:
        return BPTNet(self._weights.pick(layers), [self._cross[index] for index in layers])

    def _normed(self, x: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
        out: Tensor = self._weights.model.decoder["final_norm"](x)
        return out

    def _logits(self, last: Float[Tensor, "R E"]) -> Float[Tensor, "R V"]:
        return functional.pad(self._weights.model.to_logits(last), (0, 1), value=float("-inf"))

    def _through(self, inputs: SlotInputs, entering: dict[int, Tensor]) -> Float[Tensor, "N E"]:
        weights, model = self._weights, self._weights.model
        x = functional.embedding(inputs.tokens, weights.table) + functional.embedding(inputs.positions, weights.places)
        for at, (layer, pair, slot) in enumerate(zip(weights.layers, self._cross, inputs.slots, strict=True)):
            if at in entering:
                entering[at] = x
            norm, own, norm_cross, cross, norm_feed, feed = layer
            x = x + _attend(own, norm(x), slot, inputs.mask, model.sizes.heads)
            query = _unit(heads_of(cross["to_q"](norm_cross(x)), model.sizes.heads))
            attended = functional.scaled_dot_product_attention(query, *pair, scale=SCALE)
            x = x + cross["to_out"](joined(attended))
            value, gate = feed["ff"][0]["proj"](norm_feed(x)).chunk(2, -1)
            x = x + feed["ff"][2](value * functional.gelu(gate))
        return x


def _attend(block: Any, x: Tensor, slot: Any, mask: Tensor | None, heads: int) -> Float[Tensor, "N E"]:
    q, k, v = (heads_of(block[name](x), heads) for name in ("to_q", "to_k", "to_v"))
    keys, values = slot.update(_unit(k), v)
    attended = functional.scaled_dot_product_attention(
        _unit(q), keys, values, attn_mask=mask, is_causal=mask is None and len(x) > 1, scale=SCALE
    )
    out: Tensor = block["to_out"](joined(attended))
    return out
