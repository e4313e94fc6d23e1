"""A model tuned for Jacobi decoding: `stride train backbone cllm-embedded-code`, decoded by the method ``cllm``.

Source: Kou et al. 2024, CLLMs: consistency large language models, arXiv:2403.00835, sections 3.2 and 4.1.
Symbols: y^(i) the i-th state of a block of n tokens, y* its fixed point; B texts, N rows of each, S blocks of a text.
The passes over y^(i) and over the text with y* are one: a block's state is read behind the text, sees what stands
before the block and itself, and has the block's positions. L_AR is against the base model's laws where the paper takes
tokens: greedy tokens, which the trajectories are made of, teach a model that is sure of everything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from harness.registry import RECIPES
from harness.train.backbones.jacobi_trajectories import Plan, States, Trajectory, trajectories, written
from harness.train.finetuned_mesh import Tuning
from harness.train.finetuned_text import FinetunedText, load_backbone
from harness.train.loop import Recipe
from harness.train.teacher import Passage, Teacher


@dataclass(frozen=True, kw_only=True)
class TrainCllm(Recipe):
    """L_consistency + 10 L_AR: laws on a state are drawn to those on the fixed point, and the text stays likely.

    Args:
        backbone: a preset that writes programs. plan: of its trajectories. checks: held-out prompts. fixed: of L_AR,
            on all rows of a text. together: texts of a step, a state a block of each.
    """

    summary: str
    backbone: str
    plan: Plan = field(default_factory=Plan)
    checks: int = 24
    fixed: float = 10.0
    together: int = 6

    kind = "backbone"
    source = "Jacobi trajectories of the backbone itself, of programs of harness/worlds/code.py (Apache-2.0)"
    steps: int = 600
    hours: float = 0.25
    rate: float = 2e-4
    warmup = 10
    fall = 0.97
    decay = 0.0
    betas = (0.9, 0.98)

    def build(self, parts: Mapping[str, Path]) -> nn.Module:
        """Decodes the backbone's trajectories first where the cache holds none.

        Raises:
            WeightsError: the backbone's weights cannot be had. UsageError: it is none of hf_causal.
        """
        teacher = Teacher.load(self.backbone, "fp32")
        model = Consistent(FinetunedText(self.backbone, Tuning(0)), trajectories(teacher, self.plan, held_out=False))
        model.base = teacher
        return model

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        assert isinstance(model, Consistent)
        chosen = random.choice(len(model.found), size=min(self.together, len(model.found)), replace=False)
        batch = packed([model.found[int(index)] for index in chosen], random)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model.tuned(batch.tokens, batch.places, batch.mask()).logits
            laws = model.tuned.base(batch.tokens[:, : int(batch.own.sum(1).max())])
        near, own = losses(logits.float(), batch, laws.float())
        return near + self.fixed * own

    def export(self, model: nn.Module, folder: Path) -> None:
        assert isinstance(model, Consistent)
        model.tuned.export(folder)
        model.made = Teacher(load_backbone("cllm", folder))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """On held-out programs, of the model and the ``_base`` that it was tuned from: ``tokens_a_pass`` of ``cllm``,
        and ``bits`` a token of the programs. ``divergence``: KL(base || model) a token of them, in nats.
        """
        assert isinstance(model, Consistent) and model.made is not None and model.base is not None
        pair = {"": model.made, "_base": model.base}
        few = replace(self.plan, prompts=self.checks)
        figures = {f"tokens_a_pass{key}": pace(trajectories(each, few, held_out=True)) for key, each in pair.items()}
        return figures | compared(model.base, model.made, [each.text for each in written(1, True, self.checks)])


FILLING = (0, 0, 0, 0, -1)
"""Of a batch's fields behind the rows of a text."""


class Consistent(nn.Module):
    """A model in training.

    Attributes:
        found: trajectories. base, made: as it was, and as it was exported.
    """

    def __init__(self, tuned: FinetunedText, found: Sequence[Trajectory]) -> None:
        super().__init__()
        self.tuned, self.found = tuned, [each for each in found if any(map(inner, states_of(each)))]
        self.base: Teacher | None = None
        self.made: Teacher | None = None


class Batch(NamedTuple):
    """Texts and, behind each, a state of every block.

    Args:
        sees: which rows a row reads. own: which rows are the text's, the first ones. of: rows of the text whose laws
            the rows of states are drawn to; -1: of none.
    """

    tokens: Int[Tensor, "B N"]
    places: Int[Tensor, "B N"]
    sees: Bool[Tensor, "B N N"]
    own: Bool[Tensor, "B N"]
    of: Int[Tensor, "B N"]

    def mask(self) -> Float[Tensor, "B one N N"]:
        """To be added to scores."""
        return torch.zeros(self.sees.shape).masked_fill(~self.sees, -torch.inf)[:, None]


