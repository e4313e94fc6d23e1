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

from stridebench.harness.train.finetuned_mesh import FinetunedMesh
from stridebench.harness.train.finetuned_points import FinetunedBPT
from stridebench.harness.train.precision import autocast
from stridebench.harness.train.teacher import Passage, Teacher
from stridebench.methods.drafters.heads.net import Heads
from stridebench.methods.training.heads.examples import hits
from stridebench.methods.training.heads.figures import compared
from stridebench.methods.training.heads.heads_in_training import Training, head_losses
from stridebench.methods.training.heads.xspecmesh_passages import Meshes

Tuned = FinetunedMesh | FinetunedBPT
"""A decoder that learns."""


class MeshTraining(nn.Module):
    """Heads, the backbone if it learns with them, and what both are trained on.

    Attributes:
        heads: what is trained.
        tuned: the backbone that learns, or None.
        train_on: meshes of the loss.
        check_on: meshes of the figures.
        column: as of `Training`.
        base: the backbone as it was.
        merged: the backbone as it was exported.
    """

    def __init__(self, heads: Heads, train_on: Meshes, check_on: Meshes, tuned: Tuned | None = None) -> None:
        super().__init__()
        self.heads, self.tuned = heads, tuned
        self.train_on, self.check_on = train_on, check_on
        most = max(int(ids.max()) for ids in (heads.ids, train_on.rows.after, check_on.rows.after))
        self.column = torch.full((most + 2,), -1)
        self.column[heads.ids.cpu()] = torch.arange(len(heads.ids))
        self.base: Teacher | None = None
        self.merged: Teacher | None = None

    def controls(self) -> dict[str, Heads]:
        """Untrained heads, and heads whose weights have their entries in another order."""
        training = Training(self.heads, len(self.column) - 1, self.train_on.rows, self.check_on.rows)
        return {"_untrained": training.control(), "_shuffled": training.control(shuffled=True)}


def head_loss(model: MeshTraining, chosen: Sequence[int]) -> Tensor:
    """Sum of w(d) L_d (eq. 6), a mean over passages. Each L_d is a mean over the rows that have a token to guess."""
    total = torch.zeros(())
    for number in chosen:
        examples, shared = model.train_on.of(number), model.heads.shared
        if not len(examples.rows):
            continue
        with autocast(device=shared.device.type):
            condition = model.train_on.conditions[number].to(shared)
            logits = model.heads(examples.rows.to(shared), model.heads.look(condition))
        total = total + head_losses(logits.float(), model.column[examples.after].to(shared.device))
    return total / len(chosen)


def joint_loss(model: MeshTraining, chosen: Sequence[int], fixed: float) -> Tensor:
    """lambda L_backbone + L_mhd (eq. 7), on rows that the backbone computes now.

    L_backbone is a cross-entropy to the base model's distributions at temperature 1, not to the tokens of the passages.
    Those tokens were drawn at the temperature of decoding. A model trained on them would be sharpened twice.
    """
    base, total = model.base, torch.zeros(())
    assert base is not None
    passages = [model.train_on.passages[number] for number in chosen]
    targets = [base.read(p, (), logits=True).logits[p.start - 1 : -1].float().softmax(-1) for p in passages]
    for (own, logits, after), probs in zip(tuned_passes(model, chosen), targets, strict=True):
        distance = functional.cross_entropy(own, probs.to(own)[:, : own.shape[1]])
        total = total + fixed * distance + head_losses(logits, after)
    return total / len(chosen)


def tuned_passes(model: MeshTraining, chosen: Sequence[int]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Of each passage the tuned backbone's logits [N, V], the heads' [D, n, V] and the tokens to guess [n, D]."""
    tuned, shared = model.tuned, model.heads.shared
    passes = []
    assert tuned is not None
    with autocast(device=shared.device.type):
        table = tuned.table()
        if model.heads.own is None and isinstance(tuned, FinetunedMesh):
            model.heads.shared = table[model.heads.ids]
        for number in chosen:
            examples, passage = model.train_on.of(number), model.train_on.passages[number]
            tokens, points = torch.tensor(passage.tokens[:-1]), torch.from_numpy(passage.condition)
            rows = tuned(tokens.to(shared.device), points.to(shared), table)[passage.start - 1 :]
            condition = model.heads.look(model.train_on.conditions[number].to(shared))
            logits = model.heads(rows[: len(examples.rows), None], condition)
            after = model.column[examples.after].to(shared.device)
            passes.append((tuned.logits(rows, table).float(), logits.float(), after))
    return passes


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
    return (p.exp() * (p - q)).masked_fill(p == -torch.inf, 0).sum(-1)  # of ids that are never drawn


def _hits(heads: Heads, checked: Meshes, number: int) -> Tensor:
    return hits(heads, checked.of(number), heads.look(checked.conditions[number].to(heads.shared)))
