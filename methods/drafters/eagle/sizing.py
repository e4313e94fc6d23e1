"""Depth and width of a draft tree, cell by cell of a picture: from a neighbour's tree, adapted to what was accepted.

Symbols: d expansions of a tree (it has d + 1 levels), k children of a node, alpha used share of the tree before.
Source: ADT-Tree, section IV, eq. 2, and section V, eqs. 6-8. Where the text leaves a choice (the first tree, starts of
rows, weights), `Rule` states ours; the released repository holds no adaptation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.capabilities import Grid
from stridebench.harness.core.costs import Costs
from stridebench.harness.core.draft import HostAcceptance
from stridebench.harness.core.run import Run
from stridebench.harness.core.session import depths_of
from stridebench.harness.errors import UsageError
from stridebench.methods.drafters.eagle.drafter import FeatureDrafter
from stridebench.methods.drafters.eagle.trees import RankedTree, grow_dynamic

Init = Literal["horizontal", "vertical", "random", "flock"]
Alpha = Literal["loops", "levels", "printed"]


class Size(NamedTuple):
    """d and k of the tree of one step, and the share of it that was used."""

    depth: int
    width: int
    alpha: float = 0.0


@dataclass(frozen=True)
class Rule:
    """How sizes change.

    Args:
        init: where a tree starts from. horizontal: the tree that gave the cell to the left. vertical: the cell above.
            random: uniform within the bounds. flock: TokenFlock, the mean of past cells within ``radius``, weighted by
            rows between. Where there is no such cell: the previous tree.
        first: d and k of the first tree.
        depths, widths: bounds, ends included.
        step_d, step_k: l_d, l_k.
        beta: alpha from which a tree grows deeper and narrower; below it, shallower and wider.
        alpha: loops: accepted / d. levels: accepted / (d + 1). printed: (accepted + 1) / d. Forced ends do not count.
        of_neighbour: vertical takes alpha from the cell above as well.
        deep_only: widths are bounded only where d > 1.
    """

    init: Init
    first: tuple[int, int]
    depths: tuple[int, int]
    widths: tuple[int, int]
    step_d: int
    step_k: int
    beta: float
    alpha: Alpha
    radius: float
    of_neighbour: bool
    deep_only: bool

    def check(self, name: str) -> None:
        """Raises UsageError: a bound or a step is out of range."""
        for word, low, high in (("depths", *self.depths), ("widths", *self.widths)):
            if not 1 <= low <= high:
                raise UsageError(f"{name}: {word} are {low} to {high}; give bounds from 1, the lower one first")
        if min(self.step_d, self.step_k) < 0 or min(self.first) < 1 or not self.radius > 0:
            raise UsageError(
                f"{name}: steps are {self.step_d} and {self.step_k}, first {self.first}, radius {self.radius:g}; give "
                f"steps from 0, a first tree from (1, 1) and a radius above 0"
            )

    def moved(self, base: Size, alpha: float, vocabulary: int) -> Size:
        """Eq. 2, within the bounds."""
        sign = 1 if alpha >= self.beta else -1
        moved = base.depth + sign * self.step_d
        depth = min(max(moved, self.depths[0]), self.depths[1])
        low, high = (1, vocabulary) if self.deep_only and moved <= 1 else self.widths
        return Size(depth, min(max(base.width - sign * self.step_k, low), high, vocabulary))

    def used(self, size: Size, accepted: int, forced: int = 0) -> float:
        """alpha of a tree of which ``accepted`` free drafts were accepted and ``forced`` levels have no choice."""
        levels = size.depth + (self.alpha == "levels")
        return (accepted + (self.alpha == "printed")) / max(1, levels - forced)


@dataclass
class Adjacency:
    """Sizes of the trees so far.

    Args:
        cells: of the tree that gave each position.
        last: of the previous step; None before the first.
    """

    rule: Rule
    cells: dict[int, Size] = field(default_factory=dict)
    last: Size | None = None

    def choose(self, run: Run) -> Size:
        """The size of the next tree."""
        vocabulary = run.capabilities.vocabulary
        if self.last is None:
            return Size(self.rule.first[0], min(self.rule.first[1], vocabulary))
        grid = run.capabilities.grid
        assert grid is not None, "the method needs a grid"
        near = self._near(run, grid, len(run.target))
        alpha = near.alpha if self.rule.of_neighbour and self.rule.init == "vertical" else self.last.alpha
        return self.rule.moved(near, alpha, vocabulary)

    def follow(self, first: int, size: Size, accepted: int, grid: Grid) -> None:
        """Note what a step at position ``first`` used."""
        forced = [grid.forced(position) is not None for position in range(first, first + size.depth + 1)]
        free = accepted - sum(forced[:accepted])
        self.last = size._replace(alpha=self.rule.used(size, free, sum(forced)))
        self.cells |= dict.fromkeys(range(first, first + accepted + 1), self.last)

    def _near(self, run: Run, grid: Grid, position: int) -> Size:
        """The size that the next tree starts from."""
        assert self.last is not None, "there is a previous tree"
        rule = self.rule
        if rule.init == "random":
            spans = [high - low + 1 for low, high in (rule.depths, rule.widths)]
            # Read before any pass: the host needs the sizes.
            d, k = (int(run.draws.integers(1, span, "init")) for span in spans)
            return Size(rule.depths[0] + d, rule.widths[0] + k)
        if rule.init == "flock":
            return self._flock(grid, position) or self.last
        neighbour = grid.left(position) if rule.init == "horizontal" else grid.above(position)
        return self.last if neighbour is None else self.cells.get(neighbour, self.last)

    def _flock(self, grid: Grid, position: int) -> Size | None:
        """Eqs. 6-8: the mean over past cells around, by (radius - rows between + 1) / radius, scaled to sum to one."""
        centre, radius = grid.cell(position), self.rule.radius
        if centre is None:
            return None
        row, column = centre
        weighted = []
        for past in range(max(grid.start, position - int(radius + 1) * grid.stride), position):
            cell = grid.cell(past)
            if cell is None or past not in self.cells or (cell[0] - row) ** 2 + (cell[1] - column) ** 2 > radius**2:
                continue
            weighted.append((max(0.0, (radius - (row - cell[0]) + 1) / radius), self.cells[past]))
        total = sum(weight for weight, _ in weighted)
        if total == 0:
            return None
        mean = [sum(weight * size[axis] for weight, size in weighted) / total for axis in (0, 1)]
        return Size(round(mean[0]), round(mean[1]))


# How many levels and nodes the next draft tree has: as given, or as pays best by the machine's cost table.
# Symbols: L levels; N nodes; w children of a node; r[l, n] how often the candidate of level l that is n-th by score
# was accepted; C_t and C_d milliseconds of a pass of the target and of the drafter. Source: EAGLE-2's trees,
# arXiv:2406.16858; the choice is Sequoia's, arXiv:2402.12374, section 4.3, made anew each cycle.


FIRST, AGAIN = 8, 16
"""Cycles of the largest tree at the start, and one in so many later: smaller trees do not show what they leave out."""


class MeasuredSize(NamedTuple):
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

    def best(self) -> MeasuredSize:
        """The size of most tokens a millisecond: (1 + sum of r[:L, :N]) / (C_t(1 + N) + L C_d(w)).

        A node is accepted with p of its token whatever its siblings are. So r of a large tree predicts a smaller one,
        but for candidates that move up where deeper ones are left out.
        """
        levels, nodes = self.proposed.shape
        if self.cycles < FIRST or self.cycles % AGAIN == 0:
            return MeasuredSize(levels, nodes)
        rates = self.accepted / self.proposed.clamp_min(1.0)
        tokens = 1.0 + torch.nn.functional.pad(rates.cumsum(0).cumsum(1), (1, 0, 1, 0))
        target = [Costs.at(1 + n, self.costs.target) for n in range(nodes + 1)]
        draft = Costs.at(self.width, self.costs.draft)
        milliseconds = torch.tensor(target) + draft * torch.arange(levels + 1)[:, None]
        best = int((tokens / milliseconds).argmax())  # of CPU tensors: no device waits
        return MeasuredSize(*divmod(best, nodes + 1))

    def note(self, size: MeasuredSize, path: Sequence[tuple[int, int]]) -> None:
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
    largest: MeasuredSize
    width: int
    history: AcceptanceHistory | None
    chosen: MeasuredSize = field(init=False)

    def __post_init__(self) -> None:
        self.chosen = self.largest

    @classmethod
    def of(cls, drafter: FeatureDrafter, largest: MeasuredSize, width: int, costs: Costs | None) -> TreeSizer:
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
            self.history.note(self.chosen if count else MeasuredSize(0, 0), path)
