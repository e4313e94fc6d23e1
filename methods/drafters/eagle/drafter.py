"""A drafter that reads the target's hidden rows with its tokens and predicts the next rows; trees by its confidence.

Symbols: f the target's hidden rows, q the drafter's distributions, n nodes of a level of a tree, V vocabulary.
Sources: EAGLE-1, arXiv:2401.15077; EAGLE-2, arXiv:2406.16858, section 4; EAGLE-3, arXiv:2503.01840; P-EAGLE,
arXiv:2602.01469, whose one pass over the new rows and masks behind them gives the logits of all levels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core import cache
from stridebench.harness.core.capabilities import Capabilities, Requirement
from stridebench.harness.core.costs import TreeSize, TreeSizer
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.core.session import Session
from stridebench.harness.errors import UsageError, WeightsError
from stridebench.methods.drafters.checkpoint import check_shapes, check_target
from stridebench.methods.drafters.eagle.net import FeatureCache, FeatureDrafterNet, taps_of
from stridebench.methods.drafters.eagle.published import Kind
from stridebench.methods.verifiers.tree import POINT_MASSES


@dataclass(frozen=True)
class FeatureDrafter:
    """Reads each committed pair (token i + 1, f_i) once; rows of a tree are discarded after their step.

    Args:
        negative: tokens of that of the branch without the condition.
        cell_mask: added to the logits of cells.
        masks: ids of the masks of a pass, of P-EAGLE.
    """

    name: str
    kind: Kind
    prompt: int
    negative: int
    cell_mask: Float[Tensor, " V"] | None = field(compare=False)
    masks: tuple[int, ...] = ()

    @classmethod
    def open(cls, run: Run, name: str, kind: Kind, masks: int = 0) -> FeatureDrafter:
        """Open the drafter of this name. It reads the prompt here, unless that is one token, which makes no pair.

        Args:
            masks: of a pass.
        """
        mask = cell_mask(run.capabilities, run.target.device)
        drafter = cls(name, kind, len(run.target), run.models.negative_length, mask)
        if masks:
            of_toys = run.component("drafter", name) is None
            drafter = replace(drafter, masks=(0 if of_toys else drafter._net(run).shape.mask,) * masks)
        if len(run.target) > 1:
            session = run.features(name, lambda: drafter._cache(run))
            session.prefill(run.target.hidden[: len(session) - 1])
        return drafter

    def _net(self, run: Run) -> FeatureDrafterNet:
        folder = run.component("drafter", self.name)
        assert folder is not None, "toys have other caches"
        embed = run.tied_embeddings().embed
        net = _load(folder, embed.dtype, embed.device)
        check_target(net.shape, run)
        if self.kind not in net.shape.serves:
            kinds = " and ".join(net.shape.serves)
            raise WeightsError(f"{folder} holds a drafter of kind {kinds}, and this method reads {self.kind}")
        if not net.shape.fingerprint:
            _check_published(folder, net, run, cache.resolve(taps_of(self.name), run.capabilities))
        return net

    def _cache(self, run: Run) -> FeatureCache:
        return FeatureCache(self._net(run), run.tied_embeddings(), run.capabilities, self.prompt, self.negative)

    def root(self, run: Run) -> Reader | None:
        """Run a pass over the new pairs and the masks; returns None if there is no pair yet."""
        if len(run.target) < 2:
            return None
        session = run.features(self.name, lambda: self._cache(run))
        session.sync(run.target.tokens[1:])
        features = run.target.hidden[session.cached : len(session)]
        if not self.masks:
            return Reader(run, session, session.forward(features=features), self.cell_mask)
        masks = self.masks[: session.capabilities.context - len(session)]
        block = Draft(torch.tensor(masks, dtype=torch.long, device=run.target.device))
        padding = features.new_zeros(len(masks), *features.shape[1:])
        return Reader(run, session, session.forward(block, torch.cat([features, padding])), self.cell_mask)


class Reader:
    """One step's passes of a drafter, level by level.

    Attributes:
        first: logits [1, V] after the last emitted token.
        space: nodes that the drafter has room for.
    """

    def __init__(self, run: Run, session: Session, logits: Float[Tensor, "n V"], cell_mask: Tensor | None) -> None:
        self._session, self._capabilities, self._cell_mask = session, run.capabilities, cell_mask
        self._position = len(run.target)
        self._rows = session.newest
        self._ahead = iter(torch.split(logits[1:], 1)) if len(logits) > 1 else None
        self.space = session.capabilities.context - len(session) if self._ahead is None else len(logits)
        self.first = self._allowed(logits[:1])

    def read(self, level: Draft) -> Float[Tensor, "n V"]:
        """Return the logits after the nodes of the next level, whose parents count all nodes read before.

        Those of a mask do not depend on the nodes.
        """
        self._position += 1
        if self._ahead is not None:
            return self._allowed(next(self._ahead))
        logits = self._session.grow(level, self._rows[level.explicit_parents + 1])
        self._rows = torch.cat([self._rows, self._session.newest])
        return self._allowed(logits)

    def _allowed(self, logits: Float[Tensor, "n V"]) -> Float[Tensor, "n V"]:
        return allowed(logits, self._capabilities, self._position, self._cell_mask)


def allowed(
    logits: Float[Tensor, "n V"], capabilities: Capabilities, position: int, cell_mask: Float[Tensor, " V"] | None
) -> Float[Tensor, "n V"]:
    """Return the logits in fp32 or wider, -inf for ids that their position does not allow."""
    logits, grid = logits.to(torch.promote_types(logits.dtype, torch.float32)), capabilities.grid
    forced = None if grid is None else grid.forced(position)
    if forced is not None:
        only = torch.full_like(logits, float("-inf"))
        only[:, forced] = 0.0
        return only
    return logits if cell_mask is None else logits + cell_mask


def _check_published(folder: Path, net: FeatureDrafterNet, run: Run, taps: tuple[int, ...]) -> None:
    """Hold a published drafter against the target, whose picture model may have one id more for a prompt's vectors."""
    shape = net.shape
    known = run.capabilities.vocabulary if shape.side else shape.vocabulary
    check_shapes(folder, run, shape.target_width, known)
    highest = max(shape.mask, int(net.ids.max()) if len(net.ids) else 0)
    if highest >= run.capabilities.vocabulary:
        check_shapes(folder, run, shape.target_width, highest + 1)
    if shape.layers and shape.layers != taps:
        raise WeightsError(
            f"the drafter in {folder} reads the layers {shape.layers} of its target, and by its name it is given "
            f"{taps} of {run.backbone}. Give the folder as a path, then it is given those that it names"
        )


