"""What a backbone offers and what a method requires of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from jaxtyping import Float
from torch import Tensor


class Requirement(Enum):
    """What a method asks of a backbone beyond a causal pass; an unmet need is a skip with that reason."""

    TREE_MASK = "windows in which rows see chosen rows only"
    DRAFTER = "a second model of the same vocabulary"
    GRID = "tokens laid out on a two-dimensional grid"
    ANY_ORDER = "positions read and filled in any order"
    CODEBOOK = "a vector for each id that a cell of its grid may take"
    HIDDEN = "hidden rows of chosen layers beside the logits"
    BIDIRECTIONAL = "a masked model, whose rows give the law of their own position and see both sides"
    CONDITION = "rows that its encoder made of the prompt's condition"
    GATE = "an adapter beside its weights, on or off row by row"


Tap = int | Literal["middle"]
"""A layer whose input is wanted, of L: 0 is the embedding, L or -1 the normed row that the head reads, -2 what enters
the last layer; "middle" is L // 2."""


@dataclass(frozen=True)
class Grid:
    """A picture's cells in raster order, each row closed by a forced token where the model has one.

    Args:
        rows: of cells. columns: of cells. eol: the id that ends each row; None where rows just follow one another.
        tail: ids forced after the last row. start: position of the first cell: the prompt's length.
        ids: that a cell may take, in order; None: any.
    """

    rows: int
    columns: int
    eol: int | None = None
    tail: tuple[int, ...] = ()
    start: int = 0
    ids: Sequence[int] | None = None

    @property
    def stride(self) -> int:
        """Tokens a row, its end included."""
        return self.columns + (self.eol is not None)

    @property
    def length(self) -> int:
        """Tokens of a whole picture, forced ones included."""
        return self.rows * self.stride + len(self.tail)

    def cell(self, position: int) -> tuple[int, int] | None:
        """Row and column of the cell at a position; None at a forced token and outside the picture."""
        row, column = divmod(position - self.start, self.stride)
        return (row, column) if 0 <= row < self.rows and column < self.columns else None

    def left(self, position: int) -> int | None:
        """Position of the cell to the left; None where there is none."""
        cell = self.cell(position)
        return None if cell is None or cell[1] == 0 else position - 1

    def above(self, position: int) -> int | None:
        """Position of the cell above; None where there is none."""
        cell = self.cell(position)
        return None if cell is None or cell[0] == 0 else position - self.stride

    def forced(self, position: int) -> int | None:
        """The only id allowed at a position; None where there is a choice."""
        offset = position - self.start
        if 0 <= offset < self.rows * self.stride:
            return self.eol if offset % self.stride == self.columns else None
        late = offset - self.rows * self.stride
        return self.tail[late] if 0 <= late < len(self.tail) else None


@dataclass(frozen=True)
class Capabilities:
    """What a backbone is: its vocabulary, its context and the needs that it meets.

    Args:
        vocabulary: V, the number of token ids, all of which a law covers.
        context: the most entries a cache may hold.
        eos: ids that end a text; empty where the length is fixed.
        meets: the needs served.
        grid: how its output tokens lie in a picture; None where they do not. In a run it starts behind the prompt.
        codebook: row i is the vector of ``grid.ids[i]``; None where there are none.
        layers, width, branches: of its hidden rows: L, E and G; 0 layers where it serves none.
        guidance: s of the mixing z_u + s (z_c - z_u) of its two branches, the first of which is c; 1: there is one.
        mask: the id at positions that a masked model is to fill, which no law of it gives; None: it is no such model.
        condition: C, the width of the rows that it makes of a prompt's condition; 0: it lends none.
    """

    vocabulary: int
    context: int
    eos: frozenset[int] = frozenset()
    meets: frozenset[Requirement] = frozenset()
    grid: Grid | None = None
    codebook: Float[Tensor, "I C"] | None = field(default=None, compare=False, repr=False)
    layers: int = 0
    width: int = 0
    branches: int = 1
    guidance: float = 1.0
    mask: int | None = None
    condition: int = 0
