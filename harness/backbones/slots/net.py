"""The interface of decoders over slots, the slots, and decoders of fused products."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from stridebench.harness.backbones.slots import lora as gates
from stridebench.harness.backbones.slots.lora import Adapter, LowRank
from stridebench.harness.core.backbone import TiedEmbeddings
from stridebench.harness.core.cache import Rows, Window
from stridebench.harness.errors import ContractError

FIRST = 512
"""Entries allocated at first; a fuller buffer doubles, up to the context."""


@dataclass
class Extent:
    """Number of entries of a sequence, of those that fit, and of those allocated at first; its layers share one.

    Layers hold this and not their `Slots`: in a circle of references the buffers of a sequence that is over would wait
    for Python's collector, which looks at old objects rarely.
    """

    length: int
    context: int
    first: int


class Slots:
    """The layers of one sequence and the number of entries in them; ``first`` are allocated at first."""

    def __init__(self, layers: int, context: int, first: int | None = None) -> None:
        self._extent = Extent(0, context, min(FIRST, context) if first is None else first)
        self.layers = [SlotLayer(self._extent) for _ in range(layers)]

    @property
    def length(self) -> int:
        """Number of entries; the rest of the buffers is free."""
        return self._extent.length

    @length.setter
    def length(self, value: int) -> None:
        self._extent.length = value

    @property
    def context(self) -> int:
        return self._extent.context


class CacheLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers ships no types for it
    """A layer of a cache as transformers asks about it. If it is given masks and positions, it calls `update` alone."""

    is_sliding = False

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor | None = None) -> None: ...

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        """Return the entries after the pass, and the offset of the first; older transformers pass positions."""
        count = query_length if isinstance(query_length, int) else len(query_length)
        return self.get_seq_length() + count, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1  # as a cache that grows

    get_max_cache_shape = get_max_length

    def reset(self) -> None: ...


class SlotLayer(CacheLayer):
    """Keys and values of one layer, [1, H, capacity, D] each. The first `update` allocates them."""

    keys: Tensor
    values: Tensor

    def __init__(self, extent: Extent) -> None:
        super().__init__()
        self._extent = extent
        self._room = 0

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append N new entries; return views of the keys and values of all entries."""
        start = self._extent.length
        end = start + keys.shape[2]
        if end > self._room:
            self._grow(end, keys, values)
        self.keys[:, :, start:end] = keys
        self.values[:, :, start:end] = values
        return self.keys[:, :, :end], self.values[:, :, :end]

    def _grow(self, needed: int, keys: Tensor, values: Tensor) -> None:
        room = max(self._extent.first, self._room)
        while room < needed:
            room = min(2 * room, max(self._extent.context, needed))
        length = self._extent.length
        grown = [new.new_zeros(*new.shape[:2], room, new.shape[3]) for new in (keys, values)]
        if self._room:
            grown[0][:, :, :length] = self.keys[:, :, :length]
            grown[1][:, :, :length] = self.values[:, :, :length]
        self.keys, self.values = grown
        self._room = room
        self.is_initialized = True

    def gather(self, start: int, entries: Int[Tensor, " m"]) -> None:
        end = start + len(entries)
        entries = entries.to(self.keys.device)  # layers may lie on several devices
        self.keys[:, :, start:end] = self.keys.index_select(2, entries)
        self.values[:, :, start:end] = self.values.index_select(2, entries)

    def get_seq_length(self) -> int:
        return self._extent.length


def check_window(window: Window, held: int, context: int) -> None:
    """Raise ContractError if a window exceeds the context, or its base exceeds the entries held."""
    if held + len(window.tokens) > context:
        raise ContractError(
            f"{held} entries are held and {len(window.tokens)} more would pass the context of {context}: draft fewer "
            f"tokens, or give a shorter prompt or budget"
        )
    if not 0 <= window.base <= held:
        raise ContractError(f"a window has base {window.base} and the cache holds {held} entries")


def check_kept(length: int, entries: Sequence[int], held: int) -> None:
    """Raise ContractError if entries to keep are not held."""
    if not 0 <= length <= length + len(entries) <= held or any(not 0 <= e < held - length for e in entries):
        raise ContractError(f"keep({length}, {tuple(entries)}) names entries that are not among the {held} held")


@dataclass(frozen=True, eq=False)
class SlotInputs:
    """The input of a pass: N new entries, and the slots of each layer, or a `PackedLayer` of several sequences.

    The mask [N, T] is added to the attention scores of the T entries after the pass. It is None if N is 1 or the slots
    are empty: an entry attends to all earlier entries. ``added`` [N, E] is added to the embeddings (fused Llamas).
    """

    tokens: Int[Tensor, " N"]
    positions: Int[Tensor, " N"]
    mask: Float[Tensor, "N T"] | None
    slots: Sequence[Any]
    added: Float[Tensor, "N E"] | None = None


def sliding_layers(config: Any) -> list[bool]:
    """Return whether each layer of a configuration of transformers sees a window of the last positions only.

    A window in the config.json of a class without that parameter is kept there, and its model does not read it.
    """
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return [kind == "sliding_attention" for kind in kinds]
    window = "sliding_window" in inspect.signature(type(config)).parameters and config.sliding_window
    return [bool(window)] * int(config.num_hidden_layers)


