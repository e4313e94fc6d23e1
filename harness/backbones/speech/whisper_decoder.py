"""Whisper's decoder as a net over the slot cache: fused products, and keys and values of the encoder computed once.

A `WhisperDecoder` holds the weights. Its method `listen` binds them to the encoder's states, which makes the net of a
prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.backbones.slots import lora as gates
from stridebench.harness.backbones.slots.lora import Adapter, LowRank
from stridebench.harness.backbones.slots.net import FusedLayers, SlotInputs
from stridebench.harness.errors import WeightsError
from stridebench.harness.kernels.packed_linear import Product
from stridebench.harness.kernels.quantized_linear import FULL, Products


class WhisperNorm(NamedTuple):
    """Weight and bias [E] of a layer norm."""

    weight: Tensor
    bias: Tensor


class Heard(NamedTuple):
    """Keys and values of the encoder for one layer, [1, H, S, D] each, S encoder states."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, eq=False)
class WhisperLayer:
    """Norms and products of a layer: qkv E to 3 E, ask and the outs E to E, up E to 4 E, down back.

    Args:
        hear: weight [2 E, E] and bias [2 E] that make keys and values of encoder states, once a prompt.
    """

    norm: WhisperNorm
    qkv: Product
    out: Product
    norm_ask: WhisperNorm
    ask: Product
    hear: WhisperNorm
    out_ask: Product
    norm_mlp: WhisperNorm
    up: Product
    down: Product


HEARS = ("encoder_attn.k_proj", "encoder_attn.v_proj")


@dataclass(frozen=True, eq=False)
class Grammar:
    """Ids that the decoder never draws, and ids that it does not draw first.

    Args:
        never, first: ids.
        begin: the last position of the prompt, whose row gives the first token.
    """

    never: Int[Tensor, " a"]
    first: Int[Tensor, " b"]
    begin: int

    def apply(self, logits: Float[Tensor, "R V"], positions: Int[Tensor, " R"]) -> Float[Tensor, "R V"]:
        """Set the logits of suppressed ids to -inf, in place."""
        logits.index_fill_(1, self.never, float("-inf"))
        begins = (positions == self.begin)[:, None]
        logits[:, self.first] = logits[:, self.first].masked_fill(begins, float("-inf"))
        return logits


@final
class WhisperDecoder(FusedLayers):
    """The weights of the decoder.

    Args:
        model: a `WhisperForConditionalGeneration`, whose encoder is not changed.
        products: makes the products of its weights.
    """

    kind = "fused"
    prefix = "model.decoder.layers."
    products: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "out": ("self_attn.out_proj",),
        "ask": ("encoder_attn.q_proj",),
        "out_ask": ("encoder_attn.out_proj",),
        "up": ("fc1",),
        "down": ("fc2",),
    }

    def __init__(self, model: Any, products: Products = FULL) -> None:
        decoder = model.model.decoder
        self.layers = len(decoder.layers)
        self._heads = int(model.config.decoder_attention_heads)
        self._embed: Tensor = decoder.embed_tokens.weight.data
        self._like = self._embed
        self._places: Tensor = decoder.embed_positions.weight.data
        self._norm = _norm(decoder.layer_norm)
        self._head = products(model.proj_out.weight.data)
        self._shapes = gates.shapes_of(linears(model))
        self._weights = [_fuse(layer, products) for layer in decoder.layers]

    def _check(self, adapter: Adapter) -> None:
        """Also reject layers that are computed once for a recording."""
        for name in adapter:
            if name.startswith("model.encoder.") or name.endswith(HEARS):
                raise WeightsError(
                    f"the adapter changes {name}, which is computed once a recording and read by all rows: a row "
                    f"cannot gate it; train one without the encoder, and without {' and '.join(HEARS)}"
                )
        super()._check(adapter)

    def listen(self, states: Float[Tensor, "S E"], grammar: Grammar) -> Listening:
        """The net of a prompt, from the encoder's states."""
        heard = []
        for layer in self._weights:
            keys, values = functional.linear(states, *layer.hear).chunk(2, 1)
            heard.append(Heard(self._split(keys).contiguous(), self._split(values).contiguous()))
        return Listening(self, heard, grammar)

    def forward(self, inputs: SlotInputs, heard: Sequence[Heard]) -> Float[Tensor, "N E"]:
        """Entries after the last layer."""
        x = functional.embedding(inputs.tokens, self._embed) + self._places[inputs.positions]
        width, mask = x.shape[1:], inputs.mask
        causal = mask is None and len(x) > 1
        for layer, slot, (encoder_keys, encoder_values) in zip(self._weights, inputs.slots, heard, strict=True):
            query, keys, values = layer.qkv(functional.layer_norm(x, width, *layer.norm)).chunk(3, 1)
            keys, values = slot.update(self._split(keys), self._split(values))
            attended = functional.scaled_dot_product_attention(
                self._split(query), keys, values, attn_mask=mask, is_causal=causal
            )
            x = layer.out(_joined(attended)).add_(x)
            query = self._split(layer.ask(functional.layer_norm(x, width, *layer.norm_ask)))
            attended = functional.scaled_dot_product_attention(query, encoder_keys, encoder_values)
            x = layer.out_ask(_joined(attended)).add_(x)
            x = layer.down(functional.gelu(layer.up(functional.layer_norm(x, width, *layer.norm_mlp)))).add_(x)
        return x

    def logits(self, x: Float[Tensor, "R E"]) -> Float[Tensor, "R V"]:
        """The unembedding of entries after the last layer."""
        if not len(x):
            return x.new_empty(0, len(self._embed))
        return self._head(functional.layer_norm(x, x.shape[1:], *self._norm))

    def _split(self, x: Float[Tensor, "N E"]) -> Float[Tensor, "1 H N D"]:
        return x.view(1, len(x), self._heads, -1).transpose(1, 2)


