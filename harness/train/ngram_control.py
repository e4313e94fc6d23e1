"""Counts of token sequences: the control that a trained drafter must beat."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

MOST = 3
"""Most frequent tokens that are kept for a context."""


@dataclass(frozen=True)
class NGram:
    """Guesses from the last two tokens; from the last one if the two never occurred; else from frequencies alone.

    Args:
        after: for each context of two, one or no tokens the most frequent next ones, at most three, in order.
    """

    after: dict[tuple[int, ...], tuple[int, ...]]

    @classmethod
    def of(cls, batches: Iterable[Int[Tensor, "B N"]], ahead: int = 0) -> NGram:
        """Count rows of tokens. Of equally frequent tokens the one that occurred first goes first.

        Args:
            batches: the rows.
            ahead: number of tokens between the context and the guessed token.
        """
        counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for batch in batches:
            for row in batch.tolist():
                for place in range(len(row) - ahead):
                    for size in range(min(place, 2) + 1):
                        counts[tuple(row[place - size : place])][row[place + ahead]] += 1
        return cls({context: tuple(t for t, _ in count.most_common(MOST)) for context, count in counts.items()})

    def guess(self, tokens: Int[Tensor, "B N"]) -> Int[Tensor, "B N"]:
        """The best guess after each token."""
        return self.guesses(tokens)[:, :, 0]

    def guesses(self, tokens: Int[Tensor, "B N"]) -> Int[Tensor, "B N 3"]:
        """Three guesses after each token, different if enough occurred; guesses of a longer context go first."""
        return torch.tensor(
            [[self._next(row[: place + 1][-2:]) for place in range(len(row))] for row in tokens.tolist()]
        )

    def _next(self, last: list[int]) -> list[int]:
        guesses: dict[int, None] = {}
        for size in range(len(last), -1, -1):
            guesses |= dict.fromkeys(self.after.get(tuple(last[len(last) - size :]), ()))
        best = [*guesses][:MOST] or [0]
        return best + best[-1:] * (MOST - len(best))
