"""From logits to the distribution that is sampled: temperature, top-k, top-p, and their order.

Every verifier uses the same `warp` for acceptance, residual and bonus, and drafters use it too.
Ties at a cut are all kept, so that the distribution depends on the logits' values and never on a sort's order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from harness.errors import UsageError

SMALL = 4096
"""Vocabularies below it are sorted: that is cheaper than the sums."""
TOP = 0x3F80
"""The upper 16 bits of 1.0 in fp32, the largest probability."""


@dataclass(frozen=True)
class Sampling:
    """How logits are warped. T = 0 is greedy: a point mass on the argmax, ties to the lowest id.

    Args:
        temperature: T >= 0.
        top_k: 0 keeps all.
        top_p: in (0, 1]; 1 keeps all.
        order: temperature_first divides by T, then filters (the usual order); filter_first filters the
            unscaled logits, then divides (BPT's).
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    order: Literal["temperature_first", "filter_first"] = "temperature_first"

    def __post_init__(self) -> None:
        if not self.temperature >= 0 or self.top_k < 0 or not 0 < self.top_p <= 1:
            raise UsageError(
                f"sampling needs temperature >= 0, top_k >= 0 and 0 < top_p <= 1; found temperature "
                f"{self.temperature:g}, top_k {self.top_k}, top_p {self.top_p:g}"
            )
        if self.order not in ("temperature_first", "filter_first"):
            raise UsageError(f"sampling order is {self.order!r}; use temperature_first or filter_first")


def warp(logits: Float[Tensor, "N V"], sampling: Sampling) -> Float[Tensor, "N V"]:
    """The distribution of each row, summing to one, in fp32 (fp64 for fp64 logits)."""
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    if sampling.temperature == 0:
        best = logits.max(-1, keepdim=True).indices
        return torch.zeros_like(logits, dtype=wide).scatter_(1, best, 1.0)
    z = logits.to(wide)
    first = sampling.order == "temperature_first"
    if first and sampling.temperature != 1:
        z = z / sampling.temperature
    top = z.topk(sampling.top_k) if 0 < sampling.top_k < z.shape[-1] else None
    if top is not None:
        z = z.masked_fill(z < top.values[:, -1:], -torch.inf)
    if sampling.top_p < 1:
        p = z.softmax(-1)
        floor = nucleus_floor(p, sampling.top_p) if top is None else _last(p.gather(1, top.indices), sampling.top_p)
        z = z.masked_fill(p < floor, -torch.inf)
    return (z if first else z / sampling.temperature).softmax(-1)


def _descending(p: Float[Tensor, "N V"]) -> Float[Tensor, "N V"]:
    """Rows sorted; on a CPU by numpy, four times as fast for some hundred tokens."""
    if p.device.type != "cpu":
        return p.sort(descending=True).values
    return torch.from_numpy(np.sort(p.numpy(), axis=-1)).flip(-1)


def _last(ordered: Float[Tensor, "N K"], top_p: float) -> Float[Tensor, "N 1"]:
    """The first of the descending probabilities with which their sum is ``top_p``; the least where none is.

    Ties of the least one that were cut off would be it.
    """
    last = (ordered.cumsum(-1) < top_p).sum(-1, keepdim=True)
    return ordered.gather(1, last.clamp_max(ordered.shape[-1] - 1))


def nucleus_floor(p: Float[Tensor, "N V"], top_p: float) -> Float[Tensor, "N 1"]:
    """The probability of the last token that the smallest set of mass ``top_p`` needs, per row.

    On a CPU in fp32 a large row is not sorted, which would cost more than a small model's forward: the bits of positive
    floats are ordered as the floats are, so sums by their upper 16 bits tell which few tokens to sort.
    """
    if p.dtype != torch.float32 or p.device.type != "cpu" or p.shape[-1] < SMALL:
        return _last(_descending(p), top_p)
    high = p.view(torch.int32) >> 16
    buckets = p.new_zeros(p.shape[0], TOP + 1, dtype=torch.float64)
    above = buckets.scatter_add_(1, high.long(), p.double()).flip(1).cumsum(1)  # column k: mass of bucket TOP - k up
    column = (above < top_p).sum(1, keepdim=True).clamp_max(TOP)
    mine = high == TOP - column
    floors: list[Tensor] = []
    for row, inside, k in zip(p, mine, column[:, 0].tolist(), strict=True):
        ordered = row[inside].sort(descending=True).values
        before = float(above[len(floors), k - 1]) if k else 0.0
        place = int((ordered.cumsum(0, dtype=torch.float64) + before < top_p).sum())
        floors.append(ordered[min(place, len(ordered) - 1)] if len(ordered) else row.new_zeros(()))
    return torch.stack(floors)[:, None]
