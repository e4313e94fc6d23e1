"""A drafter that fills a block of masks in one pass, reading hidden rows of the target; what is drawn from its rows.

The rows of a block see the context and each other, and nothing that is drawn in the block.
Symbols: B rows of a block, K drafts, V vocabulary, E width, r rank of the Markov head, q the drafter's distributions.
Sources: DFlash, arXiv:2602.06036, and z-lab/dflash, where row i predicts its own position; DSpark, arXiv:2607.05147,
and deepseek-ai/DeepSpec, where row i predicts the next one; DDTree, arXiv:2604.12989.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core import cache
from stridebench.harness.core.cache import Cache
from stridebench.harness.core.capabilities import Tap
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.method import Mutant
from stridebench.harness.core.run import Run
from stridebench.harness.core.session import Session
from stridebench.harness.errors import UsageError, WeightsError
from stridebench.methods.drafters.block_net import BlockCache, BlockDrafterNet, MarkovHead, read_shape
from stridebench.methods.drafters.checkpoint import check_shapes, check_target
from stridebench.methods.drafters.eagle.drafter import RankedTree, allowed, cell_mask, grow_best, rerank
from stridebench.methods.drafters.heads.drafter import wave

BLOCK_TAPS: tuple[Tap, ...] = (1, "middle", -2)
"""Layers of the target that a block drafter reads if its folder names none."""
TOY_BLOCK, TOY_RANK = 4, 2
"""Sizes of a toy's block drafter."""


def taps_of(features: str) -> tuple[Tap, ...]:
    """Return the target's layers that a drafter reads.

    A folder that cannot be read has `BLOCK_TAPS`; opening it says why.
    """
    try:
        return read_shape(Path(features).expanduser()).layers
    except WeightsError:
        return BLOCK_TAPS


class BlockRows(NamedTuple):
    """The rows of a block that draft; their logits are as the grid allows, and the anchor is the token before them."""

    logits: Float[Tensor, "K V"]
    hidden: Float[Tensor, "K E"]
    anchor: Int[Tensor, " one"]


@dataclass(frozen=True)
class BlockDrafter:
    """A block drafter on one prompt; it has read the prompt's rows, unless the prompt is one token.

    Args:
        block: B.
        mask: the id of masks.
        ahead: the anchor's row drafts too, since each row predicts the next position.
        markov: its head, or None if rows are drawn as they are.
        cells: added to the logits of cells, or None.
    """

    name: str
    block: int
    mask: int
    ahead: bool
    markov: MarkovHead | None = None
    cells: Float[Tensor, " V"] | None = field(default=None, compare=False)

    @classmethod
    def open(
        cls, run: Run, name: str, block: int = 0, *, markov: bool = False, confidence: bool = False
    ) -> BlockDrafter:
        """Open the drafter of this name.

        Args:
            block: rows of a block; 0: as many as it was trained with.
            markov: draw by its Markov head. A toy has one then; its rows predict the next position.
            confidence: ask its confidence head.

        Raises:
            WeightsError: it is not there, made for another backbone, or lacks a head.
            UsageError: more rows are asked for than it was trained with.
        """
        cells = cell_mask(run.capabilities, run.target.device)
        folder = run.component("drafter", name)
        if folder is None:
            head = _toy_head(run.capabilities.vocabulary, run.capabilities.width) if markov else None
            drafter = cls(name, block or TOY_BLOCK, 0, ahead=True, markov=head, cells=cells)
        else:
            net = _opened(folder, name, run)
            if markov and net.markov is None:
                raise WeightsError(f"{folder} has no Markov head, which dspark draws by; take dflash for it")
            if confidence and not net.shape.confidence:
                raise WeightsError(f"{folder} has no confidence head; take confidence=0")
            if block > net.shape.block:
                raise UsageError(
                    f"block is {block}, and {folder} was trained with {net.shape.block} rows; ask for no more"
                )
            head, shape = net.markov if markov else None, net.shape
            drafter = cls(name, block or shape.block, shape.mask, shape.ahead, head, cells)
        if len(run.target) > 1:
            session = drafter._session(run)
            session.prefill(run.target.hidden[: len(session) - 1])
        return drafter

    @property
    def corrections(self) -> MarkovHead:
        """Return the head that the drafter was opened with."""
        assert self.markov is not None, "opened with its Markov head"
        return self.markov

    def _session(self, run: Run) -> Session:
        def make() -> Cache:
            folder = run.component("drafter", self.name)
            assert folder is not None, "toys have other caches"
            return BlockCache(_opened(folder, self.name, run), run.tied_embeddings(), run.capabilities)

        return run.features(self.name, make)

    def rows(self, run: Run) -> BlockRows | None:
        """Run one pass over the new rows of the target and a block; None if nothing may be drafted."""
        if len(run.target) < 2:
            return None
        session = self._session(run)
        session.sync(run.target.tokens[1:])
        masks = min(self.block - 1, session.capabilities.context - len(session))
        drafts = min(masks + self.ahead, run.room - 1, run.space)
        if drafts < 1:
            return None
        features = run.target.hidden[session.cached : len(session)]
        padding = features.new_zeros(masks, *features.shape[1:])
        block = Draft(torch.full((masks,), self.mask, device=run.target.device))
        logits = session.forward(block, torch.cat([features, padding]))
        used, first = slice(1 - self.ahead, 1 - self.ahead + drafts), len(run.target)
        places = enumerate(torch.split(logits[used], 1))
        logits = torch.cat([allowed(row, run.capabilities, first + place, self.cells) for place, row in places])
        return BlockRows(logits, session.newest[used, 0, 0], run.last)


