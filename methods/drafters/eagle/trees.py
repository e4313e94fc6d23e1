"""Trees of a feature drafter: of the best candidates, or of a fixed form.

Symbols: q the drafter's distributions, K nodes, m nodes of a level and n of the next one, w children of a node,
V vocabulary.
Sources: EAGLE-1, arXiv:2401.15077, section 3.2; EAGLE-2, arXiv:2406.16858, section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.draft import Draft
from stridebench.harness.core.method import Mutant
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.methods.drafters.eagle.drafter import FeatureDrafter
from stridebench.methods.trees.sampled import siblings
from stridebench.methods.trees.shapes import TreeShape, branching, published
from stridebench.methods.trees.structure import space

# Trees of the most probable drafts: growth by the products of q, and the best nodes of what was grown.
# Symbols: K nodes, C candidates, V vocabulary, w children of a node. Source: Li et al. 2024, EAGLE-2,
# arXiv:2406.16858, sections 4.1 and 4.2.


ReadNodes = Callable[[Draft], Float[Tensor, "n V"]]
"""Reads nodes, whose parents count those read before, and returns log q of the tokens after each."""


class Candidates(NamedTuple):
    """Nodes to choose from, level by level; a score is the sum of log q along the path.

    Attributes:
        levels: that were built.
    """

    tokens: Int[Tensor, " C"]
    parents: Int[Tensor, " C"]
    scores: Float[Tensor, " C"]
    levels: int


def grow_best(first: Float[Tensor, "1 V"], read: ReadNodes, levels: int, width: int) -> Candidates:
    """The best children of the best nodes, level by level: C = w + (levels - 1) w^2.

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


def rerank(candidates: Candidates, size: int) -> Draft:
    """The tree of the ``size`` best candidates. Scores choose it, so its nodes are point masses.

    Of equal scores the shallower and earlier goes first, so no node is selected without its parent.
    """
    tokens, parents, scores, levels = candidates
    best = scores.sort(descending=True, stable=True).indices[:size].sort().values
    place = torch.full_like(parents, -1).scatter(0, best, torch.arange(len(best), device=best.device))
    above = parents[best]
    kept_parents = torch.where(above < 0, -1, place[above.clamp_min(0)])
    return Draft(tokens[best], parents=kept_parents, levels_built=levels)


DEEPEST = 64
"""Levels of a static tree: a feature drafter has no limit of its own."""


def check_growth(name: str, depth: int, width: int, nodes: int) -> None:
    """Reject a tree without a node.

    Raises:
        UsageError: says which parameter of the method ``name`` is too small.
    """
    if depth < 0 or width < 1 or nodes < 1:
        raise UsageError(
            f"{name}: depth is {depth}, width {width}, nodes {nodes}; give a depth from 0, a width and nodes from 1"
        )


class RankedTree(NamedTuple):
    """A tree, and each node's rank among its candidates by score, from 0; a smaller tree has the first ones."""

    draft: Draft
    ranks: Int[Tensor, " K"]


def grow_dynamic(run: Run, drafter: FeatureDrafter, levels: int, width: int, nodes: int) -> RankedTree:
    """The best nodes of a tree grown level by level, by the products of the drafter's raw probabilities.

    Args:
        levels: of the tree, fewer where less room is left. Without an entry to read there is no tree.
        width: w, no more than V.
        nodes: K, fewer where there are fewer candidates.
    """
    levels, nodes = min(levels, run.room - 1), min(nodes, space(run))
    reader = drafter.root(run) if levels > 0 and nodes > 0 else None
    if reader is None:
        return RankedTree(run.nothing, run.nothing.tokens)
    levels = min(levels, 1 + reader.space // width)
    candidates = grow_best(reader.first.log_softmax(-1), reader.score, levels, width)
    best = candidates.scores.sort(descending=True, stable=True).indices[:nodes]
    return RankedTree(rerank(candidates, nodes), best.argsort())


@dataclass(frozen=True)
class StaticDrafter:
    """A drafter and the form of its trees.

    Args:
        width: w, one more than the largest rank among siblings.
    """

    drafter: FeatureDrafter
    shape: TreeShape
    width: int

    @classmethod
    def open(cls, run: Run, features: str, tree: str, widths: Sequence[int]) -> StaticDrafter:
        """A drafter with a tree by name, or with the tree of ``widths`` where there are some.

        Raises:
            UsageError: there is no such tree, or it has more siblings than there are tokens.
        """
        vocabulary = run.capabilities.vocabulary
        if widths and max(widths) > vocabulary:
            raise UsageError(f"{max(widths)} siblings of a vocabulary of {vocabulary}; give smaller widths")
        shape = branching(widths) if widths else published(tree, DEEPEST, vocabulary, vocabulary)
        return cls(FeatureDrafter.open(run, features, "eagle1"), shape.on(run.target.device), shape.width)


def grow_static(run: Run, form: StaticDrafter) -> Draft:
    """A tree of this form, its levels cut to the room that is left.

    Siblings are drawn without replacement; at T = 0 they are the most probable tokens, in order. The form gives each
    node its rank among its siblings, so no child drawn is dropped or moved for its value.
    """
    shape, width = form.shape.cut(run.room - 1, space(run)), form.width
    reader = form.drafter.root(run) if shape.sizes else None
    if reader is None:
        return run.nothing
    shape, logits = shape.cut(len(shape.sizes), reader.space), reader.first
    levels: list[TreeLevel] = []
    above, first = -1, 0
    for size in shape.sizes:
        nodes = slice(first, first + size)
        if levels:
            logits = reader.read(Draft(levels[-1].tokens, parents=shape.parents[above:first]))
        levels.append(sample_level(run, logits, shape.parents[nodes] - above, shape.ranks[nodes], width))
        above, first = first, first + size
    probs = [level.probs for level in levels if level.probs is not None]
    tokens = torch.cat([level.tokens for level in levels])
    return Draft(tokens, torch.cat(probs) if probs else None, shape.parents)


class TreeLevel(NamedTuple):
    """Nodes of one level, and the distribution of each given its earlier siblings; None at T = 0."""

    tokens: Int[Tensor, " n"]
    probs: Float[Tensor, "n V"] | None


def sample_level(
    run: Run, logits: Float[Tensor, "m V"], parents: Int[Tensor, " n"], ranks: Int[Tensor, " n"], width: int
) -> TreeLevel:
    """The children that a form asks for, of ``width`` drawn below each node above."""
    if run.sampling.temperature == 0:
        return TreeLevel(logits.topk(width).indices[parents, ranks], None)
    drawn = siblings(run.probs(logits), width, run.draws, replacement=False)
    return TreeLevel(drawn.tokens[parents, ranks], drawn.probs[parents, ranks])


# Bugs to inject into the trees of a feature drafter.


SIBLINGS_SORTED_BY_CONFIDENCE = Mutant(
    "stridebench.methods.drafters.eagle.trees:sample_level",
    "return TreeLevel(drawn.tokens[parents, ranks], ",
    "drawn = drawn._replace(tokens=drawn.tokens.gather(1, run.probs(logits).gather(1, drawn.tokens).argsort(1, "
    "descending=True))); return TreeLevel(drawn.tokens[parents, ranks], ",
    "sampled siblings are put in the order of their confidence",
)
