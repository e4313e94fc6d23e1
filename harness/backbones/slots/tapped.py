"""What nets share that give the hidden rows of their layers: layers, a norm and a head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from stridebench.harness.backbones.slots.cache import PackedWindow, last_rows
from stridebench.harness.backbones.slots.net import SlotInputs
from stridebench.harness.core.cache import Rows


class TappedNet(ABC):
    """A `Net` with ``tapped``.

    Attributes:
        layers: of the slots.
    """

    layers: int

    @property
    def depth(self) -> int:
        """L, the layers that a tap counts."""
        return self.layers

    def __call__(self, inputs: SlotInputs, rows: int) -> Float[Tensor, "R V"]:
        """Logits of the last R rows; the norm is skipped for the others."""
        x = self._through(inputs, {})
        return self._logits(self._normed(x[len(x) - rows :]))

    def tapped(self, inputs: SlotInputs, rows: int, taps: Sequence[int]) -> Rows:
        """The same, with what enters the tapped layers; L: the normed rows that the head reads."""
        return self._tapped_rows(inputs, slice(len(inputs.tokens) - rows, None), taps)

    def _tapped_rows(self, inputs: SlotInputs, rows: slice | list[int], taps: Sequence[int]) -> Rows:
        """Logits of chosen rows, and what enters the tapped layers of all."""
        entering = dict.fromkeys(taps, torch.empty(0))
        x = self._through(inputs, entering)
        last = entering[self.depth] = self._normed(x)
        return Rows(self._logits(last[rows]), torch.stack([entering[tap] for tap in taps], 1)[:, None])

    def _packed_rows(self, inputs: SlotInputs, parts: Sequence[PackedWindow]) -> Rows:
        """Logits of the last rows of each window, and hidden rows where the windows have taps."""
        rows, taps = last_rows(parts), parts[0].window.taps
        if taps:
            return self._tapped_rows(inputs, rows, taps)
        return Rows(self._logits(self._normed(self._through(inputs, {})[rows])))

    @abstractmethod
    def _through(self, inputs: SlotInputs, entering: dict[int, Tensor]) -> Float[Tensor, "N E"]:
        """What leaves the last layer; writes what enters the layers that are keys of ``entering`` into it."""

    @abstractmethod
    def _normed(self, x: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
        """Rows after the last norm."""

    @abstractmethod
    def _logits(self, last: Float[Tensor, "R E"]) -> Float[Tensor, "R V"]:
        """Logits of normed rows."""