def states_of(found: Trajectory) -> list[tuple[States, tuple[int, ...]]]:
    """Blocks with their fixed points."""
    return [(each, found.tokens[each.place :][: len(each.states[-1])]) for each in found.blocks]


def inner(block: tuple[States, tuple[int, ...]]) -> list[tuple[int, ...]]:
    """States of a block that are not its fixed point."""
    return [state for state in block[0].states if state != block[1]]


def packed(found: Sequence[Trajectory], random: np.random.Generator) -> Batch:
    """One state of each block, drawn from those that are not its fixed point.

    A row learns from the first wrong token's on: those before it read what rows of the text read.
    """
    length = max(len(each.tokens) for each in found)
    made = [_packed(each, length, random) for each in found]
    width = max(len(each.tokens) for each in made)
    columns = zip(zip(*made, strict=True), FILLING, strict=True)
    return Batch(*(torch.stack([_padded(row, width, value) for row in rows]) for rows, value in columns))


def losses(logits: Float[Tensor, "B N V"], batch: Batch, base: Float[Tensor, "B L V"]) -> tuple[Tensor, Tensor]:
    """L_consistency, a mean over the rows of states that learn, and L_AR, one over the rows of texts.

    Args:
        base: logits of the model as it was, of the longest text's rows.
    """
    ours = batch.own[:, : base.shape[1]]
    own = functional.cross_entropy(logits[:, : base.shape[1]][ours], base[ours].softmax(-1))
    where, row = (batch.of >= 0).nonzero(as_tuple=True)
    wanted = logits[where, batch.of[where, row]].detach().softmax(-1)
    return functional.cross_entropy(logits[where, row], wanted), own


def pace(found: Sequence[Trajectory]) -> float:
    """Tokens a pass."""
    return sum(len(each.tokens) - each.start for each in found) / sum(each.passes for each in found)


def compared(base: Teacher, made: Teacher, texts: Sequence[str]) -> dict[str, float]:
    """Bits a token of texts under both models, and KL(base || made) of their laws in nats a token."""
    lost: dict[str, list[Tensor]] = {"bits": [], "bits_base": [], "divergence": []}
    for text in texts:
        tokens = made.backbone.encode(text)
        logits = [each.read(Passage(tuple(tokens), 1), (), logits=True).logits[:-1] for each in (made, base)]
        q, p = (each.double().log_softmax(-1) for each in logits)
        after = torch.tensor(tokens[1:])[:, None]
        for key, laws in (("bits", q), ("bits_base", p)):
            lost[key].append(-laws.gather(1, after)[:, 0] / math.log(2))
        lost["divergence"].append((p.exp() * (p - q)).sum(-1))
    return {key: float(torch.cat(values).mean()) for key, values in lost.items()}


def _packed(found: Trajectory, length: int, random: np.random.Generator) -> Batch:
    """One text, padded to ``length`` with rows that see themselves alone, and its states."""
    count = len(found.tokens)
    tokens, places = [*found.tokens, *[0] * (length - count)], list(range(length))
    sees = torch.eye(length, dtype=torch.bool)
    sees[:count, :count] |= torch.ones(count, count, dtype=torch.bool).tril()
    of = [-1] * length
    for block in states_of(found):
        if not (there := inner(block)):
            continue
        state, right, place = there[int(random.integers(len(there)))], block[1], block[0].place
        wrong = next(index for index, token in enumerate(state) if token != right[index])
        held, size = len(tokens), len(state)
        grown = torch.zeros(held + size, held + size, dtype=torch.bool)
        grown[:held, :held] = sees
        grown[held:, :place] = True
        grown[held:, held:] = torch.ones(size, size, dtype=torch.bool).tril()
        sees, tokens = grown, [*tokens, *state]
        places += range(place, place + size)
        of += [place + row if wrong - 1 <= row < size - 1 else -1 for row in range(size)]
    return Batch(torch.tensor(tokens), torch.tensor(places), sees, torch.arange(len(tokens)) < count, torch.tensor(of))


def _padded(rows: Tensor, width: int, value: int) -> Tensor:
    """One text's, with rows that see themselves alone behind."""
    count = width - len(rows)
    if rows.ndim == 1:
        return functional.pad(rows, (0, count), value=value)
    return functional.pad(rows, (0, count, 0, count)) | torch.eye(width, dtype=torch.bool)


RECIPES.register("cllm-embedded-code")(
    TrainCllm(summary="embedded-code tuned for Jacobi decoding in blocks, by the method cllm", backbone="embedded-code")
)
