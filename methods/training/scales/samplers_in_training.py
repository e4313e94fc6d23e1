"""What is trained for MuLo-SD: both samplers, the frozen nets that the loss needs, and one pass to the other scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from stridebench.harness.train.precision import autocast
from stridebench.methods.drafters.scales.codes import nearest_code, vectors
from stridebench.methods.drafters.scales.net import Pair
from stridebench.methods.training.scales.losses import Resampled
from stridebench.methods.training.scales.scenes import Scale


@dataclass(frozen=True)
class Frozen:
    """Nets that are only read: the tokenizer, and LPIPS or None."""

    tokenizer: Any
    lpips: Callable[[Tensor, Tensor], Tensor] | None


class Training(nn.Module):
    """Both samplers, and the discriminators if there are any.

    Args:
        pair: what is trained and exported.
        critics: the discriminators, one for each direction, which are trained too.
        frozen: kept out of the weights.
    """

    def __init__(self, pair: Pair, critics: nn.ModuleDict, frozen: Frozen) -> None:
        super().__init__()
        self.pair = pair
        self.critics = critics
        self.frozen = frozen


def resample(model: Training, direction: str, source: Scale, target: Scale) -> Resampled:
    """``source`` at the other scale. The gradient passes through the rounding to codes unchanged."""
    tokenizer, book = model.frozen.tokenizer, model.pair.codebook
    net = model.pair.up if direction == "up" else model.pair.down
    with autocast():
        out = net(vectors(book, source.ids)).float()
    rounded = out + (vectors(book, nearest_code(book, out.detach())) - out).detach()
    with autocast():
        painted = tokenizer.paint(rounded.permute(0, 2, 3, 1)).float()
    return Resampled(out, target.ids, painted, target.pixels)
