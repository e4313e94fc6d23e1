"""Block drafters: `stride train drafter dflash-embedded-code` and its relatives.

The drafter learns from the backbone's own texts. Anchors are drawn in each passage; the rows of an anchor's block read
the context before it and each other. Row d of those that draft should be the backbone's distribution d tokens behind
the anchor, given the text up to there; a Markov head or a candidate selector reads the text's token before.
Symbols: A anchors, B rows of a block, K of them that draft, M tokens of the passages of a step, J tapped layers, E
width, V compared ids.
Sources: DFlash, arXiv:2602.06036: cross-entropy with weight exp(-(d - 1) / 4); DSpark, arXiv:2607.05147: 0.1
cross-entropy + 0.9 L1 of the distributions + the cross-entropy of the confidence with the acceptance 1 - L1 / 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.core.cache import resolve
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import GENERAL_RECIPES
from stridebench.harness.train.passages import AnyPlan, PassagePlan, passages_of
from stridebench.harness.train.recipe import Recipe, autocast, round_to_bf16, save_bf16
from stridebench.methods.drafters.block_net import BlockDrafterNet, CandidateSelector, MarkovHead
from stridebench.methods.drafters.block_shape import BlockDrafterShape
from stridebench.methods.drafters.blocks import BLOCK_TAPS
from stridebench.methods.training.eagle.recipes import shuffled
from stridebench.methods.training.eagle.student import Example, Lessons, examples

EVERY = 8
"""Tokens between the anchors of the figures."""
MOST = 64
"""Passages of the figures."""
CONVOLVED, GROUPED = 2, 16
"""Of the published DFlash2: rows that a convolution reads, and neighbouring numbers that share what a row adds."""


class Blocks(NamedTuple):
    """The blocks of some passages, which lie one behind the other.

    Args:
        rows: ids of the rows, masks included.
        visible: what each row attends to: its passage before the anchor, and its block.
        before, after: of each row that drafts, the text's token before it and the one that it drafts.
        heads: rows of the backbone's head that give the distribution of that one, by branch of guidance.
        counted: rows whose token lies in the passage and is not forced.
    """

    features: Float[Tensor, "M JE"]
    places: Int[Tensor, " M"]
    rows: Int[Tensor, "A B"]
    positions: Int[Tensor, " AB"]
    visible: Bool[Tensor, "AB S"]
    before: Int[Tensor, "A K"]
    after: Int[Tensor, "A K"]
    heads: Float[Tensor, "A K G E"]
    counted: Bool[Tensor, "A K"]


class BlockStudent(nn.Module):
    """The net; its lessons are kept out of its weights."""

    def __init__(self, net: BlockDrafterNet, lessons: Lessons) -> None:
        super().__init__()
        self.net, self.lessons = net, lessons

    def blocks(self, chosen: Sequence[Example], anchors: Sequence[Sequence[int]]) -> Blocks:
        """Return the blocks at these anchors of each example, on the student's device.

        An anchor has a token before it and one behind it.
        """
        shape, lengths = self.net.shape, [len(example.tokens) for example in chosen]
        first = [sum(lengths[:number]) for number in range(len(chosen))]
        owner = torch.tensor([number for number, own in enumerate(anchors) for _ in own])
        anchor, start = torch.tensor([place for own in anchors for place in own]), torch.tensor(first)[owner]
        tokens = torch.cat([example.tokens for example in chosen])
        hidden = torch.cat([example.rows for example in chosen])
        steps = torch.arange(shape.block)
        drafted = anchor[:, None] + steps[1 - shape.ahead :] + shape.ahead
        counted = (drafted < torch.tensor(lengths)[owner][:, None]) & ~self._forced(chosen, owner, drafted)
        target = (start[:, None] + drafted).clamp_max(len(tokens) - 1)
        rows = torch.where(steps > 0, shape.mask, tokens[start + anchor][:, None])
        places = torch.cat([torch.arange(length) for length in lengths])
        passage = torch.arange(len(chosen)).repeat_interleave(torch.tensor(lengths))
        of_context = (passage == owner[:, None]) & (places < anchor[:, None])
        of_block = torch.eye(len(anchor), dtype=torch.bool).repeat_interleave(shape.block, 1)
        blocks = Blocks(
            hidden[:, 0, :-1].flatten(1).float(),
            places,
            rows,
            (anchor[:, None] + steps).flatten(),
            torch.cat([of_context, of_block], 1).repeat_interleave(shape.block, 0),
            tokens[target - 1],
            tokens[target],
            hidden[target - 1, :, -1].float(),
            counted,
        )
        return Blocks(*(part.to(self.lessons.embed.device) for part in blocks))

    def _forced(
        self, chosen: Sequence[Example], owner: Int[Tensor, " A"], drafted: Int[Tensor, "A K"]
    ) -> Bool[Tensor, "A K"]:
        grid = self.lessons.teacher.capabilities.grid
        if grid is None:
            return torch.zeros_like(drafted, dtype=torch.bool)
        offsets = drafted + grid.start - torch.tensor([example.start for example in chosen])[owner][:, None]
        return torch.tensor([[grid.forced(place) is not None for place in row] for row in offsets.tolist()])

    def hidden(self, blocks: Blocks, net: BlockDrafterNet) -> Float[Tensor, "A K E"]:
        """Return the net's vectors of the rows that draft."""
        context = net.context(blocks.features[None])
        x = functional.embedding(blocks.rows.flatten(), self.lessons.embed)[None]
        for layer in net.decoder:
            keys, values = layer.keys_values(context, blocks.places)
            x = layer(x, blocks.positions, keys, values, blocks.visible)
        return net.norm(x)[0].view(*blocks.rows.shape, -1)[:, 1 - net.shape.ahead :]  # type: ignore[no-any-return]

    def target_logits(self, heads: Float[Tensor, "*n G E"]) -> Float[Tensor, "*n V"]:
        """Return the backbone's logits, guided if it is."""
        logits = self._unembedded(heads)
        scale = self.lessons.teacher.capabilities.guidance
        return logits[..., 0, :] if logits.shape[-2] == 1 else torch.lerp(logits[..., 1, :], logits[..., 0, :], scale)

    def draft_logits(
        self, hidden: Float[Tensor, "*n E"], before: Int[Tensor, "*n"], net: BlockDrafterNet, *, learns: bool = False
    ) -> Float[Tensor, "*n V"]:
        """Return the drafter's logits behind the tokens ``before``.

        Args:
            learns: a candidate selector is asked for all tokens, as the text's may be no candidate.
        """
        logits, head = self._unembedded(hidden), net.correction
        if learns and isinstance(head, CandidateSelector):
            head = replace(head, candidates=logits.shape[-1])
        return logits if head is None else head.corrected(logits, hidden, before)

    def _unembedded(self, rows: Float[Tensor, "*n E"]) -> Float[Tensor, "*n V"]:
        lift, grid = self.lessons.lift, self.lessons.teacher.capabilities.grid
        logits = functional.linear(rows if lift is None else lift(rows), self.lessons.unembed).float()
        if grid is None or grid.ids is None:
            return logits
        cells = torch.tensor(list(grid.ids), device=logits.device)
        return torch.full_like(logits, -1e9).index_copy(-1, cells, logits[..., cells])


