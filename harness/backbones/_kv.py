"""The slot cache: keys and values in preallocated buffers, written in place and cut by a number.

Nothing is ever concatenated: a pass writes its entries behind the ones held, `keep` of a prefix sets a
length, and `keep` of chosen entries is one index copy per layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, final, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from harness.backbone import Ends
from harness.backbones._kv_batch import Part, extend_packed
from harness.backbones._lora import Adapter
from harness.contracts import Cache, Rows, Window
from harness.errors import ContractError

FIRST = 512
"""Entries allocated at first; a fuller buffer doubles, up to the context."""
KEPT_MASK = 64
"""Windows up to this many rows take their causal mask from a buffer that is built once."""


class Slots:
    """The layers of one sequence and the number of entries that they hold.

    Attributes:
        length: entries held; what lies behind them in the buffers is free.
    """

    def __init__(self, layers: int, context: int) -> None:
        self.length = 0
        self.context = context
        self.layers = [SlotLayer(self) for _ in range(layers)]


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers ships no types for it
    """Keys and values of one layer, [1, H, capacity, D] each. The first `update` allocates them."""

    is_sliding = False
    keys: Tensor
    values: Tensor

    def __init__(self, slots: Slots) -> None:
        super().__init__()
        self._slots = slots
        self._room = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor | None = None) -> None:
        """Allocated by `update`, which knows both shapes."""

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the N new entries behind those held; returns keys and values of all, as views."""
        start = self._slots.length
        end = start + keys.shape[2]
        if end > self._room:
            self._grow(end, keys, values)
        self.keys[:, :, start:end] = keys
        self.values[:, :, start:end] = values
        return self.keys[:, :, :end], self.values[:, :, :end]

    def _grow(self, needed: int, keys: Tensor, values: Tensor) -> None:
        room = max(min(FIRST, self._slots.context), self._room)
        while room < needed:
            room = min(2 * room, max(self._slots.context, needed))
        held = self._slots.length
        grown = [new.new_zeros(*new.shape[:2], room, new.shape[3]) for new in (keys, values)]
        if self._room:
            grown[0][:, :, :held] = self.keys[:, :, :held]
            grown[1][:, :, :held] = self.values[:, :, :held]
        self.keys, self.values = grown
        self._room = room
        self.is_initialized = True

    def gather(self, start: int, entries: Int[Tensor, " m"]) -> None:
        """Move the entries at these slots to ``start`` and on."""
        end = start + len(entries)
        self.keys[:, :, start:end] = self.keys.index_select(2, entries)
        self.values[:, :, start:end] = self.values.index_select(2, entries)

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        """Entries after the pass, and the offset of the first; older transformers pass positions."""
        count = query_length if isinstance(query_length, int) else len(query_length)
        return self._slots.length + count, 0

    def get_seq_length(self) -> int:
        """Entries held."""
        return self._slots.length

    def get_max_length(self) -> int:
        """Entries that fit."""
        return self._slots.context

    get_max_cache_shape = get_max_length

    def reset(self) -> None:
        """Forget all entries."""
        self._slots.length = 0


class Net(Protocol):
    """A forward pass over the slots; it writes N entries behind `slots.length` and leaves the length."""

    kind: str
    layers: int

    def __call__(
        self,
        tokens: Int[Tensor, " N"],
        positions: Int[Tensor, " N"],
        mask: Float[Tensor, "N T"] | None,
        slots: Slots,
        rows: int,
    ) -> Float[Tensor, "R V"]:
        """Logits of the last R rows; without a mask N is 1 or the slots are empty, and rows see all before."""

    def pick(self, layers: Sequence[int]) -> Net:
        """The same weights with these layers only."""


@runtime_checkable
class Tapped(Net, Protocol):
    """A net that gives hidden rows too, and lends its ends."""

    def ends(self) -> Ends:
        """Its embedding and unembedding."""

    def tapped(
        self,
        tokens: Int[Tensor, " N"],
        positions: Int[Tensor, " N"],
        mask: Float[Tensor, "N T"] | None,
        slots: Slots,
        rows: int,
        taps: Sequence[int],
    ) -> Rows:
        """The same pass, and what enters these layers of all N entries, in one branch; L: what the head reads."""


@runtime_checkable
class Gates(Net, Protocol):
    """A net whose rows read an adapter or not, each for itself."""

    def fitted(self, adapter: Adapter) -> Any:
        """The adapter as `gated` takes it. WeightsError: it changes layers that are not there, or of another shape."""

    def gated(self, fitted: Any, gate: Bool[Tensor, " N"]) -> Net:
        """The same weights, with the adapter on in these rows of a pass of N."""


