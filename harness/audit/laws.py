"""The distributions that tokens claim to be drawn from, and the ids that lie too near to a cut to bet on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from stridebench.harness.audit.outcomes import BoolArray, FloatArray, TokenOutcomes, copied, counted
from stridebench.harness.core.canvas import Canvas, Filled, Read
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.errors import UsageError

MARGINS = {"fp64": 1e-6, "fp32": 1e-3, "fp16": 0.03, "bf16": 0.25}
"""Distance of a logit from a top-k or top-p cut, by type, within which rounding decides whether an id is kept."""
LEADING = 2048
"""Ids of a row that are sorted to find its nucleus; a row whose nucleus is larger is sorted as a whole."""


@dataclass(frozen=True)
class Laws:
    """The distributions that N tokens claim to be drawn from.

    Args:
        probs: row n is the distribution of token n given that no id near a cut was drawn; all zero where every id that
            is not cut off is near a cut.
        near: marks ids near a cut. Nothing is bet when one of them is drawn.
    """

    probs: Float[Tensor, "N V"]
    near: Bool[Tensor, "N V"]


def laws_of(logits: Float[Tensor, "N V"], sampling: Sampling, margin: float) -> Laws:
    """Return the distributions after temperature, top-k, top-p and min-p, in fp64, as `sampling.warp` makes them.

    An id is near a cut where logits that are off by ``margin`` / 2 may move it across. Such logits also move the mass
    that top-p sums: a mass of P by at most 2 m P (1 - P), for scaled logits that are off by m.

    Raises:
        UsageError: T = 0, where nothing is drawn.
    """
    if sampling.temperature == 0:
        raise UsageError("at temperature 0 nothing is drawn, so nothing can be audited; give a temperature above 0")
    z = logits.double()
    first = sampling.order == "temperature_first"
    scale = sampling.temperature if first else 1.0
    z, m = z / scale, margin / scale
    cut = _cut(z, sampling, m)
    kept = (z > cut.outside + m) & torch.isfinite(z)
    near = (z >= cut.inside - m) & torch.isfinite(z) & ~kept
    final = (z if first else z / sampling.temperature).masked_fill(~kept, -torch.inf)
    return Laws(final.softmax(-1).nan_to_num(0.0), near)


class Cut(NamedTuple):
    """The cut-off values of a row, each [N, 1].

    Args:
        inside: the smallest value that is kept, of the most that may be kept.
        outside: the largest value that is cut off, if the fewest are kept; infinite if no id is certain to be kept.
    """

    inside: Float[Tensor, "N 1"]
    outside: Float[Tensor, "N 1"]


def _cut(z: Float[Tensor, "N V"], sampling: Sampling, margin: float) -> Cut:
    inside = outside = z.new_full((len(z), 1), -torch.inf)
    most = fewest = z
    if 0 < sampling.top_k < z.shape[1]:
        ordered = z.topk(sampling.top_k + 1).values
        inside, outside = ordered[:, -2:-1], ordered[:, -1:]
        most = z.masked_fill(z < inside - margin, -torch.inf)
        fewest = z.masked_fill(z <= outside + margin, -torch.inf)
    if sampling.top_p < 1:
        slack = 2 * margin * sampling.top_p * (1 - sampling.top_p)
        inside = torch.maximum(inside, _around(most, min(sampling.top_p + slack, 1.0)).inside)
        outside = torch.maximum(outside, _around(fewest, sampling.top_p - slack).outside)
        outside = torch.where(torch.isfinite(fewest).any(-1, keepdim=True), outside, torch.inf)
    if sampling.min_p:
        least = z.amax(-1, keepdim=True) + math.log(sampling.min_p)
        inside, outside = torch.maximum(inside, least), torch.maximum(outside, least)
    return Cut(inside, outside)


def _around(z: Float[Tensor, "N V"], mass: float) -> Cut:
    """Return the smallest value in the smallest set of ids whose probability is ``mass``, and the largest outside."""
    total = z.logsumexp(-1, keepdim=True)
    ordered = z.topk(min(LEADING, z.shape[1])).values
    if bool(((ordered - total).exp().sum(-1) < mass).any()):
        ordered = z.sort(-1, descending=True).values
    place = ((ordered - total).exp().cumsum(-1) < mass).sum(-1, keepdim=True).clamp_max(ordered.shape[1] - 1)
    ordered = torch.cat([ordered, z.new_full((len(z), 1), -torch.inf)], 1)
    return Cut(ordered.gather(1, place), ordered.gather(1, place + 1))


# A token's distribution over its most probable ids, each an outcome, and one more outcome for all other ids.
# A bet may merge ids into outcomes, because the outcome is a function of the token. It makes an audit of a large
# vocabulary cheap, and loses little, because the merged ids are improbable.


EXPLICIT = 512
"""Ids of a row that are separate outcomes."""


def outcomes_of(
    laws: Laws,
    context: Sequence[int],
    start: int,
    top_p: float,
    q: Tensor | None = None,
    unguided: Tensor | None = None,
    prompt: int | None = None,
    places: BoolArray | None = None,
) -> TokenOutcomes:
    """Return the outcomes of the tokens from ``start`` on.

    Args:
        laws: of N tokens.
        context: prompt and output ids; token n of the laws is ``context[start + n]``.
        start: place of the first token in the context.
        q: the drafter's distributions, [N, V].
        unguided: the target's without its guidance, [N, V].
        prompt: length of the prompt. Default: ``start``.
        places: of `step_places`, [N, L].
    """
    count = min(EXPLICIT, laws.probs.shape[1])
    p, ids = laws.probs.topk(count)
    kept = (laws.probs > 0).sum(-1, keepdim=True)
    sizes = (p > 0).double()
    rest = laws.probs.sum(-1, keepdim=True) - p.sum(-1, keepdim=True)
    others = kept - sizes.sum(-1, keepdim=True)
    rest = rest.clamp_min(0).where(others > 0, 0.0)
    host_ids = np.pad(ids.cpu().numpy(), ((0, 0), (0, 1)), constant_values=-1)
    copies = np.array(copied(context, start)[: len(p)], dtype=np.int64)
    match = (host_ids == copies[:, None]) & (copies[:, None] >= 0)
    return TokenOutcomes(
        p=_host(p, rest),
        sizes=_host(sizes, others),
        ids=host_ids,
        copies=np.where(match.any(1), match.argmax(1), -1),
        q=None if q is None else _gathered(q, ids),
        top_p=top_p,
        unguided=None if unguided is None else _gathered(unguided, ids),
        stood=counted(context, 0, start, host_ids),
        stood_in_output=counted(context, start if prompt is None else prompt, start, host_ids),
        places=places,
    )


def _host(explicit: Tensor, rest: Tensor) -> FloatArray:
    joint: FloatArray = torch.cat([explicit.double(), rest.double()], 1).cpu().numpy()
    return joint


def _gathered(q: Float[Tensor, "N V"], ids: Tensor) -> FloatArray:
    explicit = q.double().gather(1, ids.to(q.device))
    return _host(explicit, (1 - explicit.sum(1, keepdim=True)).clamp_min(0))


# The distributions that a canvas was filled from: its passes are made again, in their order, with an empty cache.
# A position may be filled before those ahead of it in raster order. So its token is bet on in the order of filling,
# against the distribution known when it was filled. Symbols: N positions, V vocabulary.


class Filling(NamedTuple):
    """The filled positions for which a pass gave a distribution, in the order of filling.

    Attributes:
        tokens: the id at each of them, N.
        logits: of the last pass over the position before it, made before it was filled; None where N is 0.
        unseen: positions that were filled without such a pass, and at which more than one token is allowed.
    """

    tokens: list[int]
    logits: Float[Tensor, "N V"] | None
    unseen: int = 0


def filling_of(canvas: Canvas, history: Sequence[Read | Filled]) -> Filling:
    """Make the passes of a decode again.

    Args:
        canvas: of the same prompt, empty.
        history: of the canvas that was decoded.
    """
    latest: dict[int, Float[Tensor, " V"]] = {}
    tokens: list[int] = []
    grid, unseen = canvas.capabilities.grid, 0
    rows: list[Float[Tensor, " V"]] = []
    for event in history:
        if isinstance(event, Read):
            logits = canvas.read(event.tokens, event.positions, event.sees, event.rows, event.given)
            behind = [position + 1 for position in event.positions[len(event.positions) - len(logits) :]]
            latest |= dict(zip(behind, logits, strict=True))
        else:
            known = [position for position in event.tokens if position in latest]
            tokens += [event.tokens[position] for position in known]
            rows += [latest[position] for position in known]
            others = [position for position in event.tokens if position not in latest]
            unseen += sum(grid is None or grid.forced(position) is None for position in others)
    return Filling(tokens, torch.stack(rows) if rows else None, unseen)
