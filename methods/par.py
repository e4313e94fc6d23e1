"""Parallelized autoregressive visual generation (PAR): one cell of every region of a picture in each pass.

Source: Wang et al. 2024, arXiv:2412.15119, section 3.2.
Symbols: r x r regions, n cells. Passes: r^2 + n / r^2 - 1; autoregressive decoding takes n.
Cells next to each other depend on each other most, so cells of a group are far apart. The paper's model predicts a
group from the tokens of the group before, and learned tokens lead from single cells to groups. Here an order-free model
is asked for the cells of a group by queries (see `Canvas.ask`), so that one model serves this order and that of `lpd`.
In both each cell of a group knows all earlier groups and none of its own. The released checkpoints are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch

from stridebench.harness.core.capabilities import Grid, Requirement
from stridebench.harness.core.draft import Fill
from stridebench.harness.core.method import Claim, Method, Mutant
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS


@METHODS.register("par")
@dataclass(frozen=True)
class PAR(Method[list[list[int]]]):
    """Fill the first cell of every region one by one, then the second cells of all regions at once, and so on.

    Args:
        regions: r, of a picture that is cut r times along each side; 1 is raster order, one cell a pass. The paper has
            2 and 4.
    """

    regions: int = 2

    requirements = frozenset({Requirement.GRID, Requirement.ANY_ORDER, Requirement.QUERIES})
    source = "arXiv:2412.15119, section 3.2"
    exact_at = "regions = 1"
    mutants = (
        Mutant(
            "stridebench.harness.core.canvas:Canvas.ask",
            "return logits[[places.index(place) for place in positions]]",
            "return logits[[places.index(place) - (places[0] < place) for place in positions]]",
            "a cell is drawn from the row before its query",
        ),
        Mutant(
            "stridebench.harness.core.canvas:Canvas.ask",
            "inputs |= {place: queries[place - grid.start] for place in positions}",
            "inputs |= {place: self.tokens[self._base] for place in positions}",
            "a cell is asked for by a token in place of its query",
        ),
    )

    def __post_init__(self) -> None:
        if self.regions < 1:
            raise UsageError(f"par: regions is {self.regions}; a picture is cut into 1 or more along each side")

    @property
    def claim(self) -> Claim:
        return Claim.SAME_LAW if self.regions == 1 else Claim.APPROXIMATE

    def cell_order(self, grid: Grid) -> Sequence[int]:
        return [cell for group in self.cells(grid) for cell in group]

    def cells(self, grid: Grid) -> list[list[int]]:
        """Return the cells of each group, by raster index.

        Raises:
            UsageError: the regions do not divide the picture.
        """
        if grid.rows % self.regions or grid.columns % self.regions:
            raise UsageError(
                f"par: regions is {self.regions} and the picture has {grid.rows} x {grid.columns} cells; give a number "
                f"that divides both"
            )
        height, width = grid.rows // self.regions, grid.columns // self.regions
        corners = [
            top * grid.columns + left for top in range(0, grid.rows, height) for left in range(0, grid.columns, width)
        ]
        first, *others = (row * grid.columns + column for row, column in product(range(height), range(width)))
        return [[corner + first] for corner in corners] + [[corner + cell for corner in corners] for cell in others]

    def start(self, run: Run) -> list[list[int]]:
        return run.canvas.groups(self.cells)

    def step(self, run: Run, state: list[list[int]]) -> Fill:
        group = state.pop(0)
        p = run.probs(run.canvas.ask(group))
        return Fill(torch.tensor(group, device=run.canvas.device), run.draws.categorical(p, "draft"))

    @classmethod
    def variants(cls) -> Sequence[PAR]:
        return (cls(1), cls(2))
