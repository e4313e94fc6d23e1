"""Windows of several sequences in one pass over a net, packed end to end. Each attends to its own slots.

Products read all N rows of the windows, without padding. Attention is computed sequence by sequence, so that keys and
values stay where they are. Symbols: N_b rows of sequence b, and T_b entries that it has after the pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from stridebench.harness.core.cache import Rows, Window

if TYPE_CHECKING:
    from stridebench.harness.backbones.slots.net import Net, SlotLayer, Slots


class PackedWindow(NamedTuple):
    """A window of one sequence, and what its pass needs: the net, its slots and its mask [N_b, T_b] or None."""

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
    """A net that reads several sequences in one pass."""

    def joins(self, other: Net) -> bool:
        """Whether a sequence of the other net may be read in the same pass."""

    def packed(self, tokens: Int[Tensor, " N"], positions: Int[Tensor, " N"], parts: Sequence[PackedWindow]) -> Rows:
        """Logits of the last rows of each window, those of the first sequence first, and all hidden rows where the
        windows, which have the same taps, ask for them; leaves the slots' lengths."""


def layers(parts: Sequence[PackedWindow], share: int) -> list[PackedLayer]:
    """The slots of the sequences layer by layer; masks are repeated for ``share`` query heads a key head."""
    counts = [len(part.window.tokens) for part in parts]
    masks = [None if part.mask is None else part.mask.repeat(share, 1) for part in parts]
    slot_layers = zip(*(part.slots.layers for part in parts), strict=True)
    return [PackedLayer(counts, list(slots), masks) for slots in slot_layers]


def last_rows(parts: Sequence[PackedWindow]) -> list[int]:
    """Places of the rows with logits in the pass."""
    places: list[int] = []
    end = 0
    for part in parts:
        end += len(part.window.tokens)
        places += range(end - part.window.rows, end)
    return places


def extend_packed(parts: Sequence[PackedWindow]) -> list[Rows | Exception] | None:
    """One pass for all windows; None where their nets do not allow that, or their taps differ."""
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
