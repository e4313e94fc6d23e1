"""Figures of a trained adapter beside its controls: no effect, or its entries in another order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from stridebench.harness.train.gated_lora import GatedLora
from stridebench.methods.training.adapters.denoising import Denoising


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


def development_figures(model: Denoising) -> dict[str, float]:
    """Figures on development windows that read random ids.

    - ``top1_slot*``: how often the guess of a slot is right.
    - ``run``: mean number of right guesses before the first wrong one.
    - ``_untrained``, ``_shuffled``: the same of a new adapter (the target alone), and of one whose matrices have
      their entries in another order.
    """
    figures: dict[str, float] = {}
    for key in ("", "_untrained", "_shuffled"):
        with control(model.adapted, key):
            right, inside = (slots.double().cpu() for slots in model.hits())
        share = right.sum(0) / inside.sum(0).clamp_min(1)
        figures |= {"windows": float(len(right)), "places": float(inside.sum(1).mean())}
        figures |= {f"top1_slot{k}{key}": float(share[k - 1]) for k in (1, 2, 4, model.width)}
        figures[f"run{key}"] = float(right.cumprod(1).sum(1).mean())
    return figures