# How well a block drafter predicts its backbone.


@torch.no_grad()
def block_figures(student: BlockStudent) -> dict[str, float]:
    """Return figures on held-out passages, with an anchor every eight tokens.

    - ``accepted_d``: the sum of min(p, q) at temperature 1, d tokens behind the anchor, given the text up to there.
    - ``top1_d``: how often the backbone's best token is the drafter's.
    - ``_rows``: the same of the rows without the head that corrects them.
    - ``_untrained``, ``_shuffled``: the same of a new drafter, and of one whose matrices have their entries in another
      order; at d = 1 alone.
    - ``confidence_error``: the mean distance of the confidence from min(p, q); ``confidence_mean``: that of the mean.
    """
    shape = student.net.shape
    shares = _measured(student, student.net)
    if student.net.correction is not None:
        rows_alone = BlockDrafterNet(replace(shape, rank=0, confidence="", selector=0)).to(student.lessons.embed.device)
        rows_alone.load_state_dict(student.net.state_dict(), strict=False)
        shares |= {f"{key}_rows": value for key, value in _measured(student, rows_alone).items()}
    controls = {"untrained": BlockDrafterNet(shape).to(student.lessons.embed.device), "shuffled": shuffled(student.net)}
    for name, net in controls.items():
        own = _measured(student, net)
        shares |= {f"{key}_{name}": own[key] for key in ("accepted_1", "top1_1")}
    return shares


