"""What heads are trained and measured on: hidden rows of a backbone, and the tokens that follow.

Symbols: N rows, D heads, G branches of guidance, E width, R best tokens that are counted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.task import Prompt
from stridebench.harness.synthetic import furniture, shapes
from stridebench.harness.train.backbones.shapes_mesh import POINTS, SAMPLING
from stridebench.harness.train.passages import AnyPlan, NGram, Passages, continued
from stridebench.harness.train.recipe import autocast
from stridebench.harness.train.teacher import Passage, Teacher
from stridebench.methods.drafters.heads.net import ConditionKV, Heads

BEST = 10
"""R."""
CHUNK = 2048
"""Rows of one pass of the heads."""
BOOTSTRAPS = 2000


class Examples(NamedTuple):
    """Rows from which the backbone drew a token.

    Args:
        after: the token that each head should guess; -1 if there is none, or if the grid allows only one.
        passage: number of the passage that a row is of.
    """

    rows: Float[Tensor, "N G E"]
    after: Int[Tensor, "N D"]
    passage: Int[Tensor, " N"]


def examples(teacher: Teacher, passages: Sequence[Passage], heads: int) -> Examples:
    """The rows of passages from which the backbone drew a token; one pass a passage."""
    rows, after, owner = [], [], []
    for number, passage in enumerate(passages):
        hidden = teacher.read(passage, (-1,)).hidden
        first, last = passage.start - 1, len(passage.tokens) - 2
        if hidden is None or last <= first:
            continue
        rows.append(hidden[first:last, :, 0].bfloat16().cpu())
        after.append(_following(teacher, passage, heads)[first:last])
        owner.append(torch.full((last - first,), number))
    return Examples(torch.cat(rows), torch.cat(after), torch.cat(owner))


def _following(teacher: Teacher, passage: Passage, heads: int) -> Int[Tensor, "N D"]:
    """The tokens that each head should guess: for row i those from position i + 2 on."""
    grid = teacher.capabilities.grid
    drawn = None if grid is None else replace(grid, start=passage.start)
    tokens = [-1 if drawn and drawn.forced(place) is not None else t for place, t in enumerate(passage.tokens)]
    padded = torch.tensor([*tokens, *[-1] * (heads + 1)])
    return torch.stack([padded[2 + head : 2 + head + len(tokens)] for head in range(heads)], 1)


def ngram_hits(
    teacher: Teacher, train: Sequence[Passage], passages: Sequence[Passage], heads: int
) -> Bool[Tensor, "N D three"]:
    """`hits` of n-grams of the training passages, one for each distance, on the rows of `examples`.

    An n-gram reads the token that was drawn from a row, because the heads' proposals follow that token.
    """
    ngrams = [NGram.of((torch.tensor([passage.tokens]) for passage in train), head) for head in range(heads)]
    right = [torch.zeros(0, heads, 3, dtype=torch.bool)]
    for passage in passages:
        first, last = passage.start - 1, len(passage.tokens) - 2
        if last > first:
            tokens, after = torch.tensor([passage.tokens]), _following(teacher, passage, heads)[first:last]
            guesses = torch.stack([ngram.guesses(tokens)[0, first + 1 : last + 1] for ngram in ngrams], 1)
            right.append((guesses == after[:, :, None]) & (after[:, :, None] >= 0))
    return torch.cat(right)


@torch.no_grad()
def hits(heads: Heads, examples: Examples, condition: ConditionKV | None = None) -> Bool[Tensor, "N D R"]:
    """Return which of the best tokens of each head was right; none if there was no token to guess.

    Args:
        condition: what conditioned heads attend to; all rows are of one passage then.
    """
    right = []
    for rows, after in zip(torch.split(examples.rows, CHUNK), torch.split(examples.after, CHUNK), strict=True):
        with autocast(device=heads.shared.device.type):
            logits = heads(rows.to(heads.shared), condition).float().cpu()
        best = heads.ids.cpu()[logits.topk(min(BEST, logits.shape[2])).indices]
        right.append(best.transpose(0, 1) == after[:, :, None])
    return torch.cat(right)


def shares(right: Bool[Tensor, "N D R"], examples: Examples) -> list[list[float]]:
    """Return how often the r-th best token of each head was right, of the rows with a token to guess."""
    counted = (examples.after >= 0).sum(0).clamp_min(1)
    table: list[list[float]] = (right.sum(0) / counted[:, None]).tolist()
    return table


def lead(right: Bool[Tensor, "N D R"], control: Bool[Tensor, "N D S"], examples: Examples) -> list[float]:
    """How much more often each head's best token is right than a control's: lower end of a 95 % interval.

    The interval is a bootstrap over passages, because the rows of one passage depend on each other.
    """
    count, heads = int(examples.passage.max()) + 1, examples.after.shape[1]
    gained = torch.zeros(count, heads, dtype=torch.float64)
    counted = torch.zeros(count, heads, dtype=torch.float64)
    gained.index_add_(0, examples.passage, (right[:, :, 0].long() - control[:, :, 0].long()).double())
    counted.index_add_(0, examples.passage, (examples.after >= 0).double())
    return lower_end(gained, counted)


def lower_end(gained: Float[Tensor, "P D"], counted: Float[Tensor, "P D"]) -> list[float]:
    """Lower end of the 95 % bootstrap interval of sum(gained) / sum(counted), over P passages."""
    drawn = np.random.default_rng(0).integers(len(gained), size=(BOOTSTRAPS, len(gained)))
    means = gained.numpy()[drawn].sum(1) / np.maximum(counted.numpy()[drawn].sum(1), 1)
    low: list[float] = np.quantile(means, 0.025, axis=0).tolist()
    return low


# Heads in training: their examples, their losses, and the controls that they are measured against.
# Symbols: N rows, D heads, K proposed ids, V vocabulary.


FADING = 0.8
"""The loss of head d has this weight to the power of d + 1."""


class HeadTraining(nn.Module):
    """Heads, and their training data.

    Attributes:
        ngram_hits: hits of n-grams on ``check_on``, or None without that control.
        column: for each id of the vocabulary its place among the proposed ids; -1 if it is not proposed. The last
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
    def on(cls, heads: Heads, passages: Passages) -> HeadTraining:
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
    """Return the most frequent ids of passages, in ascending order; fewer if the passages have fewer."""
    ids, times = np.unique([token for passage in passages for token in passage.tokens], return_counts=True)
    most = ids[np.argsort(-times, kind="stable")[:count]]
    return torch.from_numpy(np.sort(most))