@lru_cache(maxsize=4)
def _load(folder: Path, dtype: torch.dtype, device: torch.device) -> FeatureDrafterNet:
    return FeatureDrafterNet.load(folder).to(device=device, dtype=dtype).packed()


def cell_mask(capabilities: Capabilities, device: torch.device) -> Float[Tensor, " V"] | None:
    """Return 0 at the ids that a cell may take and -inf elsewhere, or None if it may take all."""
    if capabilities.grid is None or capabilities.grid.ids is None:
        return None
    mask = torch.full((capabilities.vocabulary,), float("-inf"), device=device)
    return mask.index_fill(0, torch.tensor(capabilities.cell_ids, device=device), 0.0)


# Trees of the most probable drafts.


ReadNodes = Callable[[Draft], Float[Tensor, "n V"]]
"""Reads nodes, whose parents count those read before, and returns log q of the tokens after each."""


class Candidates(NamedTuple):
    """Nodes to choose from, level by level; a score is the sum of log q along the path."""

    tokens: Int[Tensor, " C"]
    parents: Int[Tensor, " C"]
    scores: Float[Tensor, " C"]
    levels: int


def grow_best(first: Float[Tensor, "1 V"], read: ReadNodes, levels: int, width: int) -> Candidates:
    """Return the best children of the best nodes, level by level: C = w + (levels - 1) w^2.

    Args:
        first: log q after the last emitted token.
        read: called once a level but for the last, with its w best nodes.
        levels: 1 or more.
        width: 1 or more; a width above V is V.

    Source: Li et al. 2024, EAGLE-2, arXiv:2406.16858, section 4.1; the released ``topK_genrate``.
    """
    width = min(width, first.shape[1])
    best = first[0].topk(width)
    tokens, scores = best.indices, best.values
    nodes = torch.arange(width, device=first.device)
    parents, window = torch.full_like(nodes, -1), torch.full_like(nodes, -1)
    grown = [(tokens, parents, scores)]
    for level in range(1, levels):
        below = read(Draft(tokens, parents=window)).topk(width)
        joint = (scores[:, None] + below.values.clamp_max(0.0)).reshape(-1)
        grown.append((below.indices.reshape(-1), nodes.repeat_interleave(width), joint))
        ordered = joint.sort(descending=True, stable=True)
        chosen, scores = ordered.indices[:width], ordered.values[:width]
        tokens = grown[-1][0][chosen]
        nodes = chosen + width + (level - 1) * width * width
        window = chosen // width + (level - 1) * width
    all_tokens, all_parents, all_scores = (torch.cat(columns) for columns in zip(*grown, strict=True))
    return Candidates(all_tokens, all_parents, all_scores, levels)


class RankedTree(NamedTuple):
    """A tree, and each node's rank among its candidates by score, from 0; a smaller tree has the first ones."""

    draft: Draft
    ranks: Int[Tensor, " K"]


def rerank(candidates: Candidates, size: int) -> RankedTree:
    """Return the tree of the ``size`` best candidates. Scores choose it, so its nodes are point masses.

    Of equal scores the shallower and earlier goes first, so no node is selected without its parent.

    Source: Li et al. 2024, EAGLE-2, arXiv:2406.16858, section 4.2.
    """
    tokens, parents, scores, levels = candidates
    best = scores.sort(descending=True, stable=True).indices[:size]
    kept = best.sort().values
    place = torch.full_like(parents, -1).scatter(0, kept, torch.arange(len(kept), device=kept.device))
    above = parents[kept]
    kept_parents = torch.where(above < 0, -1, place[above.clamp_min(0)])
    return RankedTree(Draft(tokens[kept], parents=kept_parents, levels_built=levels), best.argsort())


