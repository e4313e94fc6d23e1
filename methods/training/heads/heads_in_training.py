"""Heads in training: their examples, their losses, and the controls that they are measured against.

Symbols: N rows, D heads, K proposed ids, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.train.passages import Passages
from stridebench.harness.train.teacher import Passage
from stridebench.methods.drafters.heads.net import Heads
from stridebench.methods.training.heads.examples import Examples, examples, ngram_hits

FADING = 0.8
"""The loss of head d has this weight to the power of d + 1."""


class Training(nn.Module):
    """Heads, and what they are trained on.

    Attributes:
        heads: what is trained.
        train_on: examples of the loss.
        check_on: examples of the figures.
        ngram_hits: hits of n-grams on ``check_on``; None: there is no such control.
        column: for each id of the vocabulary its place among the proposed ids; -1 where it is not proposed. The last
            entry, -1, is that of no token.
    """

    def __init__(
        self,
        heads: Heads,
        vocabulary: int,
        train_on: Examples,
        check_on: Examples,
        ngram_hits: Bool[Tensor, "N D three"] | None = None,
    ) -> None:
        super().__init__()
        self.ngram_hits = ngram_hits
        self.heads, self.train_on, self.check_on = heads, train_on, check_on
        self.column = torch.full((vocabulary + 1,), -1)
        self.column[heads.ids.cpu()] = torch.arange(len(heads.ids))

    @classmethod
    def on(cls, heads: Heads, passages: Passages) -> Training:
        """Heads with examples of both sides, and the hits of n-grams of the training side."""
        teacher, train, development = passages.teacher, passages.train, passages.development
        count = heads.config.heads
        train_on, check_on = (examples(teacher, side, count) for side in (train, development))
        control = ngram_hits(teacher, train, development, count)
        return cls(heads, teacher.capabilities.vocabulary, train_on, check_on, control)

    @torch.no_grad()
    def control(self, shuffled: bool = False) -> Heads:
        """Heads of the same shape: untrained, or with each trained tensor's entries in another order."""
        ids = self.heads.ids if self.heads.config.kept else None
        unembed = self.heads.shared.new_zeros(len(self.column) - 1, self.heads.shared.shape[1])
        control = Heads(self.heads.config, unembed.index_copy(0, self.heads.ids, self.heads.shared), ids)
        control.to(self.heads.shared.device).lift = self.heads.lift
        random = np.random.default_rng(0)
        for weight, trained in zip(control.parameters(), self.heads.parameters(), strict=True):
            if shuffled:
                order = torch.from_numpy(random.permutation(trained.numel()))
                weight.copy_(trained.flatten()[order].view_as(trained))
        return control


def head_losses(logits: Float[Tensor, "D N V"], after: Int[Tensor, "N D"]) -> Tensor:
    """Sum over heads d of ``FADING``^(d + 1) times the mean cross-entropy; heads without a token add nothing."""
    total = torch.zeros(())
    for depth, (head, tokens) in enumerate(zip(logits, after.T, strict=True), 1):
        count = int((tokens >= 0).sum())
        lost = functional.cross_entropy(head, tokens, ignore_index=-1, reduction="sum")
        total = total + FADING**depth * lost / max(1, count)
    return total


def frequent(passages: Sequence[Passage], count: int) -> Int[Tensor, " K"]:
    """The most frequent ids of passages, in ascending order; fewer where the passages have fewer."""
    ids, times = np.unique([token for passage in passages for token in passage.tokens], return_counts=True)
    most = ids[np.argsort(-times, kind="stable")[:count]]
    return torch.from_numpy(np.sort(most))