def _measured(student: BlockStudent, net: BlockDrafterNet) -> dict[str, float]:
    sums: dict[str, Tensor] = {}
    for example in student.lessons.development[:MOST]:
        places = range(max(1, example.start - 1), len(example.tokens) - 1, EVERY)
        if not places:
            continue
        blocks = student.blocks([example], [places])
        hidden, counted = student.hidden(blocks, net), blocks.counted.float()
        p = student.target_logits(blocks.heads).softmax(-1)
        q = student.draft_logits(hidden, blocks.before, net).softmax(-1)
        accepted = torch.minimum(p, q).sum(-1)
        values = {"counted": counted, "accepted": accepted, "top1": (p.argmax(-1) == q.argmax(-1)).float()}
        if isinstance(net.correction, MarkovHead) and net.shape.confidence:
            error = net.correction.confidence(hidden, blocks.before).sigmoid() - accepted
            values |= {"confidence_error": error.abs(), "confidence_mean": error}
        for key, value in values.items():
            sums[key] = sums.get(key, torch.zeros(counted.shape[1])) + (value * counted).sum(0).cpu()
    total = sums.pop("counted")
    whole = {key: float(abs(sums.pop(key).sum() / total.sum())) for key in list(sums) if key.startswith("confidence")}
    return whole | {f"{key}_{d + 1}": float(row[d] / total[d]) for key, row in sums.items() for d in range(len(total))}


