"""Heads in training, what stands beside them, and the controls that they are measured against.

Symbols: K ids proposed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from harness.train.teacher import Passage
from methods.drafters.heads.net import Heads
from methods.training.heads.examples import Examples


class Training(nn.Module):
    """Heads, and what they are trained on.

    Attributes:
        column: of each id among those proposed, -1 where it is not; the last entry is that of no token.
        by_counts: hits of n-grams on the rows of ``check_on``; None: there is no such control.
    """

    def __init__(
        self,
        heads: Heads,
        vocabulary: int,
        train_on: Examples,
        check_on: Examples,
        by_counts: Bool[Tensor, "N D three"] | None = None,
    ) -> None:
        super().__init__()
        self.by_counts = by_counts
        self.heads, self.train_on, self.check_on = heads, train_on, check_on
        self.column = torch.full((vocabulary + 1,), -1)
        self.column[heads.ids] = torch.arange(len(heads.ids))

    @torch.no_grad()
    def control(self, shuffled: bool = False) -> Heads:
        """Heads of the same form: untrained, or of the trained weights in another order."""
        ids = self.heads.ids if self.heads.config.kept else None
        unembed = self.heads.shared.new_zeros(len(self.column) - 1, self.heads.config.width)
        made = Heads(self.heads.config, unembed.index_copy(0, self.heads.ids, self.heads.shared), ids)
        random = np.random.default_rng(0)
        for mine, theirs in zip(made.parameters(), self.heads.parameters(), strict=True):
            if shuffled:
                mine.copy_(theirs.flatten()[torch.from_numpy(random.permutation(theirs.numel()))].view_as(theirs))
        return made


def frequent(passages: Sequence[Passage], count: int) -> Int[Tensor, " K"]:
    """The ids that passages have most often, in order of their number; fewer where they have fewer."""
    ids, times = np.unique([token for passage in passages for token in passage.tokens], return_counts=True)
    kept = ids[np.argsort(-times, kind="stable")[:count]]
    return torch.from_numpy(np.sort(kept))
