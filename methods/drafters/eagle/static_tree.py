"""Trees of a fixed form whose nodes a feature drafter draws.

Symbols: q the drafter's distributions, m nodes of a level and n of the next one, w children of a node, V vocabulary.
Source: EAGLE-1, arXiv:2401.15077, section 3.2; of the verifier `block` of chains, Sun et al. 2025, arXiv:2403.10444,
Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance, Draft
from stridebench.harness.core.method import Claim, Method, Mutant
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.draft_model import DraftLength
from stridebench.methods.drafters.eagle.drafter import FeatureDrafter
from stridebench.methods.drafters.eagle.published import Kind
from stridebench.methods.drafters.tree_shapes import (
    MOST_PROBABLE_SIBLINGS,
    TreeShape,
    branching,
    published,
    siblings,
)
from stridebench.methods.verifiers.block import CHAIN_VERIFIERS, RATIO_CAPPED_ONCE
from stridebench.methods.verifiers.rejection import CORRECTION_FROM_TARGET

DEEPEST = 64
"""Levels of a static tree: a feature drafter has no limit."""
FULL = DraftLength()
"""Ends no draft."""


@dataclass(frozen=True)
class StaticDrafter:
    """A drafter and the form of its trees.

    Args:
        width: w, one more than the largest rank among siblings.
        length: ends a chain before its last level.
    """

    drafter: FeatureDrafter
    shape: TreeShape
    width: int
    length: DraftLength

    @classmethod
    def open(
        cls,
        run: Run,
        features: str,
        tree: str,
        widths: Sequence[int],
        length: DraftLength = FULL,
        kind: Kind = "eagle1",
    ) -> StaticDrafter:
        """Open a drafter with the tree of ``widths`` if there are some, else with a tree by name.

        P-EAGLE reads a mask for each level behind the first one.

        Raises:
            UsageError: there is no such tree, or it has more siblings than there are tokens.
        """
        vocabulary = run.capabilities.vocabulary
        if widths and max(widths) > vocabulary:
            raise UsageError(f"{max(widths)} siblings of a vocabulary of {vocabulary}; give smaller widths")
        shape = branching(widths) if widths else published(tree, DEEPEST, vocabulary, vocabulary)
        masks = len(shape.sizes) - 1 if kind == "p_eagle" else 0
        return cls(FeatureDrafter.open(run, features, kind, masks), shape.on(run.target.device), shape.width, length)


def grow_static(run: Run, form: StaticDrafter) -> Draft:
    """Return a tree of this form, its levels cut to the room that is left.

    Siblings are drawn without replacement; at T = 0 they are the most probable tokens, in order. The form gives each
    node its rank among its siblings, so no child drawn is dropped or moved for its value.
    """
    shape, width = form.shape.cut(run.room - 1, run.space), form.width
    shape = shape.cut(form.length.limit(run, len(shape.sizes)), run.space)
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
        law = form.length.law(run, logits, run.probs(logits)) if form.length.name else logits
        if form.length.ends_before(law):
            break
        levels.append(sample_level(run, logits, shape.parents[nodes] - above, shape.ranks[nodes], width))
        above, first = first, first + size
        if form.length.ends_behind(law, levels[-1].tokens):
            break
    if not levels:
        return run.nothing
    probs = [level.probs for level in levels if level.probs is not None]
    tokens = torch.cat([level.tokens for level in levels])
    return Draft(tokens, torch.cat(probs) if probs else None, shape.parents[:first])


def grow_chain(run: Run, form: StaticDrafter) -> Draft:
    """Return a tree of one node a level as a chain."""
    tree = grow_static(run, form)
    return Draft(tree.tokens, tree.probs)


class TreeLevel(NamedTuple):
    """Nodes of one level, and the distribution of each given its earlier siblings; None at T = 0."""

    tokens: Int[Tensor, " n"]
    probs: Float[Tensor, "n V"] | None


def sample_level(
    run: Run, logits: Float[Tensor, "m V"], parents: Int[Tensor, " n"], ranks: Int[Tensor, " n"], width: int
) -> TreeLevel:
    """Draw ``width`` children below each node above, and return those that the form asks for."""
    if run.sampling.temperature == 0:
        return TreeLevel(logits.topk(width).indices[parents, ranks], None)
    drawn = siblings(run.probs(logits), width, run.draws, replacement=False)
    return TreeLevel(drawn.tokens[parents, ranks], drawn.probs[parents, ranks])


# Bugs to inject into the trees of a feature drafter.

DROPPED_FOR_ITS_PROBABILITY = Mutant(
    f"{__name__}:grow_static",
    "if form.length.ends_behind(law, levels[-1].tokens):",
    "if form.length.ends_behind(law, levels[-1].tokens) and (levels.pop(), first := above):",
    "a drawn token is dropped because it is improbable",
)

SIBLINGS_SORTED_BY_CONFIDENCE = Mutant(
    f"{__name__}:sample_level",
    "return TreeLevel(drawn.tokens[parents, ranks], ",
    "drawn = drawn._replace(tokens=drawn.tokens.gather(1, run.probs(logits).gather(1, drawn.tokens).argsort(1, "
    "descending=True))); return TreeLevel(drawn.tokens[parents, ranks], ",
    "sampled siblings are put in the order of their confidence",
)

RECORDED_A_ROW_LATE = Mutant(
    f"{__name__}:grow_chain",
    "return Draft(tree.tokens, tree.probs)",
    "return Draft(tree.tokens, None if tree.probs is None else tree.probs.roll(1, 0))",
    "each draft is judged by the distribution of the row before its own",
)


@dataclass(frozen=True)
class ChainMethod(Method[StaticDrafter]):
    """The parameters of a chain that a feature drafter draws.

    Args:
        features: the drafter: trained for the backbone at hand (NAME-BACKBONE), or a published folder.
        depth: K.
        verifier: ``token`` tests one draft after the other by p / q. ``block`` tests all of them together, and keeps
            more.
        policy: where a chain ends, as in ``speculative``.
    """

    features: str
    depth: int = 3
    verifier: Literal["token", "block"] = "token"
    policy: str = ""

    claim = Claim.SAME_LAW
    loads: ClassVar[Mapping[str, str]] = {"features": "drafter"}
    requirements = frozenset({Requirement.HIDDEN})
    mutants = (
        MOST_PROBABLE_SIBLINGS,
        DROPPED_FOR_ITS_PROBABILITY,
        RECORDED_A_ROW_LATE,
        CORRECTION_FROM_TARGET,
        RATIO_CAPPED_ONCE,
    )

    def __post_init__(self) -> None:
        name = METHODS.name_of(type(self))
        if self.depth < 1:
            raise UsageError(f"{name}: depth is {self.depth}; draft at least one token")
        if DraftLength.of(name, self.policy, self.depth).name == "p_min":
            raise UsageError(f"{name}: policy p_min is for drafts that are not drawn; take conf")

    def open_chains(self, run: Run, kind: Kind) -> StaticDrafter:
        """Return the drafter, which must be of this kind, and its chains."""
        length = DraftLength.of(METHODS.name_of(type(self)), self.policy, self.depth)
        return StaticDrafter.open(run, self.features, "", (1,) * self.depth, length, kind)

    def verified(self, run: Run, state: StaticDrafter, draft: Draft, p: Float[Tensor, "R V"]) -> Acceptance:
        """Test the drafts by p / q; the policy learns from it."""
        acceptance = CHAIN_VERIFIERS[self.verifier](draft.tokens, draft.probs, p, run.draws)
        state.length.follow(len(draft), acceptance)
        return acceptance
