"""Depth and width of a draft tree, cell by cell of a picture: begun from a neighbour's, moved by what was accepted.

Symbols: d expansions of a tree (it has d + 1 levels), k children a node, alpha share of the previous tree that was
used. Source: ADT-Tree, section IV, eq. 2, and section V, eqs. 6-8. Where the text leaves a choice (the first tree,
starts of rows, weights), `Rule` says what is done; the released repository holds no adaptation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from harness.core.capabilities import Grid
from harness.core.run import Run
from harness.errors import UsageError

Init = Literal["horizontal", "vertical", "random", "flock"]
Alpha = Literal["loops", "levels", "printed"]


class Size(NamedTuple):
    """Of the tree of one step, and what became of it."""

    depth: int
    width: int
    alpha: float = 0.0


@dataclass(frozen=True)
class Rule:
    """How sizes move.

    Args:
        init: horizontal: the tree that gave the cell to the left; vertical: the cell above; random: uniform within the
            bounds; flock: TokenFlock, the mean of past cells within ``radius``, weighted by rows apart. Where there is
            no such cell, the previous tree.
        first: d and k of the first tree. depths, widths: bounds, ends included. step_d, step_k: l_d, l_k. beta: alpha
            from which a tree grows deeper and narrower, else shallower and wider.
        alpha: loops: accepted / d; levels: accepted / (d + 1); printed: (accepted + 1) / d, as the text has it.
        of_neighbour: vertical takes alpha, too, from the cell above. deep_only: widths are bounded only where d > 1.
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
        """Raises UsageError: a bound or a step that there is not."""
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
        wanted = base.depth + sign * self.step_d
        depth = min(max(wanted, self.depths[0]), self.depths[1])
        low, high = (1, vocabulary) if self.deep_only and wanted <= 1 else self.widths
        return Size(depth, min(max(base.width - sign * self.step_k, low), high, vocabulary))

    def used(self, size: Size, accepted: int) -> float:
        """alpha of a tree of which ``accepted`` drafts were kept."""
        if self.alpha == "levels":
            return accepted / (size.depth + 1)
        return (accepted + (self.alpha == "printed")) / size.depth


@dataclass
class Adjacency:
    """Sizes of the trees so far.

    Args:
        cells: of the tree that gave each position. last: of the previous step; None before the first.
    """

    rule: Rule
    cells: dict[int, Size] = field(default_factory=dict)
    last: Size | None = None

    def choose(self, run: Run) -> Size:
        """The next tree's."""
        vocabulary = run.capabilities.vocabulary
        if self.last is None:
            return Size(self.rule.first[0], min(self.rule.first[1], vocabulary))
        grid = run.capabilities.grid
        assert grid is not None, "the method needs a grid"
        near = self._near(run, grid, len(run.target))
        alpha = near.alpha if self.rule.of_neighbour and self.rule.init == "vertical" else self.last.alpha
        return self.rule.moved(near, alpha, vocabulary)

    def follow(self, first: int, size: Size, accepted: int) -> None:
        """Take down what a step at position ``first`` used."""
        self.last = size._replace(alpha=self.rule.used(size, accepted))
        self.cells |= dict.fromkeys(range(first, first + accepted + 1), self.last)

    def _near(self, run: Run, grid: Grid, position: int) -> Size:
        """What the next tree begins from."""
        assert self.last is not None, "there is a previous tree"
        rule = self.rule
        if rule.init == "random":
            spans = [high - low + 1 for low, high in (rule.depths, rule.widths)]
            d, k = (
                int(run.draws.integers(1, span, "init")) for span in spans
            )  # sizes are for the host, before any pass
            return Size(rule.depths[0] + d, rule.widths[0] + k)
        if rule.init == "flock":
            return self._flock(grid, position) or self.last
        place = grid.left(position) if rule.init == "horizontal" else grid.above(position)
        return self.last if place is None else self.cells.get(place, self.last)

    def _flock(self, grid: Grid, position: int) -> Size | None:
        """Eqs. 6-8: the mean over past cells around, by (radius - rows apart + 1) / radius, scaled to sum to one."""
        here, radius = grid.cell(position), self.rule.radius
        if here is None:
            return None
        row, column = here
        found = []
        for place in range(max(grid.start, position - int(radius + 1) * grid.stride), position):
            cell = grid.cell(place)
            if cell is None or place not in self.cells or (cell[0] - row) ** 2 + (cell[1] - column) ** 2 > radius**2:
                continue
            found.append((max(0.0, (radius - (row - cell[0]) + 1) / radius), self.cells[place]))
        total = sum(weight for weight, _ in found)
        if total == 0:
            return None
        mean = [sum(weight * size[axis] for weight, size in found) / total for axis in (0, 1)]
        return Size(round(mean[0]), round(mean[1]))
