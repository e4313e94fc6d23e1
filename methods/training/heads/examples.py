"""What heads are trained and measured on: rows of a backbone, and the tokens that stood behind them.

Symbols: N rows, D heads, G branches of guidance, E width, R best tokens that count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from harness.train.ngram_control import NGram
from harness.train.teacher import Passage, Teacher
from methods.drafters.heads.layers import ConditionKV
from methods.drafters.heads.net import Heads

BEST = 10
"""R."""
CHUNK = 2048
"""Rows that are read at once."""
BOOTSTRAPS = 2000


class Examples(NamedTuple):
    """Rows that gave a token of a backbone's own.

    Args:
        rows: what its head read there. after: the tokens that each head is to guess; -1 where there is none, or where
            only one is allowed. passage: which one a row is of.
    """

    rows: Float[Tensor, "N G E"]
    after: Int[Tensor, "N D"]
    passage: Int[Tensor, " N"]


def examples(teacher: Teacher, passages: Sequence[Passage], heads: int) -> Examples:
    """All rows of passages whose own token was made by the backbone; one pass a passage."""
    rows, after, owner = [], [], []
    for number, passage in enumerate(passages):
        found = teacher.read(passage, (-1,)).hidden
        first, last = passage.start - 1, len(passage.tokens) - 2
        if found is None or last <= first:
            continue
        rows.append(found[first:last, :, 0].bfloat16())
        after.append(_behind(teacher, passage, heads)[first:last])
        owner.append(torch.full((last - first,), number))
    return Examples(torch.cat(rows), torch.cat(after), torch.cat(owner))


def _behind(teacher: Teacher, passage: Passage, heads: int) -> Int[Tensor, "N D"]:
    """Row i's are the tokens at i + 2 and on."""
    grid = teacher.capabilities.grid
    drawn = None if grid is None else replace(grid, start=passage.start)
    kept = [-1 if drawn and drawn.forced(place) is not None else t for place, t in enumerate(passage.tokens)]
    padded = torch.tensor([*kept, *[-1] * (heads + 1)])
    return torch.stack([padded[2 + head : 2 + head + len(kept)] for head in range(heads)], 1)


def counted(
    teacher: Teacher, train: Sequence[Passage], passages: Sequence[Passage], heads: int
) -> Bool[Tensor, "N D three"]:
    """`hits` of n-grams of the training's passages, one for each distance, on the rows of `examples`.

    They know the token that a row gave, as the heads' proposals are tried behind it.
    """
    tables = [NGram.of((torch.tensor([each.tokens]) for each in train), head) for head in range(heads)]
    right = [torch.zeros(0, heads, 3, dtype=torch.bool)]
    for passage in passages:
        first, last = passage.start - 1, len(passage.tokens) - 2
        if last > first:
            tokens, after = torch.tensor([passage.tokens]), _behind(teacher, passage, heads)[first:last]
            guessed = torch.stack([table.guesses(tokens)[0, first + 1 : last + 1] for table in tables], 1)
            right.append((guessed == after[:, :, None]) & (after[:, :, None] >= 0))
    return torch.cat(right)


@torch.no_grad()
def hits(heads: Heads, found: Examples, seen: ConditionKV | None = None) -> Bool[Tensor, "N D R"]:
    """Which of the best tokens of each head was right; none where there is no token to guess.

    Args:
        seen: what heads of a condition read, where all rows are of one.
    """
    made = []
    for rows, after in zip(torch.split(found.rows, CHUNK), torch.split(found.after, CHUNK), strict=True):
        with torch.autocast("cpu", torch.bfloat16):
            logits = heads(rows.to(heads.shared.device), seen).float().cpu()
        best = heads.ids.cpu()[logits.topk(min(BEST, logits.shape[2])).indices]
        made.append(best.transpose(0, 1) == after[:, :, None])
    return torch.cat(made)


def shares(right: Bool[Tensor, "N D R"], found: Examples) -> list[list[float]]:
    """How often the r-th best token of each head was right, where there was one to guess."""
    there = (found.after >= 0).sum(0).clamp_min(1)
    shown: list[list[float]] = (right.sum(0) / there[:, None]).tolist()
    return shown


def lead(right: Bool[Tensor, "N D R"], other: Bool[Tensor, "N D S"], found: Examples) -> list[float]:
    """By how much each head's best token is right more often than another's: lower end of a 95 % interval.

    Passages are drawn again with replacement, 2,000 times, since rows of one passage go together.
    """
    count, heads = int(found.passage.max()) + 1, found.after.shape[1]
    gained = torch.zeros(count, heads, dtype=torch.float64)
    there = torch.zeros(count, heads, dtype=torch.float64)
    gained.index_add_(0, found.passage, (right[:, :, 0].long() - other[:, :, 0].long()).double())
    there.index_add_(0, found.passage, (found.after >= 0).double())
    return lower_end(gained, there)


def lower_end(gained: Float[Tensor, "P D"], there: Float[Tensor, "P D"]) -> list[float]:
    """Of a 95 % interval of the sums' ratio, over P passages drawn again with replacement."""
    again = np.random.default_rng(0).integers(len(gained), size=(BOOTSTRAPS, len(gained)))
    means = gained.numpy()[again].sum(1) / np.maximum(there.numpy()[again].sum(1), 1)
    low: list[float] = np.quantile(means, 0.025, axis=0).tolist()
    return low
