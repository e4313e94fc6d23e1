"""A token's distribution over its most probable ids, each an outcome, and one more outcome for all other ids.

A bet may merge ids into outcomes, because the outcome is a function of the token. It makes an audit of a large
vocabulary cheap, and loses little: what is merged is improbable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from stridebench.harness.audit.laws import Laws

EXPLICIT = 512
"""Ids of a row that are outcomes of their own."""
GRAM = 2
"""Length of the n-gram whose last continuation in the context is the copy."""

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Outcomes:
    """What is known before N tokens are drawn; row n depends on the tokens before token n alone.

    Args:
        p: probability of each outcome, [N, A]; a row sums to one, or to zero where nothing is bet.
        sizes: ids of the outcome that may be drawn, [N, A]; 0 where p is 0.
        ids: the id of the outcome, [N, A]; -1: the other ids together.
        q: the drafter's probability of each outcome, [N, A]; None: no drafter's distribution is known.
        copies: the outcome that continues the context's last n-gram as before, [N]; -1: there is none.
        top_p: of the sampling.
        unguided: probability of each outcome where guidance is dropped, [N, A]; None: there is no guidance.
        stood: how often the outcome's id stands in the context so far, [N, A]; 0 for the other ids together.
        stood_in_output: the same of the output alone, without the prompt.
    """

    p: FloatArray
    sizes: FloatArray
    ids: IntArray
    copies: IntArray
    q: FloatArray | None = None
    top_p: float = 1.0
    unguided: FloatArray | None = None
    stood: FloatArray | None = None
    stood_in_output: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.p)

    def rows(self, stop: int, start: int = 0) -> Outcomes:
        """Return the rows before ``stop``, from ``start`` on."""
        tables: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        cut: dict[str, Any] = {name: t[start:stop] for name, t in tables.items() if isinstance(t, np.ndarray)}
        return replace(self, **cut)

    def of(self, tokens: IntArray) -> IntArray:
        """The outcome that each of N tokens is."""
        match = self.ids == tokens[:, None]
        places: IntArray = np.where(match.any(1), match.argmax(1), self.p.shape[1] - 1)
        return places


def outcomes_of(
    laws: Laws,
    context: Sequence[int],
    start: int,
    top_p: float,
    q: Tensor | None = None,
    unguided: Tensor | None = None,
    prompt: int | None = None,
) -> Outcomes:
    """The outcomes of the tokens from ``start`` on.

    Args:
        laws: of N tokens.
        context: prompt and output ids; token n of the laws is ``context[start + n]``.
        start: place of the first token in the context.
        q: the drafter's distributions, [N, V].
        unguided: the target's without its guidance, [N, V].
        prompt: length of the prompt. Default: ``start``.
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
    return Outcomes(
        p=_host(p, rest),
        sizes=_host(sizes, others),
        ids=host_ids,
        copies=np.where(match.any(1), match.argmax(1), -1),
        q=None if q is None else _gathered(q, ids),
        top_p=top_p,
        unguided=None if unguided is None else _gathered(unguided, ids),
        stood=counted(context, 0, start, host_ids),
        stood_in_output=counted(context, start if prompt is None else prompt, start, host_ids),
    )


def counted(context: Sequence[int], begin: int, start: int, ids: IntArray) -> FloatArray:
    """Count how often each id of row n stands in ``context[begin : start + n]``, [N, A]."""
    seen, inverse = np.unique(np.asarray(context, dtype=np.int64), return_inverse=True)
    places = np.searchsorted(seen, ids).clip(max=len(seen) - 1)
    known = seen[places] == ids
    counts = np.bincount(inverse[begin:start], minlength=len(seen)).astype(np.float64)
    rows: FloatArray = np.zeros(ids.shape)
    for row, place in enumerate(places):
        rows[row] = counts[place]
        counts[inverse[start + row : start + row + 1]] += 1
    rows *= known
    return rows


def _host(explicit: Tensor, rest: Tensor) -> FloatArray:
    joint: FloatArray = torch.cat([explicit.double(), rest.double()], 1).cpu().numpy()
    return joint


def _gathered(q: Float[Tensor, "N V"], ids: Tensor) -> FloatArray:
    explicit = q.double().gather(1, ids.to(q.device))
    return _host(explicit, (1 - explicit.sum(1, keepdim=True)).clamp_min(0))


def copied(context: Sequence[int], start: int) -> list[int]:
    """For each place from ``start`` on, the id behind the latest earlier n-gram like the one before it; -1: none."""
    latest: dict[tuple[int, ...], int] = {}
    continuations: list[int] = []
    for place in range(GRAM, len(context) + 1):
        gram = tuple(context[place - GRAM : place])
        if place >= start:
            continuations.append(latest.get(gram, -1))
        if place < len(context):
            latest[gram] = context[place]
    return [-1] * max(0, GRAM - start) + continuations
