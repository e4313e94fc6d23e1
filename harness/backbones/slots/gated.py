"""Linear layers that use an adapter in some rows of a pass and leave the others unchanged.

A row whose gate is 0 gets its low-rank product times 0, so it keeps the base's own value in the same pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.backbones.slots.lora import Adapter, LowRank
from stridebench.harness.core.packed_linear import Product
from stridebench.harness.errors import WeightsError


def gated(product: Product, low: LowRank, gate: Float[Tensor, "N 1"]) -> Product:
    """The product, with the adapter's added where the gate is 1."""

    def gated_product(x: Tensor) -> Tensor:
        return product(x).addmm_(functional.linear(x, low.down) * gate, low.up.T)

    return gated_product


def joined(parts: Sequence[LowRank]) -> LowRank:
    """The adapter of linears that read the same rows and whose outputs lie side by side."""
    up: Tensor = torch.block_diag(*(part.up for part in parts))  # type: ignore[no-untyped-call]  # torch types it not
    return LowRank(torch.cat([part.down for part in parts]), up)


def nothing(out: int, into: int, like: Tensor) -> LowRank:
    """The adapter of a linear that it leaves unchanged."""
    return LowRank(like.new_empty(0, into), like.new_empty(out, 0))


def check(adapter: Adapter, shapes: Mapping[str, tuple[int, int]]) -> None:
    """Reject an adapter of layers that the model does not have.

    Args:
        shapes: O and I of the linear layers that a row may gate.

    Raises:
        WeightsError: it changes such a layer, or one of another shape.
    """
    for name, low in adapter.items():
        shape = (low.up.shape[0], low.down.shape[1])
        if name not in shapes or shapes[name] != shape:
            actual = (
                f"that has {shapes[name][0]} x {shapes[name][1]}" if name in shapes else "which is no linear layer here"
            )
            raise WeightsError(
                f"the adapter changes {name} by {shape[0]} x {shape[1]} numbers, {actual}: it was made for another "
                f"model, or changes the output layer, which all rows share"
            )


def linears(model: Any) -> dict[str, nn.Linear]:
    """The linear layers of a model of transformers by name, except its output layer."""
    head = model.get_output_embeddings()
    return {
        name: module for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head
    }


def shapes_of(layers: Mapping[str, nn.Linear]) -> dict[str, tuple[int, int]]:
    """O and I of each."""
    return {name: (layer.out_features, layer.in_features) for name, layer in layers.items()}


@contextmanager
def hooked(pairs: Sequence[tuple[nn.Linear, LowRank]], gate: Float[Tensor, "N 1"]) -> Iterator[None]:
    """While inside, the layers' own model reads N rows with the adapter where the gate is 1."""
    with ExitStack() as stack:
        for layer, low in pairs:
            stack.enter_context(layer.register_forward_hook(partial(_add, low=low, gate=gate)))
        yield


def _add(module: nn.Module, args: tuple[Tensor], out: Tensor, low: LowRank, gate: Tensor) -> Tensor:
    return out + functional.linear(functional.linear(args[0], low.down) * gate, low.up)
