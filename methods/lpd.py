"""Locality-aware parallel decoding (LPD): groups of cells that hardly depend on each other, near to known ones.

Source: Zhang et al. 2025, arXiv:2507.01957, section 3.3; the order of the released code, github.com/mit-han-lab/lpd.
Symbols: G groups, s their sizes, r repulsion.
An order-free model gives the distribution of any cell by a query (see `Canvas.ask`). A pass reads the tokens of one
group and asks for the cells of the next, each of which is drawn on its own: a group's distribution is the product of
its cells'. Guidance is the backbone's; the paper lets it grow with the share of known cells. The released checkpoints
are not read.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from stridebench.harness.core.capabilities import Grid, Requirement
from stridebench.harness.core.draft import Fill
from stridebench.harness.core.method import Claim, Method, Mutant
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS

Cell = tuple[int, int]
"""Row and column."""
NEAR = 1.0
"""Least closeness of a cell that counts as next to known ones."""


@METHODS.register("lpd")
@dataclass(frozen=True)
class LPD(Method[list[list[int]]]):
    """Fill groups of cells: first those next to known cells, apart from each other, then those farthest from these.

    Args:
        groups: s, sizes of the groups in their order, with commas between them; the last one repeats. 1 is one cell a
            pass. The paper has 1,2,4,5,7,8,10,11,12,14,15,16,17,18,18,19,19,20,20,20 for 16x16 cells.
        repulsion: r; of cells taken for their known neighbours, the larger distance in rows or columns exceeds r.
        order_seed: of the first cell and of the order of cells that are equally close.
    """

    groups: int | str = 1
    repulsion: int = 1
    order_seed: int = 0

    requirements = frozenset({Requirement.GRID, Requirement.ANY_ORDER, Requirement.QUERIES})
    source = "arXiv:2507.01957, section 3.3"
    exact_at = "groups = 1"
    mutants = (
        Mutant(
            "stridebench.harness.core.canvas:Canvas.ask",
            "self._drop(self._queried)",
            "self._drop(frozenset())",
            "tokens are not read, and their queries stand for them in the cache",
        ),
        Mutant(
            "stridebench.harness.core.canvas:Canvas.read",
            'if sees == "filled":',
            "if False:",
            "an entry attends to those at smaller positions, and a query not to known cells behind it",
        ),
        Mutant(
            "stridebench.harness.core.canvas:Canvas.read",
            "visible = filled | ~filled[cached:, None]",
            "visible = torch.ones_like(visible)",
            "tokens attend to the queries of their pass",
        ),
    )

    def __post_init__(self) -> None:
        if not all(size.strip().isdecimal() and int(size) > 0 for size in str(self.groups).split(",")):
            raise UsageError(
                f"lpd: groups is {self.groups!r}; give sizes of 1 or more with commas between them, such as 1,1,2,3"
            )
        if self.repulsion < 0:
            raise UsageError(f"lpd: repulsion is {self.repulsion}; give a distance in cells, 0 for none")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return s, as far as it is stated."""
        return tuple(map(int, str(self.groups).split(",")))

    @property
    def claim(self) -> Claim:
        return Claim.SAME_LAW if set(self.sizes) == {1} else Claim.APPROXIMATE

    def cell_order(self, grid: Grid) -> Sequence[int]:
        return [cell for group in self.cells(grid) for cell in group]

    def cells(self, grid: Grid) -> list[list[int]]:
        """Return the cells of each group, by raster index."""
        return [
            [row * grid.columns + column for row, column in group] for group in _groups(self, grid.rows, grid.columns)
        ]

    def start(self, run: Run) -> list[list[int]]:
        return run.canvas.groups(self.cells)

    def step(self, run: Run, state: list[list[int]]) -> Fill:
        group = state.pop(0)
        p = run.probs(run.canvas.ask(group))
        return Fill(torch.tensor(group, device=run.canvas.device), run.draws.categorical(p, "draft"))

    @classmethod
    def variants(cls) -> Sequence[LPD]:
        return (cls(), cls("1,1,2"), cls(2), cls("1,3", repulsion=0), cls("2,1", order_seed=1))


@lru_cache(maxsize=64)
def _groups(method: LPD, rows: int, columns: int) -> list[list[Cell]]:
    """Return the groups of a picture, which are the same for every prompt."""
    every = [(row, column) for row in range(rows) for column in range(columns)]
    known: set[Cell] = set()
    groups: list[list[Cell]] = []
    while len(known) < len(every):
        turn = len(groups)
        left = [cell for cell in every if cell not in known]
        left.sort(key=lambda cell: hashlib.blake2b(f"{method.order_seed} {turn} {cell}".encode()).digest())
        size = method.sizes[min(turn, len(method.sizes) - 1)]
        groups.append(next_group(left, known, size, method.repulsion))
        known.update(groups[-1])
    return groups


def next_group(left: Sequence[Cell], known: Collection[Cell], size: int, repulsion: int) -> list[Cell]:
    """Return at most ``size`` empty cells to fill in one pass.

    Those whose closeness to known cells is `NEAR` or more are taken, the closest first, unless one taken before is
    within the repulsion. If they are too few, the cell farthest from those taken follows, again and again.

    Args:
        left: empty cells; of equal ones the first is taken.
    """
    ranked = sorted(left, key=lambda cell: -closeness(cell, known))
    group: list[Cell] = []
    for cell in ranked:
        near = closeness(cell, known) >= NEAR
        if len(group) < size and near and all(_steps(cell, other) > repulsion for other in group):
            group.append(cell)
    while len(group) < min(size, len(left)):
        rest = [cell for cell in ranked if cell not in group]
        group.append(max(rest, key=lambda cell: min((math.dist(cell, other) for other in group), default=0.0)))
    return group


def closeness(cell: Cell, known: Collection[Cell]) -> float:
    """Return the sum of 1 / distance over the known ones of the eight neighbours of a cell."""
    row, column = cell
    around = ((i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j)
    return math.fsum(1 / math.hypot(i, j) for i, j in around if (row + i, column + j) in known)


def _steps(a: Cell, b: Cell) -> int:
    return max(abs(a[0] - b[0]), abs(a[1] - b[1]))
