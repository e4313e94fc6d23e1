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
BoolArray = NDArray[np.bool_]
BEHIND = ("the first token behind accepted drafts", "the first token behind a rejected draft")
POSITIONS = {
    "token 1 of a step": (0, 1),
    "token 2 of a step": (1, 2),
    "token 3 of a step": (2, 3),
    "token 4 of a step": (3, 4),
    "tokens 5 to 8 of a step": (4, 8),
    "tokens 9 to 16 of a step": (8, 16),
}
"""Places of a step at which its tokens are bet on once more: the first offset from its begin, and the one behind."""
PLACES = (*POSITIONS, *BEHIND)


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
        unpenalised: the same if the penalties of the request are dropped, or None without penalties.
        stood: how often the outcome's id stands in the context so far, [N, A]; 0 for the other ids together.
        stood_in_output: the same of the output alone, without the prompt.
        places: whether the token is at each of `PLACES`, [N, L], or None if it is unknown which tokens a step emitted.
    """

    p: FloatArray
    sizes: FloatArray
    ids: IntArray
    copies: IntArray
    q: FloatArray | None = None
    top_p: float = 1.0
    unguided: FloatArray | None = None
    unpenalised: FloatArray | None = None
    stood: FloatArray | None = None
    stood_in_output: FloatArray | None = None
    places: BoolArray | None = None

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


def step_places(emitted: Sequence[int], tokens: int) -> BoolArray:
    """Return which tokens of an output are at each of `PLACES`, [N, L].

    A place may depend on what is known before its token, and whether a step goes on is not: block verification decides
    it with the tokens that follow. So a place is counted from the begin of a step, wherever that step ends, and the
    next begin that counts is the first behind it. Given the begins of steps up to a begin, an exact sampler's tokens
    from there on are distributed as the target's.

    Args:
        emitted: tokens of each step, in order; the last step may reach beyond the output.
    """
    begins = np.cumsum([0, *emitted[:-1]])
    marks = np.zeros((tokens, len(PLACES)), dtype=np.bool_)
    for column, (first, stop) in enumerate(POSITIONS.values()):
        free = 0
        for begin in begins:
            if begin >= free:
                marks[begin + first : begin + stop, column] = True
                free = begin + stop
    for begin, before in zip(begins[1:], emitted, strict=False):
        marks[begin : begin + 1, PLACES.index(BEHIND[before == 1])] = True
    return marks


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
