"""The slot cache: keys and values in preallocated buffers, written in place and cut by a length.

Nothing is concatenated. A pass writes its entries behind the old ones, `keep` of a prefix sets a length, and `keep` of
chosen entries is one index copy per layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.backbones.slots.graphs import CaptureShape, Graphs
from stridebench.harness.backbones.slots.net import (
    FIRST,
    Gates,
    Net,
    SlotInputs,
    SlotLayer,
    Slots,
    Tapped,
    causal_mask,
    check_kept,
    check_window,
)
from stridebench.harness.core.cache import Cache, Rows, Window
from stridebench.harness.errors import ContractError


class PackedWindow(NamedTuple):
    """A window of one sequence, with the net, the slots and the mask [N_b, T_b] or None of its pass."""

    net: Net
    slots: Slots
    window: Window
    mask: Tensor | None


class PackedLayer(NamedTuple):
    """One layer of all sequences: how many rows each has in the pass, its slots and its mask."""

    counts: list[int]
    slots: list[SlotLayer]
    masks: list[Tensor | None]


@runtime_checkable
class Packs(Protocol):
    """A net that reads several sequences in one pass, packed end to end, without padding.

    Attention is computed sequence by sequence, so that keys and values stay where they are. Symbols: N_b rows of
    sequence b, and T_b entries that it has after the pass.
    """

    def joins(self, other: Net) -> bool:
        """Return whether a sequence of the other net may be read in the same pass."""

    def packed(self, tokens: Int[Tensor, " N"], positions: Int[Tensor, " N"], parts: Sequence[PackedWindow]) -> Rows:
        """Return logits of the last rows of each window, those of the first sequence first, and all hidden rows if the
        windows, which have the same taps, ask for them; leave the slots' lengths.
        """


def layers(parts: Sequence[PackedWindow], share: int) -> list[PackedLayer]:
    """Return the slots of the sequences layer by layer; masks are repeated for ``share`` query heads a key head."""
    counts = [len(part.window.tokens) for part in parts]
    masks = [None if part.mask is None else part.mask.repeat(share, 1) for part in parts]
    slot_layers = zip(*(part.slots.layers for part in parts), strict=True)
    return [PackedLayer(counts, list(slots), masks) for slots in slot_layers]


def last_rows(parts: Sequence[PackedWindow]) -> list[int]:
    """Return the places of the rows with logits in the pass."""
    places: list[int] = []
    end = 0
    for part in parts:
        end += len(part.window.tokens)
        places += range(end - part.window.rows, end)
    return places


def extend_packed(parts: Sequence[PackedWindow]) -> list[Rows | Exception] | None:
    """Make one pass for all windows; return None if their nets do not allow that, or their taps differ."""
    net, taps = parts[0].net, parts[0].window.taps
    if (
        len(parts) < 2
        or not isinstance(net, Packs)
        or any(not net.joins(p.net) or p.window.taps != taps for p in parts)
    ):
        return None
    counts = [len(part.window.tokens) for part in parts]
    tokens = torch.cat([part.window.tokens for part in parts])
    positions = torch.cat([part.window.positions for part in parts])
    read = net.packed(tokens, positions, parts)
    for part, count in zip(parts, counts, strict=True):
        part.slots.length += count
    logits = torch.split(read.logits, [part.window.rows for part in parts])
    hidden = [None] * len(parts) if read.hidden is None else torch.split(read.hidden, counts)
    return [Rows(*rows) for rows in zip(logits, hidden, strict=True)]


KEPT_MASK = 64
"""Windows of at most this many rows take their causal mask from a buffer that is built once."""


class Masks:
    """Additive masks, 0 or -inf; causal masks of small windows are slices of one buffer for each size."""

    def __init__(self, context: int, dtype: torch.dtype, device: torch.device) -> None:
        self._context = context
        self._like = torch.zeros((), dtype=dtype, device=device)
        self._causal: dict[int, Tensor] = {}

    def __call__(self, window: Window, entries: int) -> Float[Tensor, "N T"] | None:
        count, sees = len(window.tokens), window.sees
        if sees is not None:
            mask = self._like.new_zeros(count, window.base + sees.shape[1])
            mask[:, window.base :].masked_fill_(~sees, float("-inf"))
            return mask
        if count == 1 or entries == 0:
            return None
        if count > KEPT_MASK:
            return causal_mask(count, entries, self._like)
        buffer = self._causal.get(count)
        if buffer is None or buffer.shape[1] < entries + count:
            buffer = causal_mask(count, min(self._context, max(FIRST, 2 * entries)), self._like)
            self._causal[count] = buffer
        mask = buffer[:, buffer.shape[1] - entries - count :]
        return mask if mask.device.type == "cpu" else mask.contiguous()  # GPU kernels want aligned rows


@final
class SlotCache(Cache):
    """One sequence over a net, of at most ``context`` entries; masks and captured passes are those of its backbone."""

    def __init__(self, net: Net, context: int, masks: Masks, graphs: Graphs | None = None) -> None:
        self._net = net
        self._masks = masks
        self._graphs = graphs
        self._fixed = None if graphs is None else graphs.lend(net, self)
        self._slots = Slots(net.layers, context) if self._fixed is None else self._fixed.slots

    @torch.inference_mode()
    def extend(self, window: Window) -> Rows:
        rows = self._replayed(window)
        if rows is None:
            net, slots, _, mask = self._part(window)
            inputs = SlotInputs(window.tokens, window.positions, mask, slots.layers, window.features)
            if not window.taps:
                rows = Rows(net(inputs, window.rows))
            elif isinstance(net, Tapped):
                rows = net.tapped(inputs, window.rows, window.taps)
            else:
                raise ContractError(f"{type(net).__name__} gives no hidden rows; ask a backbone that meets HIDDEN")
        self._slots.length += len(window.tokens)
        return rows

    def _replayed(self, window: Window) -> Rows | None:
        if self._fixed is None or self._graphs is None:
            return None
        check_window(window, self._slots.length, self._slots.context)
        shape = self._fixed.shape(window)
        if isinstance(shape, str):
            self._graphs.say(shape)
        return self._fixed.run(shape, window) if isinstance(shape, CaptureShape) else None

    @classmethod
    @torch.inference_mode()
    def extend_many(cls, caches: Sequence[SlotCache], windows: Sequence[Window]) -> list[Rows | Exception]:
        try:
            rows = extend_packed([cache._part(window) for cache, window in zip(caches, windows, strict=True)])
        except Exception:  # no slots have grown yet, and each sequence read alone raises its own error
            rows = None
        return super().extend_many(caches, windows) if rows is None else rows

    def _part(self, window: Window) -> PackedWindow:
        net, slots = self._net, self._slots
        check_window(window, slots.length, slots.context)
        if window.gate is not None:
            if not isinstance(net, Gates):
                raise ContractError(f"{type(net).__name__} gates no rows; ask a backbone that meets GATE")
            net = net.gated(window.adapter, window.gate)
        return PackedWindow(net, slots, window, self._masks(window, slots.length))

    @torch.inference_mode()
    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        slots = self._slots
        check_kept(length, entries, slots.length)
        placed = 0
        while placed < len(entries) and entries[placed] == placed:
            placed += 1
        if placed < len(entries):
            index = torch.tensor(entries[placed:], device=slots.layers[0].keys.device) + length
            for layer in slots.layers:
                layer.gather(length + placed, index)
        slots.length = length + len(entries)


class TappedNet(ABC):
    """A `Net` of layers, a norm and a head that also gives the hidden rows of its layers."""

    layers: int

    @property
    def depth(self) -> int:
        """Return L, the layers that a tap counts."""
        return self.layers

    def __call__(self, inputs: SlotInputs, rows: int) -> Float[Tensor, "R V"]:
        x = self._through(inputs, {})
        return self._logits(self._normed(x[len(x) - rows :]))

    def tapped(self, inputs: SlotInputs, rows: int, taps: Sequence[int]) -> Rows:
        return self._tapped_rows(inputs, slice(len(inputs.tokens) - rows, None), taps)

    def _tapped_rows(self, inputs: SlotInputs, rows: slice | list[int], taps: Sequence[int]) -> Rows:
        entering = dict.fromkeys(taps, torch.empty(0))
        x = self._through(inputs, entering)
        last = entering[self.depth] = self._normed(x)
        return Rows(self._logits(last[rows]), torch.stack([entering[tap] for tap in taps], 1)[:, None])

    def _packed_rows(self, inputs: SlotInputs, parts: Sequence[PackedWindow]) -> Rows:
        rows, taps = last_rows(parts), parts[0].window.taps
        if taps:
            return self._tapped_rows(inputs, rows, taps)
        return Rows(self._logits(self._normed(self._through(inputs, {})[rows])))

    @abstractmethod
    def _through(self, inputs: SlotInputs, entering: dict[int, Tensor]) -> Float[Tensor, "N E"]:
        """Return the rows after the last layer; write the inputs of layers that are keys of ``entering`` into it."""

    @abstractmethod
    def _normed(self, x: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]: ...

    @abstractmethod
    def _logits(self, last: Float[Tensor, "R E"]) -> Float[Tensor, "R V"]: ...
