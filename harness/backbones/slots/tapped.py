"""What forwards over slots share that give the hidden rows of their layers: layers, a norm and a head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from harness.backbones.slots.net import Slots
from harness.core.cache import Rows


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

    def __call__(
        self,
        tokens: Int[Tensor, " N"],
        positions: Int[Tensor, " N"],
        mask: Float[Tensor, "N T"] | None,
        slots: Slots,
        rows: int,
    ) -> Float[Tensor, "R V"]:
        """Logits of the last R rows; the norm is skipped for the others."""
        x = self._through(tokens, positions, mask, slots.layers, {})
        return self._logits(self._normed(x[len(tokens) - rows :]))

    def tapped(
        self,
        tokens: Int[Tensor, " N"],
        positions: Int[Tensor, " N"],
        mask: Float[Tensor, "N T"] | None,
        slots: Slots,
        rows: int,
        taps: Sequence[int],
    ) -> Rows:
        """The same, with what enters the tapped layers; L: the normed rows that the head reads."""
        return self._shown(tokens, positions, mask, slots.layers, slice(len(tokens) - rows, None), taps)

    def _shown(
        self,
        tokens: Int[Tensor, " N"],
        positions: Int[Tensor, " N"],
        mask: Float[Tensor, "N T"] | None,
        slots: Sequence[Any],
        rows: slice | list[int],
        taps: Sequence[int],
    ) -> Rows:
        """Logits of chosen rows, and what enters the tapped layers of all."""
        entering = dict.fromkeys(taps, torch.empty(0))
        x = self._through(tokens, positions, mask, slots, entering)
        last = entering[self.depth] = self._normed(x)
        return Rows(self._logits(last[rows]), torch.stack([entering[tap] for tap in taps], 1)[:, None])

    @abstractmethod
    def _through(
        self,
        tokens: Int[Tensor, " N"],
        positions: Int[Tensor, " N"],
        mask: Float[Tensor, "N T"] | None,
        slots: Sequence[Any],
        entering: dict[int, Tensor],
    ) -> Float[Tensor, "N E"]:
        """What leaves the last layer; ``entering`` takes what enters the layers that it names."""

    @abstractmethod
    def _normed(self, x: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
        """After the last norm."""

    @abstractmethod
    def _logits(self, last: Float[Tensor, "R E"]) -> Float[Tensor, "R V"]:
        """Of normed rows."""
