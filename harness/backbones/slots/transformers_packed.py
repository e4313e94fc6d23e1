"""Several sequences in one pass over a decoder of transformers: its attention reads each sequence's own slots.

Symbols: N rows of all sequences, N_b of sequence b, T_b entries that it has after the pass; H, H_kv heads, D width.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional
from transformers.cache_utils import Cache as TransformersCache
from transformers.cache_utils import CacheLayerMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from stridebench.harness.backbones.slots.packed import PackedLayer

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
