"""Neighbours of a code in a codebook, and the probability mass of a neighbourhood.

Symbols: C width of a code, x drafted codes, p the target's distributions over the codes, delta the largest mass that
neighbours add.
Source: LANTERN (Jang et al. 2024, arXiv:2410.03355), relaxed acceptance; MuLo-SD, Algorithm 1.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from stridebench.harness.errors import ContractError, UsageError

CHUNK = 2**24
"""Distances in memory at a time."""


@torch.no_grad()
def nearest(codebook: Float[Tensor, "V C"], k: int) -> Int[Tensor, "V J"]:
    """Return each code, then its k nearest by Euclidean distance, equally distant ones by id.

    Args:
        codebook: the vector of each id; of a larger vocabulary, the rows of the picture ids alone.
        k: neighbours of a code. A codebook of no more than k codes gives all of them.

    Returns:
        Ids; J = min(k, V - 1) + 1, and column 0 is the code itself.

    Raises:
        UsageError: k is negative.
        ContractError: the codebook is empty or not finite.
    """
    if k < 0:
        raise UsageError(f"k is {k}; it counts neighbours of a code, so give 0 or more")
    if codebook.numel() == 0 or not bool(codebook.isfinite().all()):
        raise ContractError(f"the codebook of shape {list(codebook.shape)} is empty or not finite; pass its vectors")
    codes = len(codebook)
    rows = []
    for ids in torch.split(torch.arange(codes, device=codebook.device), max(1, CHUNK // codes)):
        # By differences: products of matrices round equal distances apart.
        distance = torch.cdist(codebook[ids], codebook, compute_mode="donot_use_mm_for_euclid_dist")
        distance[torch.arange(len(ids)), ids] = -1.0
        rows.append(_smallest(distance, min(k + 1, codes)))
    return torch.cat(rows)


cached_nearest = lru_cache(maxsize=4)(nearest)
"""`nearest`, computed once for a codebook."""


def _smallest(values: Float[Tensor, "n V"], count: int) -> Int[Tensor, "n count"]:
    """Return the columns of the smallest values, in order of value and then of column; `topk` orders equals anyhow."""
    limit = values.topk(count, largest=False).values.amax(1, keepdim=True)
    below, equal = values < limit, values == limit
    chosen = below | (equal & (equal.cumsum(1) <= count - below.sum(1, keepdim=True)))
    columns = chosen.nonzero()[:, 1].view(len(values), count)
    return columns.gather(1, values.gather(1, columns).argsort(stable=True))


def cluster_mass(
    p: Float[Tensor, "L V"], x: Int[Tensor, " L"], near: Int[Tensor, "codes J"], delta: float, k: int
) -> Float[Tensor, " L"]:
    """Return p(x) and the mass of as many of its nearest neighbours as have delta or less together.

    Args:
        p: row i is the distribution that code x[i] is judged by.
        x: the codes judged.
        near: of `nearest`, for the same codebook.
        delta: largest mass of the neighbours, x left out.
        k: most neighbours; if the codebook has no more than k codes, all of them count.

    Raises:
        UsageError: delta or k is negative.
        ContractError: ``near`` is of another codebook, or holds fewer than k.

    Source: LANTERN (Jang et al. 2024, arXiv:2410.03355), relaxed acceptance with its bound delta.
    """
    if delta < 0 or k < 0:
        raise UsageError(f"delta is {delta:g} and k is {k}; give a mass and a number of neighbours, 0 or more")
    codes, columns = near.shape
    reach = min(k, codes - 1) + 1
    if p.shape[-1] != codes or columns < reach:
        raise ContractError(
            f"the distributions cover {p.shape[-1]} codes, and k is {k}; the table has {codes} codes with "
            f"{columns - 1} neighbours each. Make it of the same codebook with nearest(codebook, {k})"
        )
    return aggregate(p, x, near[x, 1:reach], torch.full_like(p[:, 0], delta)).mass


class Aggregated(NamedTuple):
    """The probability of each token with that of its neighbours, and how many of these count."""

    mass: Float[Tensor, " L"]
    neighbours: Int[Tensor, " L"]


def aggregate(
    p: Float[Tensor, "L V"], x: Int[Tensor, " L"], near: Int[Tensor, "L k"], bound: Float[Tensor, " L"]
) -> Aggregated:
    """Return p(x) and the mass of as many of the nearest neighbours as have no more than a bound together.

    Args:
        near: of each x, by distance.
        bound: of each x; below 0 no neighbour counts.
    """
    total = p.gather(1, near).double().cumsum(1)
    within = total <= bound[:, None]
    most = functional.pad(total.where(within, 0.0), (1, 0)).amax(1)
    own = p.gather(1, x[:, None])[:, 0]
    return Aggregated(own + most.to(p.dtype), torch.where(most > 0, within.sum(1), 0))


def dilate(mask: Bool[Tensor, "h w"], radius: int) -> Bool[Tensor, "h w"]:
    """Mark cells with a marked one at most ``radius`` rows and columns away, inside the grid.

    Raises:
        UsageError: the radius is negative.

    Source: MuLo-SD, the neighbourhood of radius l.
    """
    if radius < 0:
        raise UsageError(f"the radius is {radius}; it counts cells, so give 0 or more")
    return functional.max_pool2d(mask[None, None].float(), 2 * radius + 1, stride=1, padding=radius)[0, 0] > 0


def neighbour_count(k: int, codes: int) -> int:
    """Return k, or MuLo-SD's 1000 of 16,384 codes scaled to ``codes`` if k is 0; never more than the other codes."""
    return min(k or max(1, round(codes * 1000 / 16384)), codes - 1)


def codes_of(ids: Int[Tensor, " I"], tokens: Int[Tensor, "*grid"], vocabulary: int) -> Int[Tensor, "*grid"]:
    """Return the inverse of ``ids[codes]``; 0 for an id that is not a code."""
    table = ids.new_zeros(vocabulary)
    table[ids] = torch.arange(len(ids), device=ids.device)
    return table[tokens]
