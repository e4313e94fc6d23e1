"""How empty positions of a Jacobi window are filled: with random ids, or from a neighbour.

Source: Teng et al. 2025, arXiv:2410.01699, token initialisation; SJD++, Table 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.capabilities import Grid
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.methods.verifiers.image_codes import ids_of

Init = Literal["uniform", "random", "h-repeat", "v-repeat", "h-sample", "v-sample"]
VERTICAL = ("v-repeat", "v-sample")


@dataclass(frozen=True, eq=False)
class Initialiser:
    """One initialisation, for one run.

    Args:
        name: see `JacobiWindow.fill`.
        ids: that a position may take.
        uniform: the uniform distribution over them.
    """

    name: Init
    ids: Int[Tensor, " I"]
    uniform: Float[Tensor, "1 V"]

    @classmethod
    def of(cls, run: Run, name: Init) -> Initialiser:
        """The initialisation of this name.

        Raises:
            UsageError: it looks at the row above, and the tokens form no rows.
        """
        if name in VERTICAL and run.capabilities.grid is None:
            raise UsageError(f"init is {name}, and this backbone's tokens lie in no rows; use h-{name[2:]}")
        ids = ids_of(run.capabilities, run.target.device)
        uniform = torch.zeros(1, run.capabilities.vocabulary, dtype=torch.float64, device=ids.device)
        return cls(name, ids, uniform.index_fill_(1, ids, 1 / len(ids)))

    def __deepcopy__(self, memo: dict[int, Any]) -> Initialiser:
        return self

    @property
    def ignores_neighbours(self) -> bool:
        """Whether its ids are random."""
        return self.name in ("uniform", "random")

    @property
    def copies(self) -> bool:
        """Whether it takes a neighbour's id, not its distribution."""
        return self.name.endswith("repeat")

    def neighbour(self, grid: Grid | None, position: int) -> int | None:
        """The position that it looks at; None where there is none."""
        if self.ignores_neighbours:
            return None
        if grid is None:
            return position - 1
        return grid.above(position) if self.name in VERTICAL else grid.left(position)

    def reach(self, grid: Grid | None) -> int:
        """How many emitted tokens' distributions it may look back at."""
        return {"h-sample": 1, "v-sample": grid.stride if grid else 1}.get(self.name, 0)

    def random_ids(self, run: Run, count: int) -> Draft:
        """Uniform ids, recorded as such or as point masses."""
        tokens = self.ids[run.draws.integers(count, len(self.ids), "init")]
        return Draft(tokens, self.uniform.expand(count, -1) if self.name == "uniform" else None)
