"""Causal language models of transformers over the slot cache, unchanged but for attention over several sequences.

Symbols: N rows of all sequences, N_b of sequence b, T_b entries that it has after the pass; H, H_kv heads, D width.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple, TypedDict, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional
from transformers.cache_utils import Cache as TransformersCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from stridebench.harness.backbones.slots import lora as gates
from stridebench.harness.backbones.slots.cache import PackedLayer
from stridebench.harness.backbones.slots.lora import Adapter, LowRank
from stridebench.harness.backbones.slots.net import (
    CacheLayer,
    Net,
    SlotInputs,
    Slots,
    causal_mask,
    near_mask,
    sliding_layers,
)
from stridebench.harness.core.backbone import TiedEmbeddings
from stridebench.harness.core.cache import Rows
from stridebench.harness.errors import UsageError

Pairs = Sequence[tuple[nn.Linear, LowRank]]


class PassArguments(TypedDict, total=False):
    """Arguments of a forward of transformers besides its tokens; a model whose layers differ takes several masks."""

    attention_mask: Tensor | dict[str, Tensor] | None
    position_ids: Tensor
    past_key_values: TransformersCache
    use_cache: bool


@final
class TransformersNet:
    """The forward of a causal language model of transformers, of chains alone if the model makes masks itself."""

    kind = "transformers"

    def __init__(self, model: Any, chains: bool = False) -> None:
        self.model = model
        self.chains = chains
        self._on: tuple[Pairs, Tensor] | None = None
        config = model.config.get_text_config()
        slides = sliding_layers(config)
        self._window = int(config.sliding_window) if any(slides) else None
        self._mixed = not all(slides)
        self.layers = len(slides) + (self._window is not None)
        self._cuts = "logits_to_keep" in inspect.signature(model.forward).parameters

    def tied_embeddings(self) -> TiedEmbeddings:
        return TiedEmbeddings(self.model.get_input_embeddings().weight, self.model.get_output_embeddings().weight)

    def __call__(self, inputs: SlotInputs, rows: int) -> Float[Tensor, "R V"]:
        logits: Tensor = self._run(inputs, rows).logits[0]
        return logits[logits.shape[0] - rows :]

    def tapped(self, inputs: SlotInputs, rows: int, taps: Sequence[int]) -> Rows:
        out = self._run(inputs, rows, output_hidden_states=True)
        logits = out.logits[0]
        hidden = torch.stack([out.hidden_states[tap][0].to(logits.device) for tap in taps], 1)[:, None]
        return Rows(logits[logits.shape[0] - rows :], hidden)

    def _run(self, inputs: SlotInputs, rows: int, **more: bool) -> Any:
        cut = {"logits_to_keep": max(rows, 1)} if self._cuts else {}
        with nullcontext() if self._on is None else gates.hooked(*self._on):
            return self.model(input_ids=inputs.tokens[None], **self._arguments(inputs), **cut, **more)

    def _arguments(self, inputs: SlotInputs) -> PassArguments:
        if self.chains:
            return {"past_key_values": TransformersCache(layers=inputs.slots), "use_cache": True}
        if self._window is None:
            return pass_arguments(inputs)
        mask, like = inputs.mask, torch.empty(0, dtype=self.model.dtype, device=inputs.positions.device)
        near = near_mask(self._window, inputs.positions, mask, inputs.slots[-1], 1, like)
        arguments = pass_arguments(replace(inputs, mask=near))
        if self._mixed and near is not None:
            far = causal_mask(len(near), near.shape[1] - len(near), like) if mask is None else mask
            arguments["attention_mask"] = {"full_attention": far[None, None], "sliding_attention": near[None, None]}
        return arguments

    def fitted(self, adapter: Adapter) -> Pairs:
        layers = gates.linears(self.model)
        gates.check(adapter, gates.shapes_of(layers))
        return [(layers[name], low) for name, low in adapter.items()]

    def gated(self, fitted: Pairs, gate: Bool[Tensor, " N"]) -> TransformersNet:
        switched = copy.copy(self)
        switched._on = fitted, gate[:, None].to(self.model.dtype)
        return switched

    def pick(self, layers: Sequence[int]) -> TransformersNet:
        return TransformersNet(pick_layers(self.model, layers), self.chains)


def pass_arguments(inputs: SlotInputs) -> PassArguments:
    """Return the mask, the positions and the slots as transformers takes them."""
    return {
        "attention_mask": None if inputs.mask is None else inputs.mask[None, None],
        "position_ids": inputs.positions[None],
        "past_key_values": TransformersCache(layers=inputs.slots),
        "use_cache": True,
    }


def pick_layers(model: Any, layers: Sequence[int]) -> Any:
    """Return a copy of the modules over the same tensors, with these layers only, or raise UsageError."""
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    copied = copy.deepcopy(model, shared)
    total = copied.config.get_text_config().num_hidden_layers
    lists = [
        (parent, name)
        for parent in copied.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == total
    ]
    if len(lists) != 1:
        raise UsageError(f"{type(model).__name__} has {len(lists)} lists of {total} layers: none can be skipped")
    parent, name = lists[0]
    picked = nn.ModuleList([getattr(parent, name)[index] for index in layers])
    for new, layer in enumerate(picked):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                setattr(module, "layer_idx", new)  # noqa: B010  # modules declare no such attribute
    setattr(parent, name, picked)
    for config in {id(m.config): m.config for m in copied.modules() if hasattr(m, "config")}.values():
        if getattr(config, "layer_types", None):
            config.layer_types = [config.layer_types[index] for index in layers]
        config.num_hidden_layers = len(layers)
    return copied


def honours_masks(net: Net, device: torch.device, like: torch.dtype) -> bool:
    """Return whether an entry that a mask hides does not change the logits of others, and distances are positions'."""
    ids = torch.arange(3, device=device)
    positions = torch.tensor([0, 1, 1], device=device)
    mask = torch.zeros(3, 3, dtype=like, device=device)
    mask[0, 1:] = mask[1, 2] = mask[2, 1] = float("-inf")
    with torch.inference_mode():
        tree = net(SlotInputs(ids, positions, mask, Slots(net.layers, 8).layers), 1)
        chain = net(SlotInputs(ids[[0, 2]], ids[:2], None, Slots(net.layers, 8).layers), 1)
        unmasked = net(SlotInputs(ids, positions, None, Slots(net.layers, 8).layers), 1)
        even, spread = (net(SlotInputs(ids, step * ids, None, Slots(net.layers, 8).layers), 1) for step in (1, 2))
    near, far = (tree - chain).abs().max(), (unmasked - chain).abs().max()
    rounding = 1e-3 if torch.equal(even, spread) else 0.5  # a model that ignores positions may count slots, as MPT does
    return bool(near <= rounding * far)


