"""From logits to the distribution that is sampled: temperature, top-k, top-p, min-p, and their order.

Every verifier uses the same `warp` for acceptance, residual and bonus, and drafters use it too.
Ties at a cut are all kept, so that the distribution depends on the logits' values and never on a sort's order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from stridebench.harness.core.task import Sampling as Sampling  # planning reads it without torch

SMALL = 4096
"""Vocabularies below it are sorted: that is cheaper than to look for likely tokens."""
ON_HOST = (torch.bfloat16, torch.float32, torch.float64)
"""Types of logits whose largest one numpy finds."""
LIKELY = (1e-4, 1e-5, 1e-7, 0.0)
"""Probabilities from which on tokens are sorted: the next one where those before do not hold the mass."""


def warp(logits: Float[Tensor, "N V"], sampling: Sampling) -> Float[Tensor, "N V"]:
    """Return the distribution of each row, summing to one, in fp32 (fp64 for fp64 logits)."""
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    if sampling.temperature == 0:
        return torch.zeros_like(logits, dtype=wide).scatter_(1, _best(logits), 1.0)
    z = logits.to(wide)
    first = sampling.order == "temperature_first"
    if first and sampling.temperature != 1:
        z = z / sampling.temperature
    top = z.topk(sampling.top_k) if 0 < sampling.top_k < z.shape[-1] else None
    if top is not None:
        z = z.masked_fill(z < top.values[:, -1:], -torch.inf)
    if sampling.top_p < 1 and top is None and not sampling.min_p and _is_wide(z):
        return _nucleus(z, sampling)
    least = z.amax(-1, keepdim=True) + math.log(sampling.min_p) if sampling.min_p else None
    if sampling.top_p < 1:
        p = z.softmax(-1)
        floor = nucleus_floor(p, sampling.top_p) if top is None else _last(p.gather(1, top.indices), sampling.top_p)
        z = z.masked_fill(p < floor, -torch.inf)
    z = z if least is None else z.masked_fill(z < least, -torch.inf)
    return (z if first else z / sampling.temperature).softmax(-1)


def _best(logits: Float[Tensor, "N V"]) -> Int[Tensor, "N 1"]:
    """Return the lowest id of the largest logit. On a CPU numpy looks for it, which compares numbers in vectors.

    A row with NaN has any id: the loop refuses it.
    """
    host = logits.detach()
    if host.device.type != "cpu" or host.dtype not in ON_HOST or not host.shape[1]:
        return logits.max(-1, keepdim=True).indices
    if host.dtype == torch.bfloat16:
        bits = host.view(torch.int16).numpy()  # positive numbers are in the order of their bits
        ids = bits.argmax(-1, keepdims=True)
        if all(row[best] > 0 for row, best in zip(bits, ids[:, 0], strict=True)):
            return torch.from_numpy(ids)
        host = host.float()
    return torch.from_numpy(host.numpy().argmax(-1, keepdims=True))


def _is_wide(z: Float[Tensor, "N V"]) -> bool:
    """Whether rows are cut on the host without a sort."""
    return z.dtype == torch.float32 and z.device.type == "cpu" and z.shape[-1] >= SMALL


def _nucleus(z: Float[Tensor, "N V"], sampling: Sampling) -> Float[Tensor, "N V"]:
    """Compute `warp` of wide rows with top-p alone: the last softmax is over the tokens that are kept."""
    p = z.softmax(-1).numpy()
    places = _likely(p, sampling.top_p)
    if places is None:
        rows = (np.flatnonzero(row >= _floor(row, sampling.top_p)) + i * p.shape[1] for i, row in enumerate(p))
        places = np.concatenate([np.zeros(0, np.int64), *rows])
    row, kept = places // p.shape[1], torch.zeros_like(z)
    late = z.numpy().ravel()[places]
    late = late if sampling.order == "temperature_first" else late / sampling.temperature
    begins = np.searchsorted(row, np.arange(len(p)))  # every row keeps its largest
    weights = np.exp(late - np.maximum.reduceat(late, begins)[row], dtype=np.float64)
    kept.numpy().ravel()[places] = weights / np.add.reduceat(weights, begins)[row]
    return kept


def _likely(p: NDArray[np.float32], top_p: float) -> NDArray[np.int64] | None:
    """Return the places of all rows' nuclei in the flat ``p``.

    None if likely tokens alone do not hold ``top_p`` in some row.
    """
    places = np.flatnonzero(p >= LIKELY[0])
    row = places // p.shape[1]
    counts = np.bincount(row, minlength=len(p))
    if not counts.all():
        return None
    values = p.ravel()[places]
    ordered = np.zeros((len(p), counts.max()), np.float32)
    ordered[row, np.arange(len(row)) - (counts.cumsum() - counts)[row]] = -values
    ordered.sort(1)  # negative, so that the largest come first and padding last
    sums = np.cumsum(-ordered, axis=1, dtype=np.float64)
    if not (sums[:, -1] >= top_p).all():
        return None
    floors = -ordered[np.arange(len(p)), (sums < top_p).sum(1)]
    nuclei: NDArray[np.int64] = places[values >= floors[row]]
    return nuclei


def _floor(row: NDArray[np.float32], top_p: float) -> np.float32:
    """Return `nucleus_floor` of one row: only likely tokens are sorted if they hold enough."""
    for least in LIKELY:
        ordered = np.sort(row[np.flatnonzero(row >= least)])[::-1]
        sums = np.cumsum(ordered, dtype=np.float64)
        if len(sums) and sums[-1] >= top_p:
            return np.float32(ordered[np.searchsorted(sums, top_p)])
    return np.float32(row.min())


def _sorted_floors(p: NDArray[Any], top_p: float) -> NDArray[Any]:
    """Compute `nucleus_floor` of short rows, which numpy sorts four times as fast as torch."""
    ordered = np.sort(p, axis=1)[:, ::-1]
    last = (np.cumsum(ordered, axis=1, dtype=np.float64) < top_p).sum(1).clip(max=p.shape[1] - 1)
    floors: NDArray[Any] = ordered[np.arange(len(p)), last]
    return floors


def _last(ordered: Float[Tensor, "N K"], top_p: float) -> Float[Tensor, "N 1"]:
    """Return the first of the descending probabilities with which their sum reaches ``top_p``, or the least.

    A tie of the least one that was cut off has the same probability.
    """
    last = (ordered.cumsum(-1) < top_p).sum(-1, keepdim=True)
    return ordered.gather(1, last.clamp_max(ordered.shape[-1] - 1))


def nucleus_floor(p: Float[Tensor, "N V"], top_p: float) -> Float[Tensor, "N 1"]:
    """Return the probability of the last token that the smallest set of mass ``top_p`` needs, per row.

    On a CPU in fp32 a large row is not sorted, which would cost more than a small model's forward: a few likely tokens
    hold the mass nearly always, and only those are sorted.
    """
    if p.device.type != "cpu":
        return _last(p.sort(descending=True).values, top_p)
    if not _is_wide(p):
        return torch.from_numpy(_sorted_floors(p.numpy(), top_p))[:, None]
    return torch.from_numpy(np.array([_floor(row, top_p) for row in p.numpy()], dtype=np.float32))[:, None]
