"""How many levels and nodes the next draft tree has: as given, or as pays best by the machine's cost table.

Symbols: L levels; N nodes; w children of a node; r[l, n] how often the candidate of level l that is n-th by score was
accepted; C_t and C_d milliseconds of a pass of the target and of the drafter.
Source: EAGLE-2's trees, arXiv:2406.16858; the choice is Sequoia's, arXiv:2402.12374, section 4.3, made anew each cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.costs import Costs
from stridebench.harness.core.draft import HostAcceptance
from stridebench.harness.core.run import Run
from stridebench.harness.core.session import depths_of
from stridebench.methods.drafters.eagle.drafter import FeatureDrafter
from stridebench.methods.drafters.eagle.trees import RankedTree, grow_dynamic

FIRST, AGAIN = 8, 16
"""Cycles of the largest tree at the start, and one in so many later: smaller trees do not show what they leave out."""


class Size(NamedTuple):
    """Levels and nodes of a tree; without levels nothing is drafted."""

    levels: int
    nodes: int


@dataclass
class AcceptanceHistory:
    """What earlier trees of this decode proposed and what of it was accepted.

    Args:
        costs: the cost table.
        width: w.
        proposed: [L, N], trees that had a node for the n-th candidate of level l.
        accepted: [L, N], trees that had it accepted.
        cycles: so far.
    """

    costs: Costs
    width: int
    proposed: Float[Tensor, "L N"]
    accepted: Float[Tensor, "L N"]
    cycles: int = 0

    def best(self) -> Size:
        """The size of most tokens a millisecond: (1 + sum of r[:L, :N]) / (C_t(1 + N) + L C_d(w)).

        A node is accepted with p of its token whatever its siblings are. So r of a large tree predicts a smaller one,
        but for candidates that move up where deeper ones are left out.
        """
        levels, nodes = self.proposed.shape
        if self.cycles < FIRST or self.cycles % AGAIN == 0:
            return Size(levels, nodes)
        rates = self.accepted / self.proposed.clamp_min(1.0)
        tokens = 1.0 + torch.nn.functional.pad(rates.cumsum(0).cumsum(1), (1, 0, 1, 0))
        target = [Costs.at(1 + n, self.costs.target) for n in range(nodes + 1)]
        draft = Costs.at(self.width, self.costs.draft)
        milliseconds = torch.tensor(target) + draft * torch.arange(levels + 1)[:, None]
        best = int((tokens / milliseconds).argmax())  # of CPU tensors: no device waits
        return Size(*divmod(best, nodes + 1))

    def note(self, size: Size, path: Sequence[tuple[int, int]]) -> None:
        """Add a cycle's size, and level and rank of each node that it accepted."""
        self.cycles += 1
        self.proposed[: size.levels, : size.nodes] += 1.0
        for level, rank in path:
            self.accepted[level, rank] += 1.0


@dataclass
class TreeSizer:
    """A drafter and the sizes of its trees.

    The size of a cycle follows from what earlier cycles proposed and accepted, and from a fixed table. It
    depends on no draft or coin of its own cycle, so with nodes as point masses the output distribution is unchanged.

    Args:
        largest: the size as given, or the largest.
        width: w.
        history: None where the size is given.
        chosen: size of the current tree.
    """

    drafter: FeatureDrafter
    largest: Size
    width: int
    history: AcceptanceHistory | None
    chosen: Size = field(init=False)

    def __post_init__(self) -> None:
        self.chosen = self.largest

    @classmethod
    def of(cls, drafter: FeatureDrafter, largest: Size, width: int, costs: Costs | None) -> TreeSizer:
        """The sizes of a drafter's trees: always the largest where nothing is known of costs."""
        if costs is None:
            return cls(drafter, largest, width, None)
        none = torch.zeros(largest.levels, largest.nodes, dtype=torch.float64)
        return cls(drafter, largest, width, AcceptanceHistory(costs, width, none, none.clone()))

    def propose(self, run: Run) -> RankedTree:
        """A tree of the size that is chosen."""
        self.chosen = self.largest if self.history is None else self.history.best()
        return grow_dynamic(run, self.drafter, self.chosen.levels, self.width, self.chosen.nodes)

    def extra_ids(self, tree: RankedTree) -> Int[Tensor, " A"] | None:
        """What the acceptance brings to the host for `follow`: each node's rank, then each node's depth."""
        if self.history is None or not len(tree.draft):
            return None
        return torch.cat([tree.ranks, depths_of(tree.draft.explicit_parents)])

    def follow(self, read: HostAcceptance) -> None:
        """Note which nodes were accepted."""
        if self.history is not None:
            count = len(read.extra_ids) // 2
            path = [(read.extra_ids[count + node], read.extra_ids[node]) for node in read.path]
            self.history.note(self.chosen if count else Size(0, 0), path)
