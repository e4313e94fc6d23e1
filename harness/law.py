"""From logits to the law that is sampled: temperature, top-k, top-p, and their order.

Every verifier uses the same `warp` for acceptance, residual and bonus, and drafters use it too.
Ties at a cut are all kept, so that the law depends on the logits' values and never on a sort's order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from harness.errors import UsageError

HEAD = 1024
"""Tokens looked at before top-p falls back to a full sort: on a CPU that sort costs more than a forward."""


@dataclass(frozen=True)
class Sampling:
    """How logits are warped. T = 0 is greedy: a point mass on the argmax, ties to the lowest id.

    Args:
        temperature: T >= 0. top_k: 0 keeps all. top_p: in (0, 1]; 1 keeps all.
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
    """The law of each row, summing to one, in fp32 (fp64 for fp64 logits)."""
    z = logits if logits.dtype == torch.float64 else logits.float()
    if sampling.temperature == 0:
        return torch.zeros_like(z).scatter_(1, z.argmax(-1, keepdim=True), 1.0)
    first = sampling.order == "temperature_first"
    if first and sampling.temperature != 1:
        z = z / sampling.temperature
    if 0 < sampling.top_k < z.shape[-1]:
        z = z.masked_fill(z < z.topk(sampling.top_k).values[:, -1:], -torch.inf)
    if sampling.top_p < 1:
        p = z.softmax(-1)
        z = z.masked_fill(p < nucleus_floor(p, sampling.top_p), -torch.inf)
    return (z if first else z / sampling.temperature).softmax(-1)


def nucleus_floor(p: Float[Tensor, "N V"], top_p: float) -> Float[Tensor, "N 1"]:
    """The probability of the last token that the smallest set of mass ``top_p`` needs, per row.

    The most probable `HEAD` tokens decide where they hold that mass; other rows are sorted whole.
    On an accelerator all rows are, so that nothing is read back.
    """
    head = min(HEAD, p.shape[-1]) if p.device.type == "cpu" else p.shape[-1]
    floor, covered = _floor(p.topk(head).values, top_p)
    if head < p.shape[-1] and not bool(covered.all()):
        rest = ~covered
        floor[rest] = _floor(p[rest].sort(descending=True).values, top_p)[0]
    return floor[:, None]


def _floor(ordered: Float[Tensor, "N H"], top_p: float) -> tuple[Float[Tensor, " N"], Bool[Tensor, " N"]]:
    before = (ordered.cumsum(-1) < top_p).sum(-1)
    last = before.clamp_max(ordered.shape[-1] - 1)
    return ordered.gather(1, last[:, None])[:, 0], before < ordered.shape[-1]
