"""Depth and width of a draft tree, cell by cell of a picture: from a neighbour's tree, adapted to what was accepted.

Symbols: d expansions of a tree (it has d + 1 levels), k children of a node, alpha used share of the tree before.
Source: ADT-Tree, section IV, eq. 2, and section V, eqs. 6-8. Where the text leaves a choice (the first tree, starts of
rows, weights), `Rule` states ours; the released repository holds no adaptation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from stridebench.harness.core.capabilities import Grid
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError

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
