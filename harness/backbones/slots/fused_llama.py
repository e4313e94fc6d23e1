"""A fused forward for decoders shaped like Llama: fewer and larger products, no work per layer beyond them.

The products of q, k and v are one, so are those of gate and up; rotations are looked up; query heads that
share a key head go through attention as rows of that head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from stridebench.harness.backbones.checkpoints import streamed, transformers_models
from stridebench.harness.backbones.slots import lora as gates
from stridebench.harness.backbones.slots.cache import PackedLayer, PackedWindow, TappedNet, layers
from stridebench.harness.backbones.slots.net import FusedLayers, Net, SlotInputs, Tapped, near_mask, sliding_layers
from stridebench.harness.backbones.slots.transformers_net import TransformersNet
from stridebench.harness.core.backbone import TiedEmbeddings
from stridebench.harness.core.cache import Rows
from stridebench.harness.kernels.packed_linear import Product
from stridebench.harness.kernels.quantized_linear import FULL, Products

SERVED = (
    "llama.modeling_llama.LlamaForCausalLM",
    "mistral.modeling_mistral.MistralForCausalLM",
    "qwen2.modeling_qwen2.Qwen2ForCausalLM",
)
STATIC_ROPE = ("default", "linear", "llama3", "yarn")
"""Rotations that depend on the position alone; the others also depend on the length of the text."""


def incompatibility(model: Any) -> str | None:
    """Return why this forward would not compute the same as the model, or None if it does."""
    kind = f"{type(model).__module__}.{type(model).__name__}".removeprefix("transformers.models.")
    if kind not in SERVED:
        return f"{kind} is not one of {', '.join(SERVED)}"
    config = model.config
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}"
    rope = config.rope_parameters
    if rope["rope_type"] not in STATIC_ROPE and not transformers_models.one_longrope(rope):
        return f"its rotation is {rope['rope_type']}"
    for layer in model.model.layers:
        mlp = layer.mlp
        plain = (layer.self_attn.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj, model.lm_head)
        if any(linear.bias is not None for linear in plain):
            return "products other than q, k and v have biases"
    return None


@dataclass(frozen=True, eq=False)
class FusedLlamaLayer:
    """Norms [E] and products of a layer: qkv E to (H + 2 H_kv) D, out H D to E, gate_up E to 2 I, down back.

    ``slides``: its rows see a window of the last positions only.
    """

    norm: Tensor
    qkv: Product
    out: Product
    norm_mlp: Tensor
    gate_up: Product
    down: Product
    slides: bool


@final
class FusedLlama(FusedLayers, TappedNet):
    """The forward of a model for which `incompatibility` is None.

    Its weights move layer by layer, so that memory holds them once; those that were not read yet are read then.
    """

    kind = "fused"
    prefix = "model.layers."
    products: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "out": ("self_attn.o_proj",),
        "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
        "down": ("mlp.down_proj",),
    }

    def __init__(self, model: Any, products: Products = FULL) -> None:
        config = model.config
        attention = model.model.layers[0].self_attn
        slides = sliding_layers(config)
        self._window = int(config.sliding_window) if any(slides) else None
        self.layers = len(slides) + (self._window is not None)
        self._heads = int(config.num_attention_heads)
        self._kv_heads = int(config.num_key_value_heads)
        self._width = int(attention.head_dim)
        self._scale = float(attention.scaling)
        self._eps = float(config.rms_norm_eps)
        self._embed = self._like = streamed.fill(model, model.model.embed_tokens).weight.data
        self._tied = model.lm_head.weight is model.model.embed_tokens.weight
        self._vocabulary = len(model.lm_head.weight)
        self._head = products(streamed.fill(model, model.lm_head).weight.data, kept=self._tied)
        self._norm = streamed.fill(model, model.model.norm).weight.data
        self._shapes = gates.shapes_of(gates.linears(model))
        self._weights = [
            _fuse(streamed.fill(model, layer), products, slide)
            for layer, slide in zip(model.model.layers, slides, strict=True)
        ]
        places = torch.arange(config.max_position_embeddings, device=self._embed.device)
        cos, sin = model.model.rotary_emb(self._embed, places[None])
        half = self._width // 2
        self._cos = cos[0][:, None]
        self._sin = torch.cat([-sin[0, :, :half], sin[0, :, half:]], 1)[:, None]

    @property
    def depth(self) -> int:
        return len(self._weights)

    def tied_embeddings(self) -> TiedEmbeddings:
        """Return its embedding and unembedding; a packed one is unpacked by its product with the unit vectors."""
        if self._tied:
            return TiedEmbeddings(self._embed, self._embed)
        unit = torch.eye(self._embed.shape[1], dtype=self._embed.dtype, device=self._embed.device)
        return TiedEmbeddings(self._embed, self._head(unit).T.contiguous())

    def joins(self, other: Net) -> bool:
        return other is self

    def packed(self, tokens: Int[Tensor, " N"], positions: Int[Tensor, " N"], parts: Sequence[PackedWindow]) -> Rows:
        slots = layers(parts, self._heads // self._kv_heads)
        return self._packed_rows(SlotInputs(tokens, positions, None, slots), parts)

    def _normed(self, x: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
        return functional.rms_norm(x, x.shape[1:], self._norm, self._eps)

    def _logits(self, last: Float[Tensor, "R E"]) -> Float[Tensor, "R V"]:
        return self._head(last) if len(last) else last.new_empty(0, self._vocabulary)

    def _through(self, inputs: SlotInputs, entering: dict[int, Tensor]) -> Float[Tensor, "N E"]:
        x = functional.embedding(inputs.tokens, self._embed)
        x = x if inputs.added is None else x + inputs.added
        cos, sin = self._cos[inputs.positions], self._sin[inputs.positions]
        mask = None if inputs.mask is None else inputs.mask.repeat(self._heads // self._kv_heads, 1)
        near, width, eps = self._near(inputs, mask), x.shape[1:], self._eps
        for index, (layer, slot) in enumerate(zip(self._weights, inputs.slots, strict=False)):
            if index in entering:
                entering[index] = x
            qkv = layer.qkv(functional.rms_norm(x, width, layer.norm, eps))
            x = layer.out(self._attend(qkv, cos, sin, near if layer.slides else mask, slot)).add_(x)
            gate, up = layer.gate_up(functional.rms_norm(x, width, layer.norm_mlp, eps)).chunk(2, 1)
            x = layer.down(functional.silu(gate).mul_(up)).add_(x)
        return x

    def _near(self, inputs: SlotInputs, mask: Tensor | None) -> Any:
        window, last, share = self._window, inputs.slots[-1], self._heads // self._kv_heads
        if window is None:
            return None
        if not isinstance(last, PackedLayer):
            return near_mask(window, inputs.positions, mask, last, share, self._like)
        sequences = zip(torch.split(inputs.positions, last.counts), last.masks, last.slots, strict=True)
        return [near_mask(window, *sequence, share, self._like) for sequence in sequences]

    def _attend(self, qkv: Tensor, cos: Tensor, sin: Tensor, mask: Any, slot: Any) -> Float[Tensor, "N HD"]:
        count, heads, kv_heads, width = len(qkv), self._heads, self._kv_heads, self._width
        qkv = qkv.view(count, heads + 2 * kv_heads, width)
        turned = qkv[:, : heads + kv_heads]
        turned = (turned * cos).addcmul_(turned.roll(width // 2, -1), sin)
        query, keys, values = turned[:, :heads], turned[:, heads:], qkv[:, heads + kv_heads :]
        if not isinstance(slot, PackedLayer):
            return self._attend_one(query, keys, values, mask, slot)
        split = (torch.split(rows, slot.counts) for rows in (query, keys, values))
        sequences = zip(*split, slot.masks if mask is None else mask, slot.slots, strict=True)
        return torch.cat([self._attend_one(*sequence) for sequence in sequences])

    def _attend_one(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, slot: Any
    ) -> Float[Tensor, "N HD"]:
        """Return the attention of one sequence, whose new keys and values [N, H_kv, D] go into its slots."""
        count, heads, kv_heads, width = len(query), self._heads, self._kv_heads, self._width
        keys, values = slot.update(keys.transpose(0, 1)[None], values.transpose(0, 1)[None])
        share = heads // kv_heads
        if mask is None and count > 1:
            keys, values = (tensor.repeat_interleave(share, 1) for tensor in (keys, values))
            attended = functional.scaled_dot_product_attention(
                query.transpose(0, 1)[None], keys, values, is_causal=True, scale=self._scale
            )
            return attended[0].transpose(0, 1).reshape(count, heads * width)
        packed = query.view(count, kv_heads, share, width).permute(1, 2, 0, 3)
        attended = functional.scaled_dot_product_attention(
            packed.reshape(1, kv_heads, share * count, width), keys, values, attn_mask=mask, scale=self._scale
        )
        return attended.view(kv_heads, share, count, width).permute(2, 0, 1, 3).reshape(count, heads * width)


def forward_of(model: Any, products: Products = FULL) -> Tapped:
    """Return the fused forward if it computes the same, else that of transformers, or raise UsageError."""
    reason = incompatibility(model)
    if reason is None:
        return FusedLlama(model, products)
    products.refuse(reason)
    return TransformersNet(model)


def _fuse(layer: Any, products: Products, slides: bool) -> FusedLlamaLayer:
    attention, mlp = layer.self_attn, layer.mlp
    return FusedLlamaLayer(
        norm=layer.input_layernorm.weight.data,
        qkv=_joined(products, attention.q_proj, attention.k_proj, attention.v_proj),
        out=_joined(products, attention.o_proj),
        norm_mlp=layer.post_attention_layernorm.weight.data,
        gate_up=_joined(products, mlp.gate_proj, mlp.up_proj),
        down=_joined(products, mlp.down_proj),
        slides=slides,
    )


def _joined(products: Products, *linears: Any) -> Product:
    """Return one product whose outputs are those of the linears in order; the linears lose their weights."""
    weights = [linear.weight.data for linear in linears]
    weight = torch.cat(weights) if len(weights) > 1 else weights[0]
    biases = [linear.bias.data for linear in linears if linear.bias is not None]
    for linear in linears:
        linear.weight.data = linear.weight.new_empty(0)
    return products(weight, torch.cat(biases) if biases else None)
