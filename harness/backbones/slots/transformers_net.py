"""An unchanged causal language model of transformers over the slot cache."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional
from transformers.cache_utils import Cache as TransformersCache
from transformers.cache_utils import CacheLayerMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from stridebench.harness.backbones.slots import lora as gates
from stridebench.harness.backbones.slots.cache import PackedLayer
from stridebench.harness.backbones.slots.lora import Adapter, LowRank
from stridebench.harness.backbones.slots.net import Net, SlotInputs, Slots, causal_mask, near_mask, sliding_layers
from stridebench.harness.core.backbone import TiedEmbeddings
from stridebench.harness.core.cache import Rows
from stridebench.harness.errors import UsageError

Pairs = Sequence[tuple[nn.Linear, LowRank]]


@final
class TransformersNet:
    """The model's own forward.

    Args:
        model: a causal language model in evaluation mode.
        chains: the model makes masks and positions itself, so it reads chains only.
    """

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
        """Its embedding and unembedding."""
        return TiedEmbeddings(self.model.get_input_embeddings().weight, self.model.get_output_embeddings().weight)

    def __call__(self, inputs: SlotInputs, rows: int) -> Float[Tensor, "R V"]:
        """Logits of the last R rows. A prefill pays for one row, since transformers takes 0 for all."""
        logits: Tensor = self._run(inputs, rows).logits[0]
        return logits[logits.shape[0] - rows :]

    def tapped(self, inputs: SlotInputs, rows: int, taps: Sequence[int]) -> Rows:
        """The same, with transformers' ``hidden_states`` of the tapped layers, whose last entry is normed."""
        out = self._run(inputs, rows, output_hidden_states=True)
        logits = out.logits[0]
        hidden = torch.stack([out.hidden_states[tap][0].to(logits.device) for tap in taps], 1)[:, None]
        return Rows(logits[logits.shape[0] - rows :], hidden)

    def _run(self, inputs: SlotInputs, rows: int, **more: bool) -> Any:
        cut = {"logits_to_keep": max(rows, 1)} if self._cuts else {}
        with nullcontext() if self._on is None else gates.hooked(*self._on):
            return self.model(
                input_ids=inputs.tokens[None],
                **self._arguments(inputs),
                **cut,
                **more,
            )

    def _arguments(self, inputs: SlotInputs) -> dict[str, Any]:
        """Return the arguments of a pass; a model whose layers differ takes a mask for each kind of layer."""
        if self.chains:
            return {"past_key_values": TransformersCache(layers=inputs.slots), "use_cache": True}
        if self._window is None:
            return transformers_arguments(inputs)
        mask, like = inputs.mask, torch.empty(0, dtype=self.model.dtype, device=inputs.positions.device)
        near = near_mask(self._window, inputs.positions, mask, inputs.slots[-1], 1, like)
        arguments = transformers_arguments(replace(inputs, mask=near))
        if self._mixed and near is not None:
            far = causal_mask(len(near), near.shape[1] - len(near), like) if mask is None else mask
            masks = {"full_attention": far[None, None], "sliding_attention": near[None, None]}
            arguments["attention_mask"] = masks
        return arguments

    def fitted(self, adapter: Adapter) -> Pairs:
        """The adapter with the layers that it changes. WeightsError: one is missing, or of another shape."""
        layers = gates.linears(self.model)
        gates.check(adapter, gates.shapes_of(layers))
        return [(layers[name], low) for name, low in adapter.items()]

    def gated(self, fitted: Pairs, gate: Bool[Tensor, " N"]) -> TransformersNet:
        """The same model, with the adapter on in these rows."""
        switched = copy.copy(self)
        switched._on = fitted, gate[:, None].to(self.model.dtype)
        return switched

    def pick(self, layers: Sequence[int]) -> TransformersNet:
        """The same tensors in a model of fewer layers; the original is not changed."""
        return TransformersNet(pick_layers(self.model, layers), self.chains)


def transformers_arguments(inputs: SlotInputs) -> dict[str, Any]:
    """How transformers takes the mask, the positions and the slots."""
    return {
        "attention_mask": None if inputs.mask is None else inputs.mask[None, None],
        "position_ids": inputs.positions[None],
        "past_key_values": TransformersCache(layers=inputs.slots),
        "use_cache": True,
    }


def pick_layers(model: Any, layers: Sequence[int]) -> Any:
    """A copy of the model's modules over the same tensors, with these layers only, numbered anew.

    Raises:
        UsageError: the model has no single list of layers.
    """
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
        _shrink(config, layers)
    return copied


def _shrink(config: Any, layers: Sequence[int]) -> None:
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[index] for index in layers]
    config.num_hidden_layers = len(layers)


def honours_masks(net: Net, device: torch.device, like: torch.dtype) -> bool:
    """Return whether an entry that a mask hides has no effect on the logits of others, and distances are positions'."""
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


# Several sequences in one pass over a decoder of transformers: its attention reads each sequence's own slots.
# Symbols: N rows of all sequences, N_b of sequence b, T_b entries that it has after the pass; H, H_kv heads, D
# width.


NAME = "stride_slots"
"""Of the attention, among those of transformers."""


class _Entries(NamedTuple):
    """Keys and values [1, H_kv, T_b, D] of each sequence, in the place of a layer's keys."""

    sequences: list[tuple[Tensor, Tensor]]
    layer: PackedLayer


class _Layer(CacheLayerMixin):  # type: ignore[misc]  # transformers ships no types for it
    """A layer of transformers' cache that is several layers of slots."""

    is_sliding = False

    def __init__(self, layer: PackedLayer) -> None:
        super().__init__()
        self._layer = layer

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor | None = None) -> None:
        """Slots allocate themselves."""

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[_Entries, Tensor]:
        """Append to each sequence its own entries; what attention reads stands in the place of the keys."""
        layer = self._layer
        split = (torch.split(rows, layer.counts, 2) for rows in (keys, values))
        sequences = zip(layer.slots, *split, strict=True)
        return _Entries([slot.update(*rows) for slot, *rows in sequences], layer), values

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        """Not read: the masks are those of the sequences."""
        return 0, 0

    def get_seq_length(self) -> int:
        """Not read: positions are given."""
        return 0

    def get_max_length(self) -> int:
        """None is known for several sequences."""
        return -1

    get_max_cache_shape = get_max_length


def attend(
    module: Any, query: Float[Tensor, "one H N D"], keys: Any, values: Tensor, mask: Tensor | None, **more: Any
) -> tuple[Float[Tensor, "one N H D"], None]:
    """Scaled products of transformers; where the keys are those of several sequences, of each by itself."""
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
    """Let the attention of a decoder read several sequences; what else it reads, it reads as before."""
    for module in decoder.modules():
        if hasattr(module, "layer_idx") and hasattr(module, "config"):
            module.config = copy.copy(module.config)
            module.config._attn_implementation = NAME


def arguments(positions: Tensor, layers: Sequence[PackedLayer]) -> dict[str, Any]:
    """How a prepared decoder takes the slots of several sequences; its mask stands for none and is not read."""
    return {
        "attention_mask": positions.new_zeros(1, 1, 1, 1),
        "position_ids": positions[None],
        "past_key_values": TransformersCache(layers=[_Layer(layer) for layer in layers]),
        "use_cache": True,
    }
