"""XSpecMesh's heads in training: their meshes, their losses, and their figures on held-out shapes.

Source: Chen et al., XSpecMesh, eqs. 5-7.
Symbols: D heads, N rows of a passage.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from harness.train.finetuned_mesh import FinetunedMesh
from harness.train.precision import autocast
from harness.train.teacher import Passage, Teacher
from methods.drafters.heads.net import Heads
from methods.training.heads.examples import hits
from methods.training.heads.figures import compared
from methods.training.heads.heads_in_training import Training, head_losses
from methods.training.heads.xspecmesh_passages import Meshes


class MeshTraining(nn.Module):
    """Heads, the backbone if it learns with them, and what both are trained on.

    Attributes:
        heads: what is trained.
        tuned: the backbone that learns, or None.
        train_on: meshes of the loss.
        check_on: meshes of the figures.
        base: the backbone as it was.
        merged: the backbone as it was exported.
    """

    def __init__(self, heads: Heads, train_on: Meshes, check_on: Meshes, tuned: FinetunedMesh | None = None) -> None:
        super().__init__()
        self.heads, self.tuned = heads, tuned
        self.train_on, self.check_on = train_on, check_on
        self.base: Teacher | None = None
        self.merged: Teacher | None = None

    def controls(self) -> dict[str, Heads]:
        """Untrained heads, and heads whose weights have their entries in another order."""
        training = Training(self.heads, len(self.heads.shared), self.train_on.rows, self.check_on.rows)
        return {"_untrained": training.control(), "_shuffled": training.control(shuffled=True)}


def head_loss(model: MeshTraining, chosen: Sequence[int]) -> Tensor:
    """Sum of w(d) L_d (eq. 6), a mean over passages. Each L_d is a mean over the rows that have a token to guess."""
    total = torch.zeros(())
    for number in chosen:
        examples = model.train_on.of(number)
        with autocast():
            rows = examples.rows.to(model.heads.shared)
            logits = model.heads(rows, model.heads.look(model.train_on.conditions[number]))
        total = total + head_losses(logits.float(), examples.after)
    return total / len(chosen)


def joint_loss(model: MeshTraining, chosen: Sequence[int], fixed: float) -> Tensor:
    """lambda L_backbone + L_mhd (eq. 7), on rows that the backbone computes now.

    L_backbone is a cross-entropy to the base model's distributions at temperature 1, not to the tokens of the passages.
    Those tokens were drawn at the temperature of decoding. A model trained on them would be sharpened twice.
    """
    tuned, base, total = model.tuned, model.base, torch.zeros(())
    assert tuned is not None and base is not None
    passages = [model.train_on.passages[number] for number in chosen]
    targets = [base.read(p, (), logits=True).logits[p.start - 1 : -1].softmax(-1) for p in passages]
    with autocast():
        table = tuned.table()
        for number, passage, probs in zip(chosen, passages, targets, strict=True):
            examples, tokens = model.train_on.of(number), torch.tensor(passage.tokens[:-1])
            rows = tuned(tokens, torch.from_numpy(passage.condition), table)[passage.start - 1 :]
            own = functional.cross_entropy(functional.linear(rows, table).float(), probs)
            logits = model.heads(rows[: len(examples.rows), None], model.heads.look(model.train_on.conditions[number]))
            total = total + fixed * own + head_losses(logits.float(), examples.after)
    return total / len(chosen)


@torch.no_grad()
def figures(model: MeshTraining, checked: Meshes) -> dict[str, float]:
    """How often the best token of each head is right, for the heads and their controls; see `compared`."""
    heads = {"": model.heads, **model.controls()}
    numbers = [number for number, _ in checked.numbered()]
    right = {key: torch.cat([_hits(trained, checked, n) for n in numbers]) for key, trained in heads.items()}
    return compared(right, checked.rows)


def drift(base: Teacher, merged: Teacher, passages: Sequence[Passage]) -> float:
    """KL(base || merged) in nats: the mean over all generated tokens of passages."""
    divergences = []
    for passage in passages:
        p, q = (teacher.read(passage, (), logits=True).logits[passage.start - 1 : -1] for teacher in (base, merged))
        divergences.append(divergence(p, q))
    return float(torch.cat(divergences).mean())


def divergence(base: Float[Tensor, "N V"], tuned: Float[Tensor, "N V"]) -> Float[Tensor, " N"]:
    """KL(base || tuned) of the distributions of two sets of logits."""
    p, q = base.double().log_softmax(-1), tuned.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


def _hits(heads: Heads, checked: Meshes, number: int) -> Tensor:
    return hits(heads, checked.of(number), heads.look(checked.conditions[number]))
