"""How many levels and nodes the next draft tree has: as given, or as pays best by the machine's cost table.

Symbols: L levels, N nodes, w children a node; r[l, n] how often the candidate of level l that stands n-th by score was
accepted, C_t and C_d milliseconds of a pass of the target and of the drafter.
Source: EAGLE-2's trees, arXiv:2406.16858; the choice is Sequoia's, arXiv:2402.12374, section 4.3, made anew each cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from harness.core.costs import Costs
from harness.core.draft import Draft, HostAcceptance
from harness.core.run import Run
from harness.core.session import depths_of
from methods.drafters.eagle.drafter import FeatureDrafter
from methods.drafters.eagle.trees import RankedTree, ranked

Sizing = Literal["given", "measured"]
FIRST, AGAIN = 8, 16
"""Cycles of the largest tree at the start, and one in so many later on: smaller ones do not show what they left out."""


class Size(NamedTuple):
    """Of a tree; without levels nothing is drafted."""

    levels: int
    nodes: int


@dataclass
class AcceptanceHistory:
    """What trees of this decode were good for.

    Args:
        costs: the table. width: w. cycles: so far.
        seen, taken: [L, N], trees that had a place for the n-th candidate at level l, and those that had it accepted.
    """

    costs: Costs
    width: int
    seen: Float[Tensor, "L N"]
    taken: Float[Tensor, "L N"]
    cycles: int = 0

    def best(self) -> Size:
        """The size of most tokens a millisecond: (1 + sum of r[:L, :N]) / (C_t(1 + N) + L C_d(w)).

        A node is accepted with p of its token whatever its siblings are, so r of a large tree foretells a smaller one,
        but for candidates that move up where deeper ones are left out.
        """
        levels, nodes = self.seen.shape
        if self.cycles < FIRST or self.cycles % AGAIN == 0:
            return Size(levels, nodes)
        rates = self.taken / self.seen.clamp_min(1.0)
        tokens = 1.0 + torch.nn.functional.pad(rates.cumsum(0).cumsum(1), (1, 0, 1, 0))
        target = [Costs.at(1 + n, self.costs.target) for n in range(nodes + 1)]
        draft = Costs.at(self.width, self.costs.draft)
        spent = torch.tensor(target) + draft * torch.arange(levels + 1)[:, None]
        found = int((tokens / spent).argmax())  # of CPU tensors: no device waits
        return Size(*divmod(found, nodes + 1))

    def note(self, size: Size, path: Sequence[tuple[int, int]]) -> None:
        """Take down a cycle's size, and level and place of each node that it accepted."""
        self.cycles += 1
        self.seen[: size.levels, : size.nodes] += 1.0
        for level, place in path:
            self.taken[level, place] += 1.0


@dataclass
class TreeSizer:
    """A drafter and the sizes of its trees.

    The size of a cycle follows from what earlier cycles proposed and accepted and from a table that stays as it is. It
    never looks at this cycle's drafts or coins, so nodes as point masses leave the law as it is.

    Args:
        most: the size as given, or the largest. history: None where the size is given.
        chosen: of the tree at hand. depths: of its nodes.
    """

    drafter: FeatureDrafter
    most: Size
    width: int
    history: AcceptanceHistory | None
    chosen: Size = field(init=False)

    def __post_init__(self) -> None:
        self.chosen = self.most

    @classmethod
    def open(cls, run: Run, drafter: FeatureDrafter, most: Size, width: int, sizing: Sizing) -> TreeSizer:
        """The same drafter for either sizing.

        Raises:
            UsageError: there is no cost table of this drafter on this machine; says how to make it.
        """
        if sizing == "given":
            return cls(drafter, most, width, None)
        none = torch.zeros(most.levels, most.nodes, dtype=torch.float64)
        return cls(drafter, most, width, AcceptanceHistory(run.costs(drafter.name), width, none, none.clone()))

    def propose(self, run: Run) -> RankedTree:
        """The tree of the size that is chosen."""
        self.chosen = self.most if self.history is None else self.history.best()
        return ranked(run, self.drafter, self.chosen.levels, self.width, self.chosen.nodes)

    def extra_ids(self, tree: RankedTree) -> Tensor | None:
        """What the verdict is to bring of each node: its place, and its depth."""
        draft: Draft = tree.draft
        if self.history is None or not len(draft):
            return None
        return torch.cat([tree.places, depths_of(draft.explicit_parents)])

    def follow(self, read: HostAcceptance) -> None:
        """Take down which nodes were accepted."""
        if self.history is not None:
            count = len(read.extra_ids) // 2
            where = [(read.extra_ids[count + node], read.extra_ids[node]) for node in read.path]
            self.history.note(self.chosen if count else Size(0, 0), where)
