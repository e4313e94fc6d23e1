"""Counts of token sequences: the control that a trained drafter must beat."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

MOST = 3
"""Tokens that are known of a context."""


@dataclass(frozen=True)
class NGram:
    """The most frequent tokens after the last two tokens, else after the last one, else of all.

    Args:
        after: by context of two, one and no tokens; up to three, the most frequent first.
    """

    after: dict[tuple[int, ...], tuple[int, ...]]

    @classmethod
    def of(cls, batches: Iterable[Int[Tensor, "B N"]], ahead: int = 0) -> NGram:
        """Counted in rows of tokens; of equally frequent ones the first seen goes first.

        Args:
            ahead: tokens between the context and the one that is guessed.
        """
        counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for batch in batches:
            for row in batch.tolist():
                for place in range(len(row) - ahead):
                    for size in range(min(place, 2) + 1):
                        counts[tuple(row[place - size : place])][row[place + ahead]] += 1
        return cls({context: tuple(t for t, _ in found.most_common(MOST)) for context, found in counts.items()})

    def guess(self, tokens: Int[Tensor, "B N"]) -> Int[Tensor, "B N"]:
        """The guess after each token."""
        return self.guesses(tokens)[:, :, 0]

    def guesses(self, tokens: Int[Tensor, "B N"]) -> Int[Tensor, "B N 3"]:
        """Three after each token, all different where so many were seen; a longer context's go first."""
        return torch.tensor(
            [[self._next(row[: place + 1][-2:]) for place in range(len(row))] for row in tokens.tolist()]
        )

    def _next(self, last: list[int]) -> list[int]:
        found: dict[int, None] = {}
        for size in range(len(last), -1, -1):
            found |= dict.fromkeys(self.after.get(tuple(last[len(last) - size :]), ()))
        known = [*found][:MOST] or [0]
        return known + known[-1:] * (MOST - len(known))