def _opened(folder: Path, name: str, run: Run) -> BlockDrafterNet:
    embed = run.tied_embeddings().embed
    net = _load(folder, embed.dtype, embed.device)
    check_target(net.shape, run)
    if not net.shape.fingerprint:
        check_shapes(folder, run, net.shape.width, net.shape.vocabulary)
    taps = cache.resolve(taps_of(name), run.capabilities)
    if taps != net.shape.layers:
        raise WeightsError(
            f"the drafter in {folder} reads the layers {net.shape.layers} of its target, and by its name it is given "
            f"{taps} of {run.backbone}. Give the folder as a path, then it is given those that it names"
        )
    return net


@lru_cache(maxsize=4)
def _load(folder: Path, dtype: torch.dtype, device: torch.device) -> BlockDrafterNet:
    return BlockDrafterNet.load(folder).to(device=device, dtype=dtype).packed()


@lru_cache(maxsize=8)
def _toy_head(vocabulary: int, width: int) -> MarkovHead:
    weight = wave(width + TOY_RANK)
    return MarkovHead(2 * wave(vocabulary, TOY_RANK), wave(vocabulary, TOY_RANK) + 0.5, weight, weight[:1])


# Drafts of a block's rows.


def draw_rows(run: Run, rows: BlockRows, *, greedy: bool = False) -> Draft:
    """Draw each row's token without looking at the others: q of a draft is its row's distribution.

    Args:
        greedy: take the most probable tokens, as point masses.
    """
    if greedy:
        return Draft(rows.logits.argmax(-1))
    q = run.probs(rows.logits)
    return Draft(run.draws.categorical(q, "draft"), q)


def draw_corrected(run: Run, rows: BlockRows, markov: MarkovHead, least: float = 0.0) -> Draft:
    """Draw the rows' tokens from left to right, each row corrected by the token before it.

    Args:
        least: the draft ends before the first row whose confidence is less. A row's confidence does not depend on its
            own draft, so the tokens that stay are draws from q.
    """
    x, tokens, probs = rows.anchor, list[Tensor](), list[Tensor]()
    for logits, hidden in zip(torch.split(rows.logits, 1), torch.split(rows.hidden, 1), strict=True):
        if least > 0 and bool(markov.confidence(hidden, x).sigmoid() < least):
            break
        q = run.probs(markov.corrected(logits, x))
        x = run.draws.categorical(q, "draft")
        tokens.append(x)
        probs.append(q)
    return Draft(torch.cat(tokens), torch.cat(probs)) if tokens else run.nothing


def best_tree(rows: BlockRows, nodes: int) -> RankedTree:
    """Return the most probable nodes of the tree in which every path draws its rows independently, as point masses.

    A best-first search with a heap takes the same nodes: a node is never more probable than its parent, and none of
    the best nodes hangs below one that is not.

    Source: DDTree, arXiv:2604.12989, Algorithm 1.
    """
    log_q = rows.logits.log_softmax(-1)
    level = iter(log_q[1:])
    candidates = grow_best(log_q[:1], lambda window: next(level).expand(len(window), -1), len(log_q), nodes)
    return rerank(candidates, nodes)


# Bugs to inject, which `stride verify` must catch.

MOST_PROBABLE_TOKENS = Mutant(
    f"{__name__}:draw_rows",
    'run.draws.categorical(q, "draft")',
    "q.argmax(-1)",
    "the most probable tokens are drafted and judged with the whole distribution, as in ds4",
)
DRAWN_IN_LESS_PRECISION = Mutant(
    f"{__name__}:draw_rows",
    'run.draws.categorical(q, "draft")',
    'run.draws.categorical(run.probs((rows.logits + 16).bfloat16().to(q.dtype)), "draft")',
    "drafts are drawn from the softmax of logits of about 16 in bf16 and judged in fp32, as in DeepSpec",
)
CORRECTION_NOT_RECORDED = Mutant(
    f"{__name__}:draw_corrected",
    "probs.append(q)",
    "probs.append(run.probs(logits))",
    "the recorded distribution is that of the row before its correction",
)
DROPPED_FOR_ITS_CONFIDENCE = Mutant(
    f"{__name__}:draw_corrected",
    "tokens.append(x)",
    "if least > 0 and bool(markov.confidence(hidden, x).sigmoid() < least): break\n        tokens.append(x)",
    "a drawn token is dropped because the confidence behind it is low",
)