def reads_chains(net: Net, device: torch.device) -> bool:
    """Return whether windows of a chain have the logits that the whole chain has."""
    ids = torch.arange(6, device=device)
    slots, parts = Slots(net.layers, 8), []
    with torch.inference_mode():
        whole = net(SlotInputs(ids, ids, None, Slots(net.layers, 8).layers), 6)
        for start, end in ((0, 2), (2, 3), (3, 6)):
            parts.append(net(SlotInputs(ids[start:end], ids[start:end], None, slots.layers), end - start))
            slots.length = end
    return bool((torch.cat(parts) - whole).abs().max() <= 0.1 * (whole.max() - whole.min()))


NAME = "stride_slots"
"""Of the attention, among those of transformers."""


class _Entries(NamedTuple):
    """Keys and values [1, H_kv, T_b, D] of each sequence, which a layer gets in place of its keys."""

    sequences: list[tuple[Tensor, Tensor]]
    layer: PackedLayer


class _Layer(CacheLayer):
    def __init__(self, layer: PackedLayer) -> None:
        super().__init__()
        self._layer = layer

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[_Entries, Tensor]:
        layer = self._layer
        split = (torch.split(rows, layer.counts, 2) for rows in (keys, values))
        sequences = zip(layer.slots, *split, strict=True)
        return _Entries([slot.update(*rows) for slot, *rows in sequences], layer), values


def attend(
    module: Any, query: Float[Tensor, "one H N D"], keys: Any, values: Tensor, mask: Tensor | None, **more: Any
) -> tuple[Float[Tensor, "one N H D"], None]:
    """Compute the scaled products of transformers; if the keys are those of several sequences, of each by itself."""
    if not isinstance(keys, _Entries):
        attended: tuple[Tensor, None] = sdpa_attention_forward(module, query, keys, values, mask, **more)
        return attended
    layer, out = keys.layer, []
    parts = zip(torch.split(query, layer.counts, 2), keys.sequences, layer.masks, strict=True)
    for rows, (own_keys, own_values), own_mask in parts:
        causal = own_mask is None and rows.shape[2] > 1
        out.append(
            functional.scaled_dot_product_attention(
                rows, own_keys, own_values, own_mask, is_causal=causal, scale=more.get("scaling"), enable_gqa=True
            )
        )
    return torch.cat(out, 2).transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)


def prepare(decoder: Any) -> None:
    """Let the attention of a decoder read several sequences; it reads single ones as before."""
    for module in decoder.modules():
        if hasattr(module, "layer_idx") and hasattr(module, "config"):
            module.config = copy.copy(module.config)
            module.config._attn_implementation = NAME


def packed_arguments(positions: Tensor, layers: Sequence[PackedLayer]) -> PassArguments:
    """Return the slots of several sequences as a prepared decoder takes them; it does not read the mask."""
    return {
        "attention_mask": positions.new_zeros(1, 1, 1, 1),
        "position_ids": positions[None],
        "past_key_values": TransformersCache(layers=[_Layer(layer) for layer in layers]),
        "use_cache": True,
    }
