"""What is trained of MuLo-SD: the pair of samplers, what stands beside it, and one pass to the other scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from methods.drafters.scales.net import Pair, nearest_code, vectors
from methods.training.scales.losses import Made
from methods.training.scales.scenes import Scale


class Training(nn.Module):
    """The pair, with the discriminators where there are any.

    Args:
        pair: what is trained and shipped. critics: train beside it, one a direction. beside: what is read only,
            kept out of the weights: the tokenizer, and LPIPS or None.
    """

    def __init__(self, pair: Pair, critics: nn.ModuleDict, beside: Beside) -> None:
        super().__init__()
        self.pair = pair
        self.critics = critics
        self.beside = beside


@dataclass(frozen=True)
class Beside:
    """Frozen nets."""

    tokenizer: Any
    lpips: Callable[[Tensor, Tensor], Tensor] | None


def make(model: Training, name: str, given: Scale, wanted: Scale) -> Made:
    """The other scale of ``given``; gradients pass the rounding to codes as if it were not there."""
    tokenizer, book = model.beside.tokenizer, model.pair.codebook
    net = model.pair.up if name == "up" else model.pair.down
    with torch.autocast("cpu", torch.bfloat16):
        out = net(vectors(book, given.ids)).float()
    rounded = out + (vectors(book, nearest_code(book, out.detach())) - out).detach()
    with torch.autocast("cpu", torch.bfloat16):
        painted = tokenizer.paint(rounded.permute(0, 2, 3, 1)).float()
    return Made(out, wanted.ids, painted, wanted.pixels)
