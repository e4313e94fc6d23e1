"""The loss of a feature drafter: smooth L1 of features and soft cross-entropy, summed over the rounds.

Sources: EAGLE-1, arXiv:2401.15077, section 3.3; EAGLE-3, arXiv:2503.01840 (weight 0.8^i in round i).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from stridebench.harness.train.precision import autocast
from stridebench.methods.training.eagle.examples import Batch
from stridebench.methods.training.eagle.student import Student
from stridebench.methods.training.eagle.training_time_test import unroll


def noisy(features: Float[Tensor, "B N J F"], width: float) -> Float[Tensor, "B N J F"]:
    """Features with uniform noise of this width, in units of their root mean square."""
    scale = features.square().mean((0, 1, 3), keepdim=True).sqrt()
    return features + width * scale * (torch.rand_like(features) - 0.5)


def round_losses(
    student: Student,
    batch: Batch,
    features: Float[Tensor, "B N J F"],
    rounds: int,
    regress: float,
    classify: float,
) -> Tensor:
    """The weighted loss of a batch whose drafter reads these features.

    Args:
        rounds: of the training-time test.
        regress: weight of the smooth L1 of features.
        classify: weight of the soft cross-entropy.
    """
    net, embed = student.net, student.lessons.embed
    with autocast(device=embed.device.type):
        outputs = unroll(net, embed[batch.tokens], features, batch.visible, rounds)
        total = torch.zeros((), device=embed.device)
        for i, out in enumerate(outputs):
            counted = batch.counted[:, i:]
            heads, rows = batch.heads[:, i:][counted], out[:, : out.shape[1] - i][counted]
            p, log_q = student.target_logits(heads).softmax(-1), student.draft_logits(rows).log_softmax(-1)
            regression = functional.smooth_l1_loss(rows.float(), heads) if regress else 0.0
            classification = -(p * log_q).sum(-1).mean()
            total = total + 0.8**i * (classify * classification + regress * regression)
    return total
