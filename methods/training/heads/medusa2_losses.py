"""The losses of Medusa-2: of the backbone that learns, and of the heads on its rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from stridebench.harness.train.finetuned_text import FinetunedText
from stridebench.harness.train.passages import Passages
from stridebench.harness.train.teacher import Teacher
from stridebench.methods.training.heads.heads_in_training import Training, head_losses
from stridebench.methods.training.heads.xspecmesh_losses import divergence


class JointLosses(NamedTuple):
    """KL(base || tuned) a token, and the heads' weighted cross-entropy."""

    backbone: Tensor
    heads: Tensor


class Joint(nn.Module):
    """Heads and a backbone in training.

    Attributes:
        heads: with their examples.
        tuned: the backbone that learns.
        passages: with the backbone as it was.
        chosen: training passages that have rows.
        merged: the backbone as it was exported.
    """

    def __init__(self, heads: Training, tuned: FinetunedText, passages: Passages) -> None:
        super().__init__()
        self.heads, self.tuned, self.passages = heads, tuned, passages
        self.chosen = sorted(set(heads.train_on.passage.tolist()))
        self.merged: Teacher | None = None

    def losses(self, number: int) -> JointLosses:
        """The losses on one training passage."""
        passage = self.passages.train[number]
        tokens, first = torch.tensor(passage.tokens)[None, :-1], passage.start - 1
        tuned = self.tuned(tokens)
        backbone = divergence(self.tuned.base(tokens)[0, first:], tuned.logits[0, first:]).mean()
        after = self.heads.train_on.after[self.heads.train_on.passage == number]
        logits = self.heads.heads(tuned.rows[0, first : first + len(after), None])
        return JointLosses(backbone, head_losses(logits.float(), self.heads.column[after]))
