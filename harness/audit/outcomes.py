"""What is known before a token is drawn: outcomes of tokens, and copies and counts of a context; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

GRAM = 2
"""Length of the n-gram whose last continuation in the context is the copy."""
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class TokenOutcomes:
    """The facts known before N tokens are drawn; row n depends only on the tokens before token n.

    Args:
        p: probability of each outcome, [N, A]; a row sums to one, or to zero without a bet.
        sizes: ids of the outcome that may be drawn, [N, A]; 0 if p is 0.
        ids: the id of the outcome, [N, A]; -1 for the other ids together.
        q: the drafter's probability of each outcome, [N, A], or None if it is unknown.
        copies: the outcome that continues the context's last n-gram as before, [N]; -1 if there is none.
        top_p: of the sampling.
        unguided: probability of each outcome if guidance is dropped, [N, A], or None without guidance.
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

    def rows(self, stop: int, start: int = 0) -> TokenOutcomes:
        """Return the rows before ``stop``, from ``start`` on."""
        tables: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        cut: dict[str, Any] = {name: t[start:stop] for name, t in tables.items() if isinstance(t, np.ndarray)}
        return replace(self, **cut)

    def of(self, tokens: IntArray) -> IntArray:
        """Return the outcome that each of N tokens is."""
        match = self.ids == tokens[:, None]
        places: IntArray = np.where(match.any(1), match.argmax(1), self.p.shape[1] - 1)
        return places


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


def copied(context: Sequence[int], start: int) -> list[int]:
    """Return for each place from ``start`` on the id behind the latest earlier n-gram like the one before, or -1."""
    latest: dict[tuple[int, ...], int] = {}
    continuations: list[int] = []
    for place in range(GRAM, len(context) + 1):
        gram = tuple(context[place - GRAM : place])
        if place >= start:
            continuations.append(latest.get(gram, -1))
        if place < len(context):
            latest[gram] = context[place]
    return [-1] * max(0, GRAM - start) + continuations
