"""What a feature drafter learns from: passages of its backbone, and the hidden rows that the backbone made on them.

Symbols: B sequences, N entries of the longest, G branches of guidance, J tapped layers, E width. Entry t is the pair of
token t + 1 and row t; row t + 1 is what it should foretell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from harness.core.capabilities import Tap
from harness.train.teacher import Passage, Teacher


class Example(NamedTuple):
    """A passage of n tokens.

    Args:
        rows: in bf16, those that the head reads last. best: the likeliest token behind each. start: of the prompt, its
            tokens.
    """

    tokens: Int[Tensor, " n"]
    rows: Float[Tensor, "n G J E"]
    best: Int[Tensor, " n"]
    start: int


def examples(teacher: Teacher, passages: Sequence[Passage], taps: Sequence[Tap]) -> list[Example]:
    """One pass over each passage; one of fewer than three tokens has nothing to foretell."""
    found = []
    for passage in passages:
        if len(passage.tokens) > 2:
            read = teacher.read(passage, (*taps, -1), logits=True)
            assert read.hidden is not None, "a backbone that is tapped gives rows"
            tokens, best = torch.tensor(passage.tokens), read.logits.argmax(-1)
            found.append(Example(tokens, read.hidden.bfloat16(), best, passage.start))
    return found


def commonest(found: Sequence[Example], count: int, vocabulary: int) -> Int[Tensor, " K"]:
    """The ids that the backbone wrote or held for likeliest most often, in order of their number."""
    seen = torch.cat([torch.cat([example.tokens[example.start :], example.best]) for example in found])
    return torch.bincount(seen, minlength=vocabulary).sort(descending=True, stable=True).indices[:count].sort().values


@dataclass(frozen=True)
class Batch:
    """Sequences as the drafter reads them.

    Args:
        tokens: t + 1 of each entry t. features: of the taps. heads: row t + 1 as the head reads it. seen: entries that
            each may look at. counted: entries that learn: what follows is behind the prompt, not forced, and the
            likeliest of it among the ids proposed.
    """

    tokens: Int[Tensor, "B N"]
    features: Float[Tensor, "B N J E"]
    heads: Float[Tensor, "B N E"]
    seen: Bool[Tensor, "B one N N"]
    counted: Bool[Tensor, "B N"]


def collate(
    chosen: Sequence[Example], branches: Sequence[int], teacher: Teacher, proposed: Bool[Tensor, " V"] | None = None
) -> Batch:
    """One branch of each example.

    The branch without the condition knows of the prompt its last token alone, as in `FeatureCache`.
    """
    longest = max(len(example.tokens) for example in chosen) - 1
    width, taps = chosen[0].rows.shape[-1], max(1, chosen[0].rows.shape[2] - 1)
    tokens = torch.zeros(len(chosen), longest, dtype=torch.long)
    features, heads = torch.zeros(len(chosen), longest, taps, width), torch.zeros(len(chosen), longest, width)
    seen = torch.ones(len(chosen), 1, longest, longest, dtype=torch.bool).tril()
    counted = torch.zeros(len(chosen), longest, dtype=torch.bool)
    for b, (example, branch) in enumerate(zip(chosen, branches, strict=True)):
        count, last = len(example.tokens) - 1, example.start - 2
        rows = example.rows[:, branch].float()
        tokens[b, :count] = example.tokens[1:]
        features[b, :count], heads[b, :count] = rows[:-1, :taps], rows[1:, -1]
        counted[b, max(0, last) : count] = True
        if proposed is not None:
            counted[b, :count] &= proposed[example.best[1:]]
        if branch:
            features[b, : max(0, last + 1)] = 0.0
            seen[b, :, max(0, last) :, : max(0, last)] = False
        for place in _forced(teacher, count, example.start):
            counted[b, place] = False
    return Batch(tokens, features, heads, seen, counted)


def _forced(teacher: Teacher, count: int, start: int) -> list[int]:
    """Entries whose next token is an end of a row, say."""
    grid = teacher.capabilities.grid
    if grid is None:
        return []
    return [t for t in range(max(0, start - 2), count) if grid.forced(grid.start + t + 2 - start) is not None]