class Masks:
    """Additive masks, 0 or -inf; causal ones of small windows are slices of a buffer a size."""

    def __init__(self, context: int, dtype: torch.dtype, device: torch.device) -> None:
        self._context = context
        self._like = torch.zeros((), dtype=dtype, device=device)
        self._causal: dict[int, Tensor] = {}

    def __call__(self, window: Window, held: int) -> Float[Tensor, "N T"] | None:
        """The mask of a window behind ``held`` entries; None where none is needed."""
        count = len(window.tokens)
        if window.sees is not None:
            return self._tree(window.sees, window.base)
        if count == 1 or held == 0:
            return None
        return self._chain(count, held)

    def _tree(self, sees: Bool[Tensor, "N S"], base: int) -> Float[Tensor, "N T"]:
        mask = self._like.new_zeros(sees.shape[0], base + sees.shape[1])
        mask[:, base:].masked_fill_(~sees, float("-inf"))
        return mask

    def _chain(self, count: int, held: int) -> Float[Tensor, "N T"]:
        if count > KEPT_MASK:
            return self._corner(count, held)
        buffer = self._causal.get(count)
        if buffer is None or buffer.shape[1] < held + count:
            buffer = self._corner(count, min(self._context, max(FIRST, 2 * held)))
            self._causal[count] = buffer
        mask = buffer[:, buffer.shape[1] - held - count :]
        return mask if mask.device.type == "cpu" else mask.contiguous()  # GPU kernels want aligned rows

    def _corner(self, count: int, held: int) -> Float[Tensor, "N T"]:
        mask = self._like.new_full((count, held + count), float("-inf"))
        return mask.triu_(held + 1)


@final
class SlotCache(Cache):
    """One sequence over a net.

    Args:
        net: the forward pass. context: the most entries. masks: shared by the caches of a backbone.
    """

    def __init__(self, net: Net, context: int, masks: Masks) -> None:
        self._net = net
        self._masks = masks
        self._slots = Slots(net.layers, context)

    @torch.inference_mode()
    def extend(self, window: Window) -> Rows:
        """One pass behind the entries held."""
        rows = self._run(self._part(window))
        self._slots.length += len(window.tokens)
        return rows

    @classmethod
    @torch.inference_mode()
    def extend_many(cls, caches: Sequence[SlotCache], windows: Sequence[Window]) -> list[Rows | Exception]:
        """One packed pass where one net serves all of them and can."""
        try:
            found = extend_packed([cache._part(window) for cache, window in zip(caches, windows, strict=True)])
        except Exception:  # no slots have grown yet: read alone, only what cannot be read fails
            found = None
        return super().extend_many(caches, windows) if found is None else found

    def _part(self, window: Window) -> Part:
        """What a pass over the window needs.

        Raises:
            ContractError: it goes past the context, or its base past the entries held.
        """
        slots, count = self._slots, len(window.tokens)
        if slots.length + count > slots.context:
            raise ContractError(
                f"{slots.length} entries are held and {count} more would pass the context of "
                f"{slots.context}: draft fewer tokens, or give a shorter prompt or budget"
            )
        if not 0 <= window.base <= slots.length:
            raise ContractError(f"a window has base {window.base} and the cache holds {slots.length} entries")
        return Part(self._gated(window), slots, window, self._masks(window, slots.length))

    def _gated(self, window: Window) -> Net:
        if window.gate is None:
            return self._net
        if not isinstance(self._net, Gates):
            raise ContractError(f"{type(self._net).__name__} gates no rows; ask a backbone that meets GATE")
        return self._net.gated(window.adapter, window.gate)

    def _run(self, part: Part) -> Rows:
        net, slots, window, mask = part
        if not window.taps:
            return Rows(net(window.tokens, window.positions, mask, slots, window.rows))
        if not isinstance(net, Tapped):
            raise ContractError(f"{type(net).__name__} gives no hidden rows; ask a backbone that meets HIDDEN")
        return net.tapped(window.tokens, window.positions, mask, slots, window.rows, window.taps)

    @torch.inference_mode()
    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        """A number where the entries lie in place, else one index copy a layer."""
        slots, end = self._slots, length + len(entries)
        if not 0 <= length <= end <= slots.length or any(not 0 <= e < slots.length - length for e in entries):
            raise ContractError(
                f"keep({length}, {tuple(entries)}) names entries that are not among the {slots.length} held"
            )
        placed = 0
        while placed < len(entries) and entries[placed] == placed:
            placed += 1
        if placed < len(entries):
            held = slots.layers[0].keys
            index = torch.tensor(entries[placed:], device=held.device) + length
            for layer in slots.layers:
                layer.gather(length + placed, index)
        slots.length = end
