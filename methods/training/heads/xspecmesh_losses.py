"""XSpecMesh's heads in training: what they read, their losses, and what is measured on held-out shapes.

Source: Chen et al., XSpecMesh, eqs. 5-7.
Symbols: D heads, N rows of a passage.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from harness.train.finetuned_mesh import FinetunedMesh
from harness.train.loop import save_bf16
from harness.train.teacher import Passage, Teacher
from methods.drafters.heads.net import Heads
from methods.training.heads.examples import hits
from methods.training.heads.figures import beside
from methods.training.heads.heads_in_training import Training
from methods.training.heads.xspecmesh_passages import Meshes

FADING = 0.8
"""w(d) is its d-th power."""


class MeshTraining(nn.Module):
    """Heads, the backbone where it learns with them, and what both are trained on.

    Attributes:
        base, merged: the backbone that learns, as it was and as it was exported.
    """

    def __init__(self, heads: Heads, train_on: Meshes, check_on: Meshes, tuned: FinetunedMesh | None = None) -> None:
        super().__init__()
        self.heads, self.tuned = heads, tuned
        self.train_on, self.check_on = train_on, check_on
        self.base: Teacher | None = None
        self.merged: Teacher | None = None

    @torch.no_grad()
    def save(self, folder: Path) -> None:
        """The heads, rounded to bf16 first, so that what is measured is what is shipped."""
        for weight in self.heads.parameters():
            weight.copy_(weight.bfloat16())
        save_bf16(self.heads, folder)
        self.heads.config.write(folder)

    def controls(self) -> dict[str, Heads]:
        """Untrained heads, and those of the trained weights in another order."""
        made = Training(self.heads, len(self.heads.shared), self.train_on.rows, self.check_on.rows)
        return {"_untrained": made.control(), "_shuffled": made.control(shuffled=True)}


def head_loss(model: MeshTraining, chosen: Sequence[int]) -> Tensor:
    """Sum of w(d) L_d (eq. 6), a mean over passages; each L_d is a mean over the rows that have a token to guess."""
    total = torch.zeros(())
    for number in chosen:
        found = model.train_on.of(number)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model.heads(found.rows, model.heads.look(model.train_on.conditions[number]))
        total = total + faded(logits.float(), found.after)
    return total / len(chosen)


def joint_loss(model: MeshTraining, chosen: Sequence[int], fixed: float) -> Tensor:
    """lambda L_backbone + L_mhd (eq. 7), on rows that the backbone makes now.

    L_backbone is against the base model's raw laws and not the tokens of its passages: those were drawn at the
    temperature of decodes, and a model that takes them for its raw law is made colder once more when it decodes.
    """
    tuned, base, total = model.tuned, model.base, torch.zeros(())
    assert tuned is not None and base is not None
    asked = [model.train_on.passages[number] for number in chosen]
    laws = [base.read(each, (), logits=True).logits[each.start - 1 : -1].softmax(-1) for each in asked]
    with torch.autocast("cpu", torch.bfloat16):
        table = tuned.table()
        for number, passage, probs in zip(chosen, asked, laws, strict=True):
            found, tokens = model.train_on.of(number), torch.tensor(passage.tokens[:-1])
            rows = tuned(tokens, torch.from_numpy(passage.condition), table)[passage.start - 1 :]
            own = functional.cross_entropy(functional.linear(rows, table).float(), probs)
            logits = model.heads(rows[: len(found.rows), None], model.heads.look(model.train_on.conditions[number]))
            total = total + fixed * own + faded(logits.float(), found.after)
    return total / len(chosen)


def faded(logits: Float[Tensor, "D N V"], after: Int[Tensor, "N D"]) -> Tensor:
    """Sum of w(d) L_d; heads without a token to guess add nothing."""
    total = torch.zeros(())
    for head, (probs, wanted) in enumerate(zip(logits, after.T, strict=True), 1):
        there = int((wanted >= 0).sum())
        lost = functional.cross_entropy(probs, wanted, ignore_index=-1, reduction="sum")
        total = total + FADING**head * lost / max(1, there)
    return total


@torch.no_grad()
def figures(model: MeshTraining, checked: Meshes) -> dict[str, float]:
    """Of each head, how often its best token is right; beside controls, with the lower end of what it gains on each."""
    made = {"": model.heads, **model.controls()}
    right = {key: torch.cat([_right(heads, checked, n) for n, _ in checked.numbered()]) for key, heads in made.items()}
    return beside(right, checked.rows)


def drift(base: Teacher, merged: Teacher, passages: Sequence[Passage]) -> float:
    """KL(base || merged) of the law of a token, in nats: the mean over all tokens of passages."""
    lost = []
    for passage in passages:
        one, other = (teacher.read(passage, (), logits=True).logits for teacher in (base, merged))
        lost.append(divergence(one[passage.start - 1 : -1], other[passage.start - 1 : -1]))
    return float(torch.cat(lost).mean())


def divergence(one: Float[Tensor, "N V"], other: Float[Tensor, "N V"]) -> Float[Tensor, " N"]:
    """KL(one || other) of the laws that logits give."""
    p, q = one.double().log_softmax(-1), other.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


def _right(heads: Heads, checked: Meshes, number: int) -> Tensor:
    return hits(heads, checked.of(number), heads.look(checked.conditions[number]))