# Meshes that a backbone generates from point clouds, to train heads on; see `stridebench.harness.train.passages`.
# Both sides draw shapes of the training split, with different seeds. The test split belongs to the benchmark.
# Symbols: D heads, M rows of a condition, C its width.


BATCH = 16
"""Passages of a file of the cache."""


@dataclass(frozen=True)
class ShapePlan:
    """Number of shapes of each side, and the most tokens of a passage."""

    train: int = 512
    development: int = 48
    new: int = 383


def drawn(teacher: Teacher, side: str, count: int, new: int) -> list[Passage]:
    """Passages of the first shapes of a side. A larger number reuses the files of a smaller one."""
    passages: list[Passage] = []
    for number in range(-(-count // BATCH)):
        prompts = [_prompt(side, number * BATCH + index) for index in range(BATCH)]
        path = teacher.home / f"furniture-{new}-{side}-{number:04}.json"
        if not path.is_file():
            first = number * BATCH
            print(f"{teacher.backbone.name}: {side} shapes from {first} of {count}", file=sys.stderr, flush=True)
        draws = SeededDraws(0, "distilled", side, number, teacher.backbone.device)
        passages += continued(teacher, path, prompts, new, SAMPLING, draws)
    return passages[:count]


def _prompt(side: str, index: int) -> Prompt:
    random = np.random.default_rng([*side.encode(), index])
    shape = furniture.shape(random, "train", None)
    return Prompt(f"{side}/{index}", condition=shapes.points(shape.mesh, POINTS, random))


class Meshes(NamedTuple):
    """Passages, their hidden rows, and the latents of each one's points."""

    passages: Sequence[Passage]
    rows: Examples
    conditions: Float[Tensor, "P M C"]

    @staticmethod
    def read(teacher: Teacher, passages: Sequence[Passage], heads: int) -> Meshes:
        """One pass a passage."""
        conditions = torch.stack([teacher.condition(passage) for passage in passages]).float()
        return Meshes(passages, examples(teacher, passages, heads), conditions)

    def of(self, number: int) -> Examples:
        """Return the rows of one passage; none if the passage is too short."""
        begin, end = torch.searchsorted(self.rows.passage, torch.tensor([number, number + 1])).tolist()
        return Examples(*(column[begin:end] for column in self.rows))

    def numbered(self) -> Iterator[tuple[int, Examples]]:
        """Number and rows of every passage that has rows."""
        for number in range(len(self.passages)):
            if len((examples := self.of(number)).rows):
                yield number, examples


def meshes_of(
    teacher: Teacher, plan: ShapePlan | AnyPlan, passages: Passages | None, heads: int
) -> tuple[Meshes, Meshes]:
    """Meshes to train on and to measure on, of the passages or else of the plan's shapes, with the tokens to guess."""
    if passages is not None:
        return Meshes.read(teacher, passages.train, heads), Meshes.read(teacher, passages.development, heads)
    assert isinstance(plan, ShapePlan)
    counts = (("train", plan.train), ("development", plan.development))
    written = (drawn(teacher, side, count, plan.new) for side, count in counts)
    train, check = (Meshes.read(teacher, chosen, heads) for chosen in written)
    return train, check