@dataclass(frozen=True, kw_only=True)
class BlockRecipe(Recipe):
    """A block drafter for one backbone, trained on texts that the backbone wrote.

    Args:
        block: B.
        depth: its layers.
        heads, kv_heads: of its attention; 0: of 64 numbers each, or as few as fit; and as many.
        inner: width of the gated product; 0: 8 thirds of the backbone's width.
        ahead: the anchor's row drafts too (DSpark).
        rank: r of the Markov head; 0: none.
        confidence: it has a confidence head.
        selector: rank of a candidate selector; the layers have convolutions then (DFlash2). 0: neither.
        anchors: drawn in each passage of a step.
        rows: passages of a step.
        classify, agree: weights of the cross-entropy with the text and of the L1 distance of the distributions.
        fading: tokens behind the anchor over which the weight of a row falls to 1 / e.
    """

    summary: str
    backbone: str
    plan: PassagePlan | AnyPlan
    block: int = 8
    depth: int = 2
    heads: int = 0
    kv_heads: int = 0
    inner: int = 0
    theta: float = 10000.0
    ahead: bool = False
    rank: int = 0
    confidence: bool = False
    selector: int = 0
    anchors: int = 16
    rows: int = 8
    classify: float = 1.0
    agree: float = 0.0
    fading: float = 4.0
    device: str = "cpu"
    steps: int = 1200
    hours: float = 0.6
    rate: float = 1e-3
    warmup: int = 50

    kind = "drafter"
    source = "passages that the backbone wrote itself (see harness/train/passages.py)"
    betas = (0.9, 0.95)
    decay = 0.0
    fall = 0.8

    def build(self, requirements: Mapping[str, Path]) -> BlockStudent:
        """Return a student. Generates the passages first if the cache holds none.

        Raises:
            UsageError: these settings make no drafter that can be loaded.
        """
        if self.depth < 1 or self.block < 2 - self.ahead:
            raise UsageError(f"block is {self.block} and depth {self.depth}; give 2 rows and a layer or more")
        if bool(self.rank) != self.ahead or (self.confidence and not self.rank) or (self.selector and self.ahead):
            raise UsageError("rank and confidence are settings of dspark, which needs a rank, and selector of dflash2")
        passages = passages_of(self.backbone, self.plan)
        teacher = passages.teacher
        train, development = (examples(teacher, side, BLOCK_TAPS) for side in (passages.train, passages.development))
        tied = teacher.backbone.tied_embeddings()
        lessons = Lessons(teacher, tied.embed.float(), tied.unembed.float(), train, development, tied.lift)
        width = teacher.capabilities.width
        heads = self.heads or next(n for n in range(max(1, width // 64), width) if width % (2 * n) == 0)
        seen = torch.bincount(torch.cat([example.tokens for example in train]), minlength=len(tied.embed))
        shape = BlockDrafterShape(
            width,
            heads,
            self.kv_heads or heads,
            width // heads,
            self.inner or 8 * width // 3,
            self.depth,
            resolve(BLOCK_TAPS, teacher.capabilities),
            self.block,
            int(seen[: teacher.capabilities.vocabulary].argmin()),
            teacher.capabilities.vocabulary,
            self.ahead,
            self.rank,
            "markov" if self.confidence else "",
            theta=self.theta,
            convolved=CONVOLVED if self.selector else 0,
            grouped=math.gcd(GROUPED, width),
            selector=self.selector,
            backbone=self.backbone,
            fingerprint=teacher.backbone.fingerprint,
        )
        return BlockStudent(BlockDrafterNet(shape), lessons)

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        student = cast(BlockStudent, model)
        train, net = student.lessons.train, student.net
        chosen = [train[i] for i in random.choice(len(train), min(self.rows, len(train)), replace=False)]
        blocks = student.blocks(chosen, [self._anchors(example, random) for example in chosen])
        with autocast(device=student.lessons.embed.device.type):
            hidden = student.hidden(blocks, net)
        hidden = hidden.float()
        p = student.target_logits(blocks.heads).softmax(-1)
        log_q = student.draft_logits(hidden, blocks.before, net, learns=True).log_softmax(-1)
        distance = (log_q.exp() - p).abs().sum(-1)
        terms = self.agree * distance
        if self.classify:
            terms = terms - self.classify * log_q.gather(-1, blocks.after[..., None])[..., 0]
        if isinstance(net.correction, MarkovHead) and self.confidence:
            confidence = net.correction.confidence(hidden, blocks.before)
            terms = terms + functional.binary_cross_entropy_with_logits(
                confidence, (1 - distance / 2).detach().clamp(0, 1), reduction="none"
            )
        weight = torch.exp(-torch.arange(terms.shape[1], device=terms.device) / self.fading) * blocks.counted
        return (weight * terms).sum() / weight.sum().clamp_min(1e-6)

    def _anchors(self, example: Example, random: np.random.Generator) -> list[int]:
        places = np.arange(min(max(1, example.start - 1), len(example.tokens) - 2), len(example.tokens) - 1)
        return sorted(random.choice(places, min(self.anchors, len(places)), replace=False).tolist())

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Figures on passages of held-out prompts, and those of controls; see `block_figures`."""
        return {key: value for key, value in block_figures(cast(BlockStudent, model)).items() if math.isfinite(value)}

    def export(self, model: nn.Module, folder: Path) -> None:
        net = cast(BlockStudent, model).net
        round_to_bf16(net.parameters())
        save_bf16(net, folder)
        net.shape.write(folder)


ANY = BlockRecipe(summary="DFlash drafter of any backbone with hidden rows", backbone="", plan=PassagePlan("text"))
GENERAL_RECIPES.register("dflash")(ANY)
GENERAL_RECIPES.register("dspark")(
    replace(
        ANY,
        summary="DSpark drafter of any backbone with hidden rows",
        block=7,
        ahead=True,
        rank=32,
        confidence=True,
        classify=0.1,
        agree=0.9,
    )
)
GENERAL_RECIPES.register("dflash2")(
    replace(ANY, summary="DFlash2 drafter of any backbone with hidden rows", selector=32, classify=0.1, agree=0.9)
)