def check_growth(name: str, depth: int, width: int, nodes: int) -> None:
    """Reject a tree without a node."""
    if depth < 0 or width < 1 or nodes < 1:
        raise UsageError(
            f"{name}: depth is {depth}, width {width}, nodes {nodes}; give a depth from 0, a width and nodes from 1"
        )


Confidence = Literal["raw", "warped"]
"""The probabilities that rank nodes: the drafter's at temperature 1, or as the text is sampled (if T > 0)."""


def grow_dynamic(
    run: Run, drafter: FeatureDrafter, levels: int, width: int, nodes: int, confidence: Confidence = "raw"
) -> RankedTree:
    """Return the best nodes of a tree grown level by level, by the products of the drafter's probabilities.

    Args:
        levels: of the tree, fewer if less room is left. Without an entry to read there is no tree.
        width: w, no more than V.
        nodes: K, fewer if there are fewer candidates.
        confidence: the probabilities.
    """
    levels, nodes = min(levels, run.room - 1), min(nodes, run.space)
    reader = drafter.root(run) if levels > 0 and nodes > 0 else None
    if reader is None:
        return RankedTree(run.nothing, run.nothing.tokens)
    levels = min(levels, 1 + reader.space // width)
    warps = confidence == "warped" and run.sampling.temperature > 0

    def ranked(logits: Float[Tensor, "n V"]) -> Float[Tensor, "n V"]:
        return run.probs(logits).log() if warps else logits.log_softmax(-1)

    return rerank(grow_best(ranked(reader.first), lambda level: ranked(reader.read(level)), levels, width), nodes)


Sizing = Literal["auto", "given", "measured"]
DEPTH, NODES = 3, 12


@dataclass(frozen=True)
class DynamicTrees:
    """A drafter and the sizes of its trees."""

    drafter: FeatureDrafter
    sizer: TreeSizer
    confidence: Confidence = "raw"

    def propose(self, run: Run) -> RankedTree:
        """Grow a tree of the size that is chosen."""
        size = self.sizer.choose()
        return grow_dynamic(run, self.drafter, size.levels, self.sizer.width, size.nodes, self.confidence)


@dataclass(frozen=True)
class DynamicTreeMethod(Method[DynamicTrees]):
    """The parameters of EAGLE-2 and EAGLE-3: a tree grows by the products of q, and its N best nodes are kept.

    Args:
        features: the drafter: shipped for the backbone at hand (NAME-BACKBONE), or a folder.
        depth: E; a tree has E + 1 levels; 3 if it is None.
        width: k.
        nodes: N, or all candidates if there are fewer; 12 if it is None.
        sizing: given: ``depth`` and ``nodes`` as they are. measured: they are the most, and each cycle takes those that
            pay best (see `TreeSizer`). auto: given if ``depth`` or ``nodes`` is named; else measured if passes are
            timed, so that its counts depend on the machine.
        confidence: nodes are ranked by the drafter's probabilities. raw: at temperature 1, as in EAGLE. warped: after
            temperature and top-k, as in LANTERN's code.
    """

    features: str
    depth: int | None = None
    width: int = 4
    nodes: int | None = None
    sizing: Sizing = "auto"
    confidence: Confidence = "raw"

    claim = Claim.SAME_LAW
    requirements = frozenset({Requirement.HIDDEN, Requirement.TREE_MASK})
    loads: ClassVar[Mapping[str, str]] = {"features": "drafter"}
    mutants = POINT_MASSES

    def __post_init__(self) -> None:
        check_growth(type(self).__name__.lower(), self.largest.levels - 1, self.width, self.largest.nodes)

    @property
    def largest(self) -> TreeSize:
        """Return levels and nodes as named, or those of a method that names none."""
        return TreeSize(1 + (DEPTH if self.depth is None else self.depth), NODES if self.nodes is None else self.nodes)

    @property
    def sizes_by_cost(self) -> bool:
        """Return whether the size of a tree follows from the costs of passes, if they are known."""
        return self.sizing == "measured" or (self.sizing == "auto" and self.depth is None and self.nodes is None)

    def probes(self) -> Mapping[str, Sequence[tuple[int, DynamicTreeMethod]]]:
        widths = sorted({1, self.width}) if self.width > 1 else (1, 2)
        trees = [(width, replace(self, sizing="given", depth=2, width=width, nodes=2 * width)) for width in widths]
        return {self.features: trees} if self.sizes_by_cost else {}

    def open_drafter(self, run: Run, kind: Kind) -> DynamicTrees:
        """Return the drafter, which must be of this kind, and the sizes of its trees."""
        drafter, costs = FeatureDrafter.open(run, self.features, kind), None
        if self.sizes_by_cost:
            with nullcontext() if self.sizing == "measured" else suppress(UsageError):  # a run without timing has none
                costs = run.costs(drafter.name)
        return DynamicTrees(drafter, TreeSizer(self.largest, self.width, costs), self.confidence)