def causal_mask(rows: int, before: int, like: Tensor) -> Float[Tensor, "N T"]:
    """Return the mask of a chain of N rows after ``before`` entries, in the type of ``like`` and on its device."""
    return like.new_full((rows, before + rows), float("-inf")).triu_(before + 1)


def near_mask(
    window: int, positions: Int[Tensor, " N"], mask: Float[Tensor, "SN T"] | None, slot: Any, share: int, like: Tensor
) -> Float[Tensor, "SN T"] | None:
    """Return the mask of layers with a sliding window: an entry W or more positions before a row is hidden from it.

    Positions count, not slots: the nodes of a tree lie next to each other. All entries stay in their slots, so that any
    draft can be rolled back.

    Args:
        window: W.
        mask: of the other layers, for S query heads that share a key head, or None if they need none.
        slot: a layer of slots that holds positions instead of keys; the new ones are appended.
        share: S.
        like: has the type and the device of the mask.
    """
    new = positions[None, None, :, None]
    places = slot.update(new, new)[0].flatten()
    rows, entries = len(positions), len(places)
    if entries <= window:
        return mask
    if mask is None:
        mask = causal_mask(rows, entries - rows, like).repeat(share, 1)
    return mask.masked_fill((positions[:, None] - places >= window).repeat(share, 1), float("-inf"))


class Net(Protocol):
    """A forward pass over slots. It appends N entries and does not change `Slots.length`.

    A net with sliding windows has one more layer of slots than the model, for positions (see `near_mask`).
    """

    kind: str
    layers: int

    def __call__(self, inputs: SlotInputs, rows: int) -> Float[Tensor, "R V"]:
        """Return logits of the last R rows."""

    def pick(self, layers: Sequence[int]) -> Net:
        """Return the same weights with these layers only."""


@dataclass
class Released:
    """In the place of a net whose weights were given back."""

    layers: int
    kind: str = "released"

    def __call__(self, inputs: SlotInputs, rows: int) -> Float[Tensor, "R V"]:
        raise ContractError("the weights of this backbone were given back; load it again")

    def pick(self, layers: Sequence[int]) -> Net:
        raise ContractError("the weights of this backbone were given back; load it again")


@runtime_checkable
class Tapped(Net, Protocol):
    """A net that also gives hidden rows, and lends its embedding and unembedding."""

    def pick(self, layers: Sequence[int]) -> Tapped: ...

    def tied_embeddings(self) -> TiedEmbeddings:
        """Return its embedding and unembedding."""

    def tapped(self, inputs: SlotInputs, rows: int, taps: Sequence[int]) -> Rows:
        """Make the same pass; return the inputs of these layers for all N entries, in one branch; L: the head's."""


@runtime_checkable
class Gates(Net, Protocol):
    """A net in which each row uses an adapter or not."""

    def fitted(self, adapter: Adapter) -> Any:
        """Return the adapter as `gated` takes it, or raise WeightsError if the net lacks its layers or shapes."""

    def gated(self, fitted: Any, gate: Bool[Tensor, " N"]) -> Net:
        """Return the same weights, with the adapter on in these rows of a pass of N."""


class FusedLayers:
    """Layers of fused products, of which some can be left out or use an adapter in some rows.

    Attributes:
        products: the linear layers of the same rows, by name within a layer, that each product stands for.
        prefix: text before a layer's number in the names of the model's linear layers.
    """

    layers: int
    products: ClassVar[Mapping[str, tuple[str, ...]]]
    prefix: ClassVar[str]
    _weights: Sequence[Any]
    """A frozen dataclass a layer, whose fields are norms and products."""
    _shapes: Mapping[str, tuple[int, int]]
    """O and I of the linear layers that a row may gate, by name."""
    _like: Tensor
    """A weight, for its type and device."""

    def pick(self, layers: Sequence[int]) -> Self:
        picked = copy.copy(self)
        picked.layers = self.layers - len(self._weights) + len(layers)
        picked._weights = [self._weights[index] for index in layers]
        return picked

    def fitted(self, adapter: Adapter) -> list[dict[str, LowRank]]:
        self._check(adapter)
        return [self._joined(adapter, f"{self.prefix}{index}.") for index in range(len(self._weights))]

    def _check(self, adapter: Adapter) -> None:
        gates.check(adapter, self._shapes)

    def _joined(self, adapter: Adapter, layer: str) -> dict[str, LowRank]:
        """Return the adapter of one layer by product, without products that it does not change."""
        joined = {}
        for product, names in self.products.items():
            linears = [
                adapter.get(layer + name) or gates.nothing(*self._shapes[layer + name], self._like) for name in names
            ]
            if any(len(linear.down) for linear in linears):
                joined[product] = gates.joined(linears)
        return joined

    def gated(self, fitted: Sequence[Mapping[str, LowRank]], gate: Bool[Tensor, " N"]) -> Self:
        switched, on = copy.copy(self), gate[:, None].to(self._like.dtype)
        switched._weights = [
            replace(layer, **{name: gates.gated(getattr(layer, name), low, on) for name, low in products.items()})
            for layer, products in zip(self._weights, fitted, strict=True)
        ]
        return switched
