"""What a feature drafter learns from: passages of its backbone and the backbone's hidden rows on them.

Symbols: B sequences, N entries of the longest one, G branches of guidance, J tapped layers, E width.
Entry t is the pair of token t + 1 and row t; it should predict row t + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from stridebench.harness.core.capabilities import Tap
from stridebench.harness.train.teacher import Passage, Teacher


class Example(NamedTuple):
    """A passage of n tokens, on the CPU.

    Args:
        tokens: ids.
        rows: hidden rows in bf16; the last of the J taps is what the backbone's head reads.
        best: the backbone's most probable token after each token.
        start: length of the prompt.
    """

    tokens: Int[Tensor, " n"]
    rows: Float[Tensor, "n G J E"]
    best: Int[Tensor, " n"]
    start: int


def examples(teacher: Teacher, passages: Sequence[Passage], taps: Sequence[Tap]) -> list[Example]:
    """Examples of passages, with one pass over each. Passages of fewer than three tokens are left out."""
    examples = []
    for passage in passages:
        if len(passage.tokens) > 2:
            read = teacher.read(passage, (*taps, -1), logits=True)
            assert read.hidden is not None, "a backbone that is tapped returns rows"
            tokens, best = torch.tensor(passage.tokens), read.logits.argmax(-1).cpu()
            examples.append(Example(tokens, read.hidden.bfloat16().cpu(), best, passage.start))
    return examples


def commonest(examples: Sequence[Example], count: int, vocabulary: int) -> Int[Tensor, " K"]:
    """The ids that the backbone wrote or found most probable most often, in ascending order."""
    ids = torch.cat([torch.cat([example.tokens[example.start :], example.best]) for example in examples])
    return torch.bincount(ids, minlength=vocabulary).sort(descending=True, stable=True).indices[:count].sort().values


@dataclass(frozen=True)
class Batch:
    """Sequences as the drafter reads them.

    Args:
        tokens: token t + 1 for each entry t.
        features: row t of the taps.
        heads: row t + 1 as the backbone's head reads it.
        visible: entries that each entry attends to.
        counted: entries in the loss: the next token comes after the prompt, is not forced, and the most probable one
            is among the proposed ids.
    """

    tokens: Int[Tensor, "B N"]
    features: Float[Tensor, "B N J E"]
    heads: Float[Tensor, "B N E"]
    visible: Bool[Tensor, "B one N N"]
    counted: Bool[Tensor, "B N"]

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        return Batch(*(getattr(self, field.name).to(device) for field in fields(self)))


def collate(
    chosen: Sequence[Example], branches: Sequence[int], teacher: Teacher, proposed: Bool[Tensor, " V"] | None = None
) -> Batch:
    """One branch of each example.

    Of the prompt, the branch without the condition reads the last token alone, as in `FeatureCache`.
    """
    longest = max(len(example.tokens) for example in chosen) - 1
    width, taps = chosen[0].rows.shape[-1], max(1, chosen[0].rows.shape[2] - 1)
    tokens = torch.zeros(len(chosen), longest, dtype=torch.long)
    features, heads = torch.zeros(len(chosen), longest, taps, width), torch.zeros(len(chosen), longest, width)
    visible = torch.ones(len(chosen), 1, longest, longest, dtype=torch.bool).tril()
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
            visible[b, :, max(0, last) :, : max(0, last)] = False
        for place in _forced(teacher, count, example.start):
            counted[b, place] = False
    return Batch(tokens, features, heads, visible, counted)


def _forced(teacher: Teacher, count: int, start: int) -> list[int]:
    """Entries whose next token the grid forces, such as an end of a row."""
    grid = teacher.capabilities.grid
    if grid is None:
        return []
    return [t for t in range(max(0, start - 2), count) if grid.forced(grid.start + t + 2 - start) is not None]
