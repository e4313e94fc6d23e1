"""Passes of fixed shapes over one sequence: captured by bucket of rows and entries, and replayed.

A window of N rows is padded to a bucket of ``ROWS``. Attention reads the first T slots, T a power of two, and a mask
hides those that are free or behind a row. New entries go where a tensor on the device says, so the capture holds no
number that changes. Padding writes behind the sequence, where nothing reads before it is written again. What has no
bucket takes the plain path over the same slots, and a warning says so once.
"""

from __future__ import annotations

import warnings
import weakref
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Int
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from stridebench.harness.backbones.slots.captures import Capture, CudaCapture, RecordedCapture
from stridebench.harness.backbones.slots.net import Net, SlotInputs, SlotLayer, Slots, Tapped
from stridebench.harness.core.cache import Rows, Window
from stridebench.harness.errors import GraphWarning

ROWS = (1, 2, 4, 8, 16, 32, 64)
"""Buckets of a window's rows."""
ENTRIES = 256
"""The smallest bucket of slots that attention reads; each next one is twice as large."""


class Shape(NamedTuple):
    """What a capture is of: N rows, T slots, a mask of the caller's or a causal one, and the tapped layers."""

    rows: int
    entries: int
    masked: bool
    taps: tuple[int, ...]


class FixedLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers ships no types for it
    """The slots of one layer as a captured pass sees them.

    Args:
        layer: allocated.
        places: slots of the N new entries.
        entries: T.
    """

    is_sliding = False

    def __init__(self, layer: SlotLayer, places: Int[Tensor, " N"], entries: int) -> None:
        super().__init__()
        self.keys, self.values = layer.keys, layer.values
        self._places, self._entries = places, entries
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor | None = None) -> None:
        """Nothing: it is allocated."""

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write N entries; return views of the keys and values of T slots."""
        self.keys.index_copy_(2, self._places, keys)
        self.values.index_copy_(2, self._places, values)
        return self.keys[:, :, : self._entries], self.values[:, :, : self._entries]

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        """T, and the offset of the first."""
        return self._entries, 0

    def get_seq_length(self) -> int:
        """T."""
        return self._entries

    def get_max_length(self) -> int:
        """T."""
        return self._entries

    get_max_cache_shape = get_max_length

    def reset(self) -> None:
        """Nothing: the sequence's slots forget."""


class _Pass:
    """One captured shape.

    Args:
        like: 0 in the model's type, on its device.
    """

    def __init__(self, net: Net, slots: Slots, shape: Shape, like: Tensor) -> None:
        self._net, self._slots, self._shape = net, slots, shape
        device = like.device
        self._tokens = torch.zeros(shape.rows, dtype=torch.long, device=device)
        self._positions, self._start = torch.zeros_like(self._tokens), torch.zeros_like(self._tokens[:1])
        self._counted = torch.arange(shape.rows, device=device)
        self._places = torch.arange(shape.entries, device=device)
        self._hidden = like.new_full((shape.rows, shape.entries), float("-inf"))
        self._sees = torch.zeros(shape.rows, shape.entries, dtype=torch.bool, device=device)
        self._capture: Capture | None = None

    def compute(self) -> tuple[Tensor, ...]:
        """Logits of all N rows, and hidden rows where layers are tapped."""
        shape, places = self._shape, self._start + self._counted
        own = places[:, None]  # seen by padding too, so that a sliding window leaves no row empty
        sees = self._sees | (self._places == own) if shape.masked else self._places <= own
        layers = [FixedLayer(layer, places, shape.entries) for layer in self._slots.layers]
        inputs = SlotInputs(self._tokens, self._positions, self._hidden.masked_fill(sees, 0.0), layers)
        if not shape.taps:
            return (self._net(inputs, shape.rows),)
        assert isinstance(self._net, Tapped), "the session asked for taps that the backbone has"
        rows = self._net.tapped(inputs, shape.rows, shape.taps)
        assert rows.hidden is not None
        return rows.logits, rows.hidden

    def run(self, window: Window, pool: Any) -> Rows:
        """The rows of a window; captured at the first call."""
        count = len(window.tokens)
        self._tokens[:count] = window.tokens
        self._positions[:count] = window.positions
        self._start.fill_(self._slots.length)
        if window.sees is not None:
            self._sees.zero_()
            self._sees[:, : max(window.base, 1)] = True  # padding reads entry 0, so that no row is empty
            self._sees[:count, window.base : window.base + window.sees.shape[1]] = window.sees
        if self._capture is None:
            cuda = self._tokens.is_cuda
            self._capture = CudaCapture(self.compute, pool) if cuda else RecordedCapture(self.compute)
        logits, *hidden = self._capture.replay()
        rows = logits[count - window.rows : count].clone()  # the next replay overwrites what this one gave
        return Rows(rows, hidden[0][:count].clone() if hidden else None)


@final
class FixedSlots:
    """Slots of one sequence whose addresses never change, and the passes captured over them.

    Args:
        net: the forward pass.
        context: the most entries.
        like: 0 in the model's type, on its device.
    """

    def __init__(self, net: Net, context: int, like: Tensor) -> None:
        self.slots = Slots(net.layers, context, first=context + ROWS[-1])
        self._net, self._like = net, like
        self._passes: dict[Shape, _Pass] = {}
        self._pool = torch.cuda.graph_pool_handle() if like.is_cuda else None

    @property
    def shapes(self) -> Sequence[Shape]:
        """Captured so far."""
        return tuple(self._passes)

    def shape(self, window: Window) -> Shape | str | None:
        """What to replay for a window; a text: why the plain path takes it; None: it does without a word.

        The prompt, which is read once, and gated rows, whose net is made for one pass, have no capture.
        """
        count = len(window.tokens)
        if not window.rows or window.gate is not None or not self.slots.layers[0].is_initialized:
            return None
        rows = next((size for size in ROWS if size >= count), None)
        if rows is None:
            return f"a window of {count} rows exceeds the largest captured one of {ROWS[-1]}"
        entries = ENTRIES
        while entries < self.slots.length + rows:
            entries *= 2
        room = self.slots.context + ROWS[-1]
        return Shape(rows, min(entries, room), window.sees is not None, window.taps)

    def run(self, shape: Shape, window: Window) -> Rows:
        """The rows of a window; leaves the slots' length."""
        if shape not in self._passes:
            self._passes[shape] = _Pass(self._net, self.slots, shape, self._like)
        return self._passes[shape].run(window, self._pool)


@final
class Graphs:
    """Lends `FixedSlots` to the sequences of one model; those of a sequence that is over serve the next one.

    Args:
        context: the most entries of a sequence.
        like: 0 in the model's type, on its device.
    """

    def __init__(self, context: int, like: Tensor) -> None:
        self._context, self._like = context, like
        self._free: dict[int, list[FixedSlots]] = defaultdict(list)
        self._said = False

    def lend(self, net: Net, to: Any) -> FixedSlots:
        """Empty slots over a net, which must live as long as this, until ``to`` is no more."""
        free = self._free[id(net)]
        fixed = free.pop() if free else FixedSlots(net, self._context, self._like)
        fixed.slots.length = 0
        weakref.finalize(to, free.append, fixed)
        return fixed

    def say(self, reason: str) -> None:
        """Warn that the plain path is taken, once a model."""
        if not self._said:
            self._said = True
            warnings.warn(f"{reason}; such passes are not captured, which is slower", GraphWarning, stacklevel=4)
