"""A feature drafter in training, and its data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.core.capabilities import Tap
from stridebench.harness.train.teacher import Passage, Teacher
from stridebench.methods.drafters.eagle.net import FeatureDrafterNet

# The data of a feature drafter: passages of its backbone and the backbone's hidden rows on them.
# Symbols: B sequences, N entries of the longest one, G branches of guidance, J tapped layers, E width. Entry t is
# the pair of token t + 1 and row t; it should predict row t + 1.


class Example(NamedTuple):
    """A passage of n tokens, on the CPU.

    Args:
        rows: hidden rows in bf16; the last of the J taps is the input of the backbone's head.
        best: the backbone's most probable token after each token.
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
class FeatureBatch:
    """Sequences as the drafter reads them.

    Args:
        tokens: token t + 1 for each entry t.
        heads: row t + 1 as the backbone's head reads it.
        counted: entries in the loss: the next token comes after the prompt, is not forced, and the most probable one
            is among the proposed ids.
    """

    tokens: Int[Tensor, "B N"]
    features: Float[Tensor, "B N J E"]
    heads: Float[Tensor, "B N E"]
    visible: Bool[Tensor, "B one N N"]
    counted: Bool[Tensor, "B N"]

    def to(self, device: torch.device) -> FeatureBatch:
        """The same on a device."""
        return FeatureBatch(*(getattr(self, field.name).to(device) for field in fields(self)))


def collate(
    chosen: Sequence[Example], branches: Sequence[int], teacher: Teacher, proposed: Bool[Tensor, " V"] | None = None
) -> FeatureBatch:
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
    return FeatureBatch(tokens, features, heads, visible, counted)


def _forced(teacher: Teacher, count: int, start: int) -> list[int]:
    """Entries whose next token the grid forces, such as an end of a row."""
    grid = teacher.capabilities.grid
    if grid is None:
        return []
    return [t for t in range(max(0, start - 2), count) if grid.forced(grid.start + t + 2 - start) is not None]


@dataclass(frozen=True)
class Lessons:
    """The data of a student: the backbone, its tied embeddings in fp32, and examples of both sides."""

    teacher: Teacher
    embed: Float[Tensor, "V E"]
    unembed: Float[Tensor, "V F"]
    train: list[Example]
    development: list[Example]
    lift: Callable[[Tensor], Tensor] | None = None


class FeatureStudent(nn.Module):
    """The net; its lessons are kept out of its weights.

    Attributes:
        ids: the K ids whose probabilities are compared, on the CPU: those that the net proposes, else those that a cell
            of the grid may take, else all.
        proposed: marks the proposed ids among V, or None if the net proposes all.
        mask: embedding [E] of the net's masks, or None if it has none.
    """

    def __init__(self, net: FeatureDrafterNet, lessons: Lessons) -> None:
        super().__init__()
        self.net = net
        self.lessons = lessons
        vocabulary, grid = len(lessons.unembed), lessons.teacher.capabilities.grid
        cells = range(vocabulary) if grid is None or grid.ids is None else grid.ids
        own = len(net.ids) > 0
        self.ids: Int[Tensor, " K"] = net.ids.cpu().clone() if own else torch.tensor(list(cells))
        self.proposed: Bool[Tensor, " V"] | None = None
        if own:
            self.proposed = torch.zeros(vocabulary, dtype=torch.bool).index_fill(0, self.ids, True)
        self._rows = (lessons.unembed[self.ids.to(lessons.unembed.device)],)
        self.mask = lessons.embed[net.shape.mask] if net.shape.mask >= 0 else None

    @property
    def device(self) -> torch.device:
        """Return the device of the net and of the backbone's embeddings."""
        return self._rows[0].device

    def target_logits(self, heads: Float[Tensor, "n E"]) -> Float[Tensor, "n K"]:
        """The backbone's logits of the compared ids."""
        return functional.linear(self._lifted(heads), self._rows[0]).float()

    def draft_logits(
        self, features: Float[Tensor, "n E"], net: FeatureDrafterNet | None = None
    ) -> Float[Tensor, "n K"]:
        """The drafter's logits of the compared ids; ``net``: another net of the same shape."""
        chosen = self.net if net is None else net
        if chosen.shape.kind == "eagle3":  # its own head, which needs nothing of the backbone's
            return chosen.headed(features[None])[0].float()
        return chosen.logits(self._lifted(features)[None], self._rows[0])[0].float()

    def _lifted(self, rows: Float[Tensor, "n E"]) -> Float[Tensor, "n F"]:
        return rows if self.lessons.lift is None else self.lessons.lift(rows)


# Training-time test: a feature drafter reads the features that it predicted, as it does in a tree.
# Symbols: B sequences, N entries, H heads, D their width, E width. In round i entry t reads token t + 1 + i and the
# output of round i - 1, and predicts row t + 1 + i. It attends to the true pairs up to t, and to its own pairs of
# earlier rounds. Source: EAGLE-3, arXiv:2503.01840, section 3.2; one round is EAGLE-1's training. P-EAGLE's
# (arXiv:2602.01469) reads a mask from round 1 on; it draws fewer entries of later rounds to save memory, and here all
# entries of the short passages are kept.


def unroll(
    net: FeatureDrafterNet,
    tokens: Float[Tensor, "B N E"],
    features: Float[Tensor, "B N J E"],
    visible: Bool[Tensor, "B one N N"],
    rounds: int,
    mask: Float[Tensor, " E"] | None = None,
) -> list[Float[Tensor, "B N E"]]:
    """Return the output of each round. The last i entries of round i are meaningless.

    Args:
        tokens: embeddings of token t + 1.
        mask: embedding of the masks of a net that has some.
    """
    memory, outputs = _RoundKV(visible), []
    places = torch.arange(tokens.shape[1], device=tokens.device)
    for i in range(rounds):
        output = net(tokens.roll(-i, 1), features, places + i, memory)
        outputs.append(output)
        features = output[:, :, None]
        if mask is not None:
            tokens, features = mask.expand_as(tokens), net.mask_hidden.expand(*tokens.shape[:2], -1, -1)
    return outputs


class _RoundKV:
    """Keys and values of all rounds so far, by layer; a call is the attention of a layer's next round."""

    def __init__(self, visible: Bool[Tensor, "B one N N"]) -> None:
        self._hidden = ~visible
        self._rounds: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor, layer: int = 0) -> Float[Tensor, "B H N D"]:
        share, count = query.shape[1] // keys.shape[1], query.shape[2]
        rounds = self._rounds.setdefault(layer, [])
        rounds.append((keys.repeat_interleave(share, 1), values.repeat_interleave(share, 1)))
        (first, true), *own = rounds
        scores = [(query @ first.transpose(2, 3)).masked_fill(self._hidden, float("-inf"))]
        scores += [(query * key).sum(-1, keepdim=True) for key, _ in own]
        weights = (torch.cat(scores, -1).float() * query.shape[-1] ** -0.5).softmax(-1).to(query.dtype)
        out: Tensor = weights[..., :count] @ true
        for place, (_, value) in enumerate(own):
            out = out + weights[..., count + place, None] * value
        return out
