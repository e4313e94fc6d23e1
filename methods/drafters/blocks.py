"""Blocks of masks that one pass fills: by a drafter that reads hidden rows of the target, or by the target itself.

The rows of a block see the context and each other, and nothing that is drawn in the same pass.
Symbols: B rows of a block, K drafts or masks, M masks that are left, V vocabulary, E width, r rank of the Markov head,
q the drafter's distributions.
Sources: DFlash, arXiv:2602.06036, and z-lab/dflash with DFlash2, where row i predicts its own position; DSpark,
arXiv:2607.05147, and deepseek-ai/DeepSpec, where row i predicts the next one; DDTree, arXiv:2604.12989.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
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
from stridebench.harness.core.sampling import Sampling, warp
from stridebench.harness.core.session import Session
from stridebench.harness.errors import UsageError, WeightsError
from stridebench.methods.drafters.block_net import BlockCache, BlockDrafterNet, CandidateSelector, MarkovHead
from stridebench.methods.drafters.block_shape import read_shape
from stridebench.methods.drafters.checkpoint import check_shapes, check_target
from stridebench.methods.drafters.eagle.drafter import RankedTree, allowed, cell_mask, grow_best, rerank
from stridebench.methods.drafters.heads.drafter import wave

BLOCK_TAPS: tuple[Tap, ...] = (1, "middle", -2)
"""Layers of the target that a block drafter reads if its folder names none."""
TOY_BLOCK, TOY_RANK, TOY_CANDIDATES = 4, 2, 2
"""Sizes of a toy's block drafter."""
HEADS = {"markov": (MarkovHead, "Markov head"), "selector": (CandidateSelector, "candidate selector")}
"""Heads that correct rows, by name: the class, and what messages call it."""


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
        correction: the head that corrects its rows, or None if they are drawn as they are.
        cells: added to the logits of cells, or None.
    """

    name: str
    block: int
    mask: int
    ahead: bool
    correction: MarkovHead | CandidateSelector | None = None
    cells: Float[Tensor, " V"] | None = field(default=None, compare=False)

    @classmethod
    def open(cls, run: Run, name: str, block: int = 0, *, head: str = "", confidence: bool = False) -> BlockDrafter:
        """Open the drafter of this name.

        Args:
            block: rows of a block; 0: as many as it was trained with.
            head: of `HEADS`, to draw by. A toy has it then; its rows predict the next position.
            confidence: ask its confidence head.

        Raises:
            WeightsError: it is not there, made for another backbone, or lacks a head.
            UsageError: more rows are asked for than it was trained with.
        """
        cells = cell_mask(run.capabilities, run.target.device)
        folder = run.component("drafter", name)
        if folder is None:
            own = _toy_head(head, run.capabilities.vocabulary, run.capabilities.width) if head else None
            drafter = cls(name, block or TOY_BLOCK, 0, ahead=True, correction=own, cells=cells)
        else:
            net = _opened(folder, name, run)
            if head and not isinstance(net.correction, HEADS[head][0]):
                raise WeightsError(f"{folder} has no {HEADS[head][1]}, by which rows are drawn; take dflash for it")
            if confidence and not net.shape.confidence:
                raise WeightsError(f"{folder} has no confidence head; take confidence=0")
            if block > net.shape.block:
                raise UsageError(
                    f"block is {block}, and {folder} was trained with {net.shape.block} rows; ask for no more"
                )
            own, shape = net.correction if head else None, net.shape
            drafter = cls(name, block or shape.block, shape.mask, shape.ahead, own, cells)
        if len(run.target) > 1:
            session = drafter._session(run)
            session.prefill(run.target.hidden[: len(session) - 1])
        return drafter

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
def _toy_head(head: str, vocabulary: int, width: int) -> MarkovHead | CandidateSelector:
    before, after = 2 * wave(vocabulary, TOY_RANK), wave(vocabulary, TOY_RANK) + 0.5
    if head == "selector":
        return CandidateSelector(before, after, wave(TOY_RANK, width), TOY_CANDIDATES)
    weight = wave(width + TOY_RANK)
    return MarkovHead(before, after, weight, weight[:1])


# Drafts of a block's rows.


def draw_rows(run: Run, logits: Float[Tensor, "K V"], *, greedy: bool = False) -> Draft:
    """Draw each row's token without looking at the others: q of a draft is its row's distribution.

    Args:
        greedy: take the most probable tokens, as point masses.
    """
    if greedy:
        return Draft(logits.argmax(-1))
    q = run.probs(logits)
    return Draft(run.draws.categorical(q, "draft"), q)


def draw_corrected(run: Run, state: BlockDrafter, rows: BlockRows, least: float = 0.0) -> Draft:
    """Draw the rows' tokens from left to right, each row corrected by the token before it.

    Args:
        state: opened with a head.
        least: the draft ends before the first row whose confidence is less. A row's confidence does not depend on its
            own draft, so the tokens that stay are draws from q.
    """
    x, head, tokens, probs = rows.anchor, state.correction, list[Tensor](), list[Tensor]()
    assert head is not None, "opened with a head"
    for logits, hidden in zip(torch.split(rows.logits, 1), torch.split(rows.hidden, 1), strict=True):
        if least > 0 and isinstance(head, MarkovHead) and bool(head.confidence(hidden, x).sigmoid() < least):
            break
        q = run.probs(head.corrected(logits, hidden, x))
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


# A block that the target fills itself, behind the last emitted token.


RULES = {"threshold": 0.9, "factor": 1.0, "entropy": 0.15, "static": 1.0, "joint": 0.5}
"""Rules of how many positions a pass fills, and the number of each unless it is given, as in ``threshold:0.8``."""


def rule_of(rule: str) -> tuple[str, float] | None:
    """Return the name and the number of a rule such as ``threshold:0.8``, or None if it is none of `RULES`."""
    name, _, number = rule.partition(":")
    try:
        bound = float(number or RULES[name])
    except (KeyError, ValueError):
        return None
    allowed = bound >= 1 and bound % 1 == 0 if name == "static" else bound >= 0
    return (name, bound) if name in RULES and allowed else None


def sums_before(entropies: Float[Tensor, " M"]) -> Float[Tensor, " M"]:
    """Return the sum of the entropies before each of them."""
    return torch.cat([entropies.new_zeros(1), entropies.cumsum(0)[:-1]])  # not the sum less the last one, which rounds


def filled_by_rule(rule: str, bound: float, confidences: Float[Tensor, " M"]) -> int:
    """Return how many of the most confident positions a rule fills: one at least.

    Args:
        bound: tau, f, gamma or k.
        confidences: in falling order; of `entropy` the negative entropies.

    Returns:
        threshold, joint: those of at least tau. factor: the largest n with (n + 1) (1 - c_n) < f. entropy: those before
        which the entropies sum to no more than gamma. static: k.
    """
    places = torch.arange(1, 1 + len(confidences), device=confidences.device)
    if rule in ("threshold", "joint"):
        sure = confidences >= bound
    elif rule == "static":
        sure = places <= bound
    elif rule == "factor":
        sure = (places + 1) * (1 - confidences) < bound  # which no later place fulfils, since the confidences fall
    else:
        sure = sums_before(-confidences) <= bound
    return max(1, int(sure.sum()))


def masks_left(run: Run, block: int) -> int:
    """Return how many masks of a block of B rows are read: B - 1, or fewer if the budget or the context ends.

    Raises:
        UsageError: the target has no mask for blocks.
    """
    if run.capabilities.block_mask is None:
        raise UsageError(f"{run.backbone} fills no blocks of masks; take a model that meets BOTH_MASKS")
    return max(0, min(block - 1, run.room - 1, run.space))


def read_masks(run: Run, masks: int, filled: Mapping[int, int] = MappingProxyType({})) -> Float[Tensor, "M V"]:
    """Return the logits of the masks that are left, from a pass in which they see the last emitted token and the block.

    Args:
        masks: K.
        filled: tokens of some of them, by their place in the block.
    """
    mask = run.capabilities.block_mask
    ids = torch.tensor([filled.get(place, mask) for place in range(masks)], device=run.target.device)
    left = [1 + place for place in range(masks) if place not in filled]
    return run.target.forward(Draft(ids), mutual=True)[left]


def fill_masks(run: Run, masks: int, rule: str, bound: float, *, greedy: bool = False) -> Int[Tensor, " K"]:
    """Fill K masks in as many passes as a rule takes; each pass reads the device.

    Args:
        rule: one of `RULES` with its ``bound``. The most confident positions are filled first: by `entropy` those of
            least entropy, else those whose token has the highest probability.
        greedy: fill in the most probable tokens, at every temperature.
    """
    filled: dict[int, int] = {}
    while len(filled) < masks:
        left = [place for place in range(masks) if place not in filled]
        logits = read_masks(run, masks, filled)
        p = run.probs(logits)
        x = p.argmax(1) if greedy else run.draws.categorical(p, "draft")
        plain = logits.double().softmax(1)
        warped = p if run.sampling.temperature > 0 else warp(logits, Sampling(1.0))
        sure = -torch.special.entr(warped).sum(1) if rule == "entropy" else plain.gather(1, x[:, None])[:, 0]
        ranked = sure.sort(descending=True, stable=True)
        chosen = ranked.indices[: filled_by_rule(rule, bound, ranked.values)].tolist()
        tokens = x.tolist()
        filled |= {left[index]: tokens[index] for index in chosen}
    return torch.tensor([filled[place] for place in range(masks)], dtype=torch.long, device=run.target.device)


# Bugs to inject, which `stride verify` must catch.

FAILED_ONE_FILLED_TOO = Mutant(
    f"{__name__}:filled_by_rule",
    "return max(1, int(sure.sum()))",
    "return min(len(sure), int(sure.sum()) + 1)",
    "commit_first_failure: the first position that the rule refuses is filled too (dInfer)",
)
DRAFT_ENTRIES_STAY = Mutant(
    "stridebench.harness.core.session:Session._extend",
    "if self._held > start:",
    "if self._held > start and (not rows or sees is not None):",
    "entries of the pass that drafts stay in the cache, and the causal pass behind it sees them",
)
MOST_PROBABLE_TOKENS = Mutant(
    f"{__name__}:draw_rows",
    'run.draws.categorical(q, "draft")',
    "q.argmax(-1)",
    "the most probable tokens are drafted and judged with the whole distribution, as in ds4",
)
DRAWN_IN_LESS_PRECISION = Mutant(
    f"{__name__}:draw_rows",
    'run.draws.categorical(q, "draft")',
    'run.draws.categorical(run.probs((logits + 16).bfloat16().to(q.dtype)), "draft")',
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
    "if least > 0 and bool(head.confidence(hidden, x).sigmoid() < least): break\n        tokens.append(x)",
    "a drawn token is dropped because the confidence behind it is low",
)
