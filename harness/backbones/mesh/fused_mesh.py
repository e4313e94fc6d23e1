"""Mesh decoders trained here, conditioned on a point cloud."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from torch import Tensor
from torch.nn import functional

from stridebench.harness.backbones.base import TYPES, Identity
from stridebench.harness.backbones.checkpoints import sources
from stridebench.harness.backbones.mesh import bpt_tokens
from stridebench.harness.backbones.mesh.network import (
    EPS,
    NOWHERE,
    MeshBlock,
    MeshModel,
    MeshSizes,
    PointCloudAdapter,
    angles,
    block_of,
    is_offset,
    split_heads,
)
from stridebench.harness.backbones.slots import lora
from stridebench.harness.backbones.slots.cache import PackedWindow, SlotCache, TappedNet
from stridebench.harness.backbones.slots.net import Net, SlotInputs, SlotLayer
from stridebench.harness.core.backbone import EncodedPrompt, TiedEmbeddings
from stridebench.harness.core.cache import Rows
from stridebench.harness.core.capabilities import Capabilities, Requirement
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import WeightsError
from stridebench.harness.kernels import int8
from stridebench.harness.kernels.packed_linear import Product, product
from stridebench.harness.record.outputs import Mesh
from stridebench.harness.registry import BACKBONES


@dataclass(frozen=True, eq=False)
class FusedMeshLayer:
    """Norms [E] and products of a decoder layer."""

    norm: Tensor
    qkv: Product
    out: Product
    norm_cross: Tensor
    cross_q: Product
    cross_out: Product
    norm_mlp: Tensor
    gate_up: Product
    down: Product
    cross_kv: Product


@dataclass(frozen=True, eq=False)
class FusedWeights:
    """Weights for decoding: table [V, E], places [P, E], rotations [T, 1, D], layers; ``window`` as in `MeshSizes`."""

    table: Tensor
    places: Tensor
    before: Product
    head: Product
    norm: Tensor
    cos: Tensor
    sin: Tensor
    layers: tuple[FusedMeshLayer, ...]
    heads: int
    window: int

    @staticmethod
    def of(model: MeshModel) -> FusedWeights:
        sizes, table = model.sizes, model.codes().detach()
        cos, sin = (part[:, None].to(table) for part in angles(sizes.context, sizes.width // sizes.heads))
        layers = tuple(_layer(block) for block in model.layers if isinstance(block, MeshBlock))
        return FusedWeights(
            table=table,
            places=model.codes.places().detach(),
            before=product(model.before.weight.data),
            head=product(table),
            norm=model.norm.weight.data,
            cos=cos,
            sin=sin,
            layers=layers,
            heads=sizes.heads,
            window=sizes.window,
        )

    def tied_embeddings(self) -> TiedEmbeddings:
        return TiedEmbeddings(self.table, self.table)

    def pick(self, layers: Sequence[int]) -> FusedWeights:
        return replace(self, layers=tuple(self.layers[index] for index in layers))


def _layer(block: MeshBlock) -> FusedMeshLayer:
    linears = (block.qkv, block.out, block.cross_q, block.cross_out, block.mlp.gate_up, block.mlp.down, block.cross_kv)
    qkv, out, cross_q, cross_out, gate_up, down, cross_kv = (product(linear.weight.data) for linear in linears)
    norms = (block.norm.weight.data, block.norm_cross.weight.data, block.mlp.norm.weight.data)
    return FusedMeshLayer(norms[0], qkv, out, norms[1], cross_q, cross_out, norms[2], gate_up, down, cross_kv)


class _Sequence(NamedTuple):
    """One sequence of a pass: its number of rows, mask and slots, and the cross keys and values of each layer."""

    rows: int
    mask: Tensor | None
    slots: Sequence[SlotLayer]
    cross: Sequence[tuple[Tensor, Tensor]]


@final
class MeshNet(TappedNet):
    """The forward for one point cloud, of latents [K, E], whose cross keys and values it holds.

    The last slot layer holds position, token and block of the entries. From it a row knows, in a tree as in a chain,
    which entry came before it, in which block it lies, and how far back an entry is.
    """

    kind = "mesh"

    def __init__(self, decoder: FusedWeights, latents: Float[Tensor, "K E"]) -> None:
        self.decoder = decoder
        self.latents = latents
        self.layers = len(decoder.layers) + 1
        pairs = [layer.cross_kv(latents)[None].chunk(2, -1) for layer in decoder.layers]
        heads = decoder.heads
        self._cross = [(split_heads(k, heads).contiguous(), split_heads(v, heads).contiguous()) for k, v in pairs]

    @property
    def depth(self) -> int:
        return len(self.decoder.layers)

    def tied_embeddings(self) -> TiedEmbeddings:
        return self.decoder.tied_embeddings()

    def pick(self, layers: Sequence[int]) -> MeshNet:
        return MeshNet(self.decoder.pick(layers), self.latents)

    def joins(self, other: Net) -> bool:
        return isinstance(other, MeshNet) and other.decoder is self.decoder

    def packed(self, tokens: Int[Tensor, " N"], positions: Int[Tensor, " N"], parts: Sequence[PackedWindow]) -> Rows:
        sequences = [_Sequence(len(p.window.tokens), p.mask, p.slots.layers, _cross(p.net)) for p in parts]
        return self._packed_rows(SlotInputs(tokens, positions, None, sequences), parts)

    def _logits(self, last: Float[Tensor, "R E"]) -> Float[Tensor, "R V"]:
        return self.decoder.head(last) if len(last) else last.new_empty(0, len(self.decoder.table))

    def _normed(self, x: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
        return functional.layer_norm(x, x.shape[1:], self.decoder.norm, None, EPS)

    def _through(self, inputs: SlotInputs, entering: dict[int, Tensor]) -> Float[Tensor, "N E"]:
        decoder = self.decoder
        tokens, positions, slots = inputs.tokens, inputs.positions, inputs.slots
        own = _Sequence(len(tokens), inputs.mask, slots, self._cross)
        sequences = list(slots) if isinstance(slots[0], _Sequence) else [own]
        counts = [sequence.rows for sequence in sequences]
        windows = zip(torch.split(tokens, counts), torch.split(positions, counts), sequences, strict=True)
        entered = [self._enter(*window) for window in windows]
        x = torch.cat([rows for rows, _ in entered])
        sequences = [sequence._replace(mask=mask) for sequence, (_, mask) in zip(sequences, entered, strict=True)]
        cos, sin = decoder.cos[positions], decoder.sin[positions]
        width = x.shape[1:]
        for at, layer in enumerate(decoder.layers):
            if at in entering:
                entering[at] = x
            qkv = layer.qkv(functional.layer_norm(x, width, layer.norm, None, EPS))
            x = layer.out(self._attend(at, qkv, cos, sin, sequences)).add_(x)
            query = layer.cross_q(functional.layer_norm(x, width, layer.norm_cross, None, EPS))
            x = layer.cross_out(self._consult(at, query, sequences)).add_(x)
            gate, up = layer.gate_up(functional.layer_norm(x, width, layer.norm_mlp, None, EPS)).chunk(2, 1)
            x = layer.down(functional.silu(gate).mul_(up)).add_(x)
        return x

    def _attend(
        self, at: int, qkv: Tensor, cos: Tensor, sin: Tensor, sequences: Sequence[_Sequence]
    ) -> Float[Tensor, "N E"]:
        heads = self.decoder.heads
        parts = qkv.view(len(qkv), 3 * heads, -1)
        turned = parts[:, : 2 * heads]
        turned = (turned * cos).addcmul_(turned.roll(turned.shape[-1] // 2, -1), sin).transpose(0, 1)[None]
        values, attended, first = parts[:, 2 * heads :].transpose(0, 1)[None], [], 0
        for rows, mask, slots, _ in sequences:
            own = slice(first, first + rows)
            entries = slots[at].update(turned[:, heads:, own], values[:, :, own])
            query, causal = turned[:, :heads, own], mask is None and rows > 1
            attended.append(functional.scaled_dot_product_attention(query, *entries, attn_mask=mask, is_causal=causal))
            first += rows
        return _rows(attended)

    def _consult(self, at: int, query: Float[Tensor, "N E"], sequences: Sequence[_Sequence]) -> Float[Tensor, "N E"]:
        own = torch.split(split_heads(query[None], self.decoder.heads), [sequence.rows for sequence in sequences], 2)
        attend = functional.scaled_dot_product_attention
        return _rows([attend(rows, *sequence.cross[at]) for rows, sequence in zip(own, sequences, strict=True)])

    def _enter(
        self, tokens: Int[Tensor, " N"], positions: Int[Tensor, " N"], sequence: _Sequence
    ) -> tuple[Float[Tensor, "N E"], Tensor | None]:
        """Return the input of the first layer, and the mask without entries that lie outside the window."""
        decoder, (count, mask, slots, _) = self.decoder, sequence
        new = torch.stack([positions, tokens, torch.full_like(tokens, NOWHERE)], 1).float()[None, None]
        notes = slots[-1].update(new, new)[0][0, 0]
        place, token = notes[:, 0].long(), notes[:, 1].long()
        visible = (
            place.new_ones(count, len(place), dtype=torch.bool).tril(len(place) - count) if mask is None else mask == 0
        )
        if decoder.window:
            visible = visible & (place > positions[:, None] - decoder.window)
            mask = decoder.table.new_zeros(visible.shape).masked_fill_(~visible, float("-inf"))
        blocks = block_of(token)
        block_place, last = torch.where(visible & (blocks >= 0), place, -1).max(1)
        within = torch.where(is_offset(tokens) & (block_place >= 0), blocks[last], NOWHERE)
        notes[len(place) - count :, 2] = within.to(notes)
        parent_place, parent = torch.where(visible & (place < positions[:, None]), place, -1).max(1)
        x = functional.embedding(tokens, decoder.table) + functional.embedding(within, decoder.places)
        above = functional.embedding(token[parent], decoder.table)
        above += functional.embedding(notes[:, 2].long()[parent], decoder.places)
        return x.addcmul_(decoder.before(above), (parent_place >= 0).to(x)[:, None]), mask


def _cross(net: Net) -> Sequence[tuple[Tensor, Tensor]]:
    assert isinstance(net, MeshNet), "`joins` checks it"
    return net._cross


def _rows(attended: Sequence[Float[Tensor, "one H n D"]]) -> Float[Tensor, "N E"]:
    """Heads side by side, sequences one below the other."""
    return torch.cat(list(attended), 2)[0].transpose(0, 1).flatten(1)


Encoder = Callable[[Tensor], Tensor]
"""From point clouds [B, n, 6] to latents [B, K, E]."""


@BACKBONES.register("mesh")
@final
class MeshBackbone(PointCloudAdapter):
    """A mesh decoder; every sequence starts after SOS.

    Args (of ``params``):
        source: where the weights lie: shipped or folder; the folder of a recipe, with config.json.
    """

    kind = "mesh"
    parameters = ("source",)
    advice = "name a preset such as embedded-mesh"

    def __init__(self, identity: Identity, encoder: Encoder, decoder: FusedWeights) -> None:
        super().__init__(identity)
        self._encoder, self._decoder = encoder, decoder

    @classmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> MeshBackbone:
        cls.check(name, params, dtype)
        folder = sources.locate(name, sources.parse(name, params["source"]))
        model = read(name, folder).to(device=device, dtype=TYPES[dtype])
        return cls.of(model, name, dtype, device, sources.digest(folder))

    @classmethod
    def of(
        cls,
        model: MeshModel,
        name: str = "mesh",
        dtype: str = "fp32",
        device: str = "cpu",
        fingerprint: str = "unsaved",
    ) -> MeshBackbone:
        model = model.eval().requires_grad_(False)
        decoder = FusedWeights.of(model)
        width = decoder.table.shape[1]
        capabilities = Capabilities(
            bpt_tokens.VOCABULARY,
            len(decoder.cos),
            frozenset({bpt_tokens.EOS}),
            cls.meets({}),
            layers=len(decoder.layers),
            width=width,
            condition=width,
        )
        shared = model.codes.coordinates() if model.sizes.shared_coordinates else None
        encoder = partial(model.encoder, coordinates=shared)
        return cls(Identity(name, dtype, device, capabilities, fingerprint), encoder, decoder)

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        return frozenset({Requirement.TREE_MASK, Requirement.DRAFTER, Requirement.HIDDEN, Requirement.CONDITION})

    def open(self, prompt: Prompt) -> EncodedPrompt:
        """Encode the prompt's points, float [n, 6] of positions in [-1, 1] and unit normals."""
        latents = self.latents(self._points(prompt, torch.float32))
        return EncodedPrompt((bpt_tokens.SOS,), lambda: self._slots(MeshNet(self._decoder, latents)), latents)

    def tied_embeddings(self) -> TiedEmbeddings:
        return self._decoder.tied_embeddings()

    @torch.inference_mode()
    def latents(self, points: Float[Tensor, "n 6"]) -> Float[Tensor, "K E"]:
        return self._encoder(points[None])[0]

    def bind(self, points: Float[Tensor, "n 6"]) -> SlotCache:
        return self._slots(MeshNet(self._decoder, self.latents(points)))

    def decode(self, tokens: Sequence[int]) -> Mesh:
        return bpt_tokens.decode(tokens)

    def _layer_count(self) -> int:
        return len(self._decoder.layers)

    def _keep_layers(self, layers: Sequence[int], identity: Identity) -> MeshBackbone:
        return MeshBackbone(identity, self._encoder, self._decoder.pick(layers))


def read(name: str, folder: Path) -> MeshModel:
    """Return the model of a recipe's folder, in fp32, with an adapter added if it has one, or raise WeightsError."""
    if lora.is_tuned(folder):
        base = lora.base(folder, sources.SHIPPED)
        model = read(name, base)
        model.load_state_dict(lora.merged(folder, sources.digest(base), model.state_dict()))
        return model
    try:
        sizes = MeshSizes.read(name, json.loads((folder / "config.json").read_text(encoding="utf-8")))
        tensors = int8.read(folder / "model.safetensors")
        model = MeshModel(sizes)
        model.load_state_dict(tensors)
    except (OSError, ValueError, SafetensorError, RuntimeError) as error:
        raise WeightsError(
            f"{name}: {folder} does not hold a mesh model ({error}). Make it again with `stride train backbone`"
        ) from error
    return model
