"""Hidden rows of a sequence, one an entry: which layers a method taps, and a buffer of their rows.

Axes: M entries, N of them written at once, G branches of guidance, J tapped layers, E width.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from stridebench.harness.core.capabilities import Capabilities, Tap
from stridebench.harness.errors import UsageError

FIRST = 256
"""Rows allocated at first. A full buffer doubles."""


def resolve(taps: Sequence[Tap], capabilities: Capabilities) -> tuple[int, ...]:
    """The taps as numbers from 0 to L.

    Raises:
        UsageError: the backbone has no such layer, or serves no hidden rows.
    """
    layers = capabilities.layers
    if taps and not layers:
        raise UsageError("the method reads hidden rows and this backbone serves none; take one that meets HIDDEN")
    indices = tuple(layers // 2 if tap == "middle" else tap if tap >= 0 else layers + 1 + tap for tap in taps)
    if not all(0 <= layer <= layers for layer in indices):
        raise UsageError(
            f"taps {tuple(taps)} of a backbone of {layers} layers: give each from 0 (the embedding) to {layers} (what "
            f"the head reads), or from -1 to {-layers - 1}, counted from there"
        )
    return indices


@final
class HiddenRows:
    """A buffer that is written in place, as the cache beside it. ``taps`` is J."""

    def __init__(self, capabilities: Capabilities, taps: int, device: torch.device) -> None:
        self._buffer = torch.empty(0, capabilities.branches, taps, capabilities.width, device=device)

    @property
    def rows(self) -> Float[Tensor, "M G J E"]:
        """All rows of the buffer; those behind the written entries are undefined."""
        return self._buffer

    def write(self, start: int, rows: Float[Tensor, "N G J E"]) -> None:
        """Rows of the entries from ``start`` on; the buffer takes the shape and type of the first ones."""
        end = start + len(rows)
        if end > len(self._buffer):
            grown = rows.new_empty(max(FIRST, 2 * len(self._buffer), end), *rows.shape[1:])
            grown[:start] = self._buffer[:start]
            self._buffer = grown
        self._buffer[start:end] = rows

    def keep(self, length: int, entries: Sequence[int]) -> None:
        """Move the rows at ``length + e``, for each listed e, to ``length`` and on."""
        if len(self._buffer) and tuple(entries) != tuple(range(len(entries))):
            sources = torch.tensor(entries, device=self._buffer.device) + length
            self._buffer[length : length + len(entries)] = self._buffer[sources]

    def __deepcopy__(self, memo: dict[int, Any]) -> HiddenRows:
        twin = copy.copy(self)
        twin._buffer = self._buffer.clone()
        return twin
