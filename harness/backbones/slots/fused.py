"""What decoders of fused products share: some layers left out, and an adapter in some rows of a pass.

A fused product stands for several linear layers that read the same rows. The adapter of each of them is joined to one
of the product.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

from jaxtyping import Bool
from torch import Tensor

from stridebench.harness.backbones.slots import gated as gates
from stridebench.harness.backbones.slots.lora import Adapter, LowRank


class FusedLayers:
    """Layers of fused products.

    Attributes:
        layers: how many there are.
        products: the linear layers, by name within a layer, that each product stands for.
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
        """The same weights with these layers only."""
        picked = copy.copy(self)
        picked.layers = self.layers - len(self._weights) + len(layers)
        picked._weights = [self._weights[index] for index in layers]
        return picked

    def fitted(self, adapter: Adapter) -> list[dict[str, LowRank]]:
        """The adapter by layer and product.

        Raises:
            WeightsError: it changes layers that are not there, or of another shape.
        """
        self._check(adapter)
        return [self._joined(adapter, f"{self.prefix}{index}.") for index in range(len(self._weights))]

    def _check(self, adapter: Adapter) -> None:
        gates.check(adapter, self._shapes)

    def _joined(self, adapter: Adapter, layer: str) -> dict[str, LowRank]:
        """The adapter of one layer by product, without products that it does not change."""
        joined = {}
        for product, names in self.products.items():
            linears = [
                adapter.get(layer + name) or gates.nothing(*self._shapes[layer + name], self._like) for name in names
            ]
            if any(len(linear.down) for linear in linears):
                joined[product] = gates.joined(linears)
        return joined

    def gated(self, fitted: Sequence[Mapping[str, LowRank]], gate: Bool[Tensor, " N"]) -> Self:
        """The same weights, with the adapter on in these rows of the next pass."""
        switched, on = copy.copy(self), gate[:, None].to(self._like.dtype)
        switched._weights = [
            replace(layer, **{name: gates.gated(getattr(layer, name), low, on) for name, low in products.items()})
            for layer, products in zip(self._weights, fitted, strict=True)
        ]
        return switched
