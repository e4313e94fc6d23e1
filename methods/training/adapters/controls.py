"""Controls that a trained adapter is compared with: no effect, or its entries in another order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from harness.train.gated_lora import GatedLora


@contextmanager
def control(adapted: GatedLora, key: str) -> Iterator[None]:
    """While inside, the adapter has no effect (_untrained), or its matrices' entries another order (_shuffled)."""
    trained = [matrix.detach().clone() for matrix in adapted.up]
    order = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for matrix in adapted.up if key else ():
            mixed = matrix.flatten()[torch.randperm(matrix.numel(), generator=order)].view_as(matrix)
            matrix.copy_(mixed if key == "_shuffled" else torch.zeros_like(matrix))
        try:
            yield
        finally:
            for matrix, values in zip(adapted.up, trained, strict=True):
                matrix.copy_(values)