def linears(model: Any) -> dict[str, nn.Linear]:
    """The linear layers of the decoder that a row may gate, by name. All rows share the encoder's keys and values."""
    names = {name for linears in WhisperDecoder.products.values() for name in linears}
    decoder = (
        (name, module) for name, module in gates.linears(model).items() if name.startswith(WhisperDecoder.prefix)
    )
    return {
        name: module for name, module in decoder if name.removeprefix(WhisperDecoder.prefix).partition(".")[2] in names
    }


@final
class Listening:
    """The decoder of one recording."""

    kind = "fused"

    def __init__(self, decoder: WhisperDecoder, heard: Sequence[Heard], grammar: Grammar) -> None:
        self.layers = decoder.layers
        self._decoder, self._heard, self._grammar = decoder, heard, grammar

    def __call__(self, inputs: SlotInputs, rows: int) -> Float[Tensor, "R V"]:
        """Logits of the last R rows; the other rows are not computed past the last layer."""
        x = self._decoder.forward(inputs, self._heard)
        last = slice(len(x) - rows, None)
        return self._grammar.apply(self._decoder.logits(x[last]), inputs.positions[last])

    def fitted(self, adapter: Adapter) -> list[dict[str, LowRank]]:
        """The adapter in the decoder's form."""
        return self._decoder.fitted(adapter)

    def gated(self, fitted: Sequence[Mapping[str, LowRank]], gate: Bool[Tensor, " N"]) -> Listening:
        """The same recording, with the adapter on in these rows of the next pass."""
        return Listening(self._decoder.gated(fitted, gate), self._heard, self._grammar)

    def pick(self, layers: Sequence[int]) -> Listening:
        """The same weights and the same recording with these layers only."""
        return Listening(self._decoder.pick(layers), [self._heard[index] for index in layers], self._grammar)


def _joined(attended: Float[Tensor, "1 H N D"]) -> Float[Tensor, "N HD"]:
    return attended[0].transpose(0, 1).flatten(1)


def _norm(module: Any) -> WhisperNorm:
    return WhisperNorm(module.weight.data, module.bias.data)


def _stacked(*linears: Any) -> WhisperNorm:
    """Weights and biases one below the other; keys have no bias, which is a bias of zero."""
    biases = [
        linear.weight.new_zeros(len(linear.weight)) if linear.bias is None else linear.bias.data for linear in linears
    ]
    return WhisperNorm(torch.cat([linear.weight.data for linear in linears]), torch.cat(biases))


def _fuse(layer: Any, products: Products) -> WhisperLayer:
    own, cross = layer.self_attn, layer.encoder_attn
    return WhisperLayer(
        norm=_norm(layer.self_attn_layer_norm),
        qkv=products(*_stacked(own.q_proj, own.k_proj, own.v_proj)),
        out=products(*_stacked(own.out_proj)),
        norm_ask=_norm(layer.encoder_attn_layer_norm),
        ask=products(*_stacked(cross.q_proj)),
        hear=_stacked(cross.k_proj, cross.v_proj),
        out_ask=products(*_stacked(cross.out_proj)),
        norm_mlp=_norm(layer.final_layer_norm),
        up=products(*_stacked(layer.fc1)),
        down=products(*_stacked(layer.fc2)),
    )
