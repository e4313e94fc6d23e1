"""Counts of token sequences: the control that a trained drafter must beat."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True)
class NGram:
    """The most frequent next token after the last two tokens, else after the last one, else of all.

    Args:
        after: by context of two, one and no tokens.
    """

    after: dict[tuple[int, ...], int]

    @classmethod
    def of(cls, batches: Iterable[Int[Tensor, "B N"]]) -> NGram:
        """Counted in rows of tokens; of equally frequent ones the first seen."""
        counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for batch in batches:
            for row in batch.tolist():
                for place, token in enumerate(row):
                    for size in range(min(place, 2) + 1):
                        counts[tuple(row[place - size : place])][token] += 1
        return cls({context: found.most_common(1)[0][0] for context, found in counts.items()})

    def guess(self, tokens: Int[Tensor, "B N"]) -> Int[Tensor, "B N"]:
        """The guess after each token."""
        return torch.tensor(
            [[self._next(row[: place + 1][-2:]) for place in range(len(row))] for row in tokens.tolist()]
        )

    def _next(self, last: list[int]) -> int:
        for size in range(len(last), -1, -1):
            found = self.after.get(tuple(last[len(last) - size :]))
            if found is not None:
                return found
        return 0
