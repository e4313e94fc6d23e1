"""The capabilities of a backbone, and the requirements of a method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class Requirement(Enum):
    """A need of a method beyond a causal pass; if it is not met, the cell is skipped with that reason."""

    TREE_MASK = "windows in which rows see chosen rows only"
    DRAFTER = "a second model of the same vocabulary"
    GRID = "tokens laid out on a two-dimensional grid"
    ANY_ORDER = "positions read and filled in any order"
    CODEBOOK = "a vector for each id that a cell of its grid may take"
    HIDDEN = "hidden rows of chosen layers with the logits"
    BIDIRECTIONAL = "a masked model, whose rows give the distribution of their own position and see both sides"
    LAST_LOGITS = "an input for the logits of an earlier pass, and uniform noise in place of a mask"
    CONDITION = "rows that its encoder made of the prompt's condition"
    GATE = "an adapter of its weights, on or off row by row"
    BOTH_MASKS = "a causal model that also fills a block of masks, whose rows see both sides"
    QUERIES = "an order-free model, in which a query gives the distribution of its cell, whichever cells are known"


UNORDERED = frozenset({Requirement.BIDIRECTIONAL, Requirement.QUERIES})
"""Of models whose rows give the distribution of their own position, so that there is none of a next token."""


Tap = int | Literal["middle"]
"""A layer of L whose input a method reads: 0 is the embedding, L or -1 the normed row that the head reads, -2 what
enters the last layer; "middle" is L // 2."""


@dataclass(frozen=True)
class Grid:
    """A picture's cells in raster order, each row closed by a forced token if the model has one.

    Args:
        rows: number of rows of cells.
        columns: cells of a row.
        eol: the id that ends each row, or None if rows have no end token.
        tail: ids forced after the last row.
        start: position of the first cell, which is the prompt's length.
        ids: those that a cell may take, in order, or None if any.
    """

    rows: int
    columns: int
    eol: int | None = None
    tail: tuple[int, ...] = ()
    start: int = 0
    ids: Sequence[int] | None = None

    @property
    def stride(self) -> int:
        """Return the tokens of a row, its end included."""
        return self.columns + (self.eol is not None)

    @property
    def length(self) -> int:
        """Return the tokens of a whole picture, forced ones included."""
        return self.rows * self.stride + len(self.tail)

    def cell(self, position: int) -> tuple[int, int] | None:
        """Return row and column of the cell at a position, or None at a forced token and outside the picture."""
        row, column = divmod(position - self.start, self.stride)
        return (row, column) if 0 <= row < self.rows and column < self.columns else None

    def left(self, position: int) -> int | None:
        """Return the position of the cell to the left, or None if there is none."""
        cell = self.cell(position)
        return None if cell is None or cell[1] == 0 else position - 1

    def above(self, position: int) -> int | None:
        """Return the position of the cell above, or None if there is none."""
        cell = self.cell(position)
        return None if cell is None or cell[0] == 0 else position - self.stride

    def forced(self, position: int) -> int | None:
        """Return the only id allowed at a position, or None if there is a choice."""
        offset = position - self.start
        if 0 <= offset < self.rows * self.stride:
            return self.eol if offset % self.stride == self.columns else None
        late = offset - self.rows * self.stride
        return self.tail[late] if 0 <= late < len(self.tail) else None


@dataclass(frozen=True)
class Capabilities:
    """The properties of a backbone: its vocabulary, its context and the requirements that it meets.

    Args:
        vocabulary: V, the number of token ids; every distribution covers all of them.
        context: the most entries a cache may hold.
        eos: ids that end a text; empty if the length is fixed.
        turn_ends: those of them that end a turn of a conversation, not the text.
        meets: the requirements met.
        grid: how output tokens lie in a picture, or None if they do not make one. In a run it starts behind the prompt.
        codebook: row i is the vector of ``grid.ids[i]``; or None if there are none.
        layers: L, of its hidden rows; 0 if it serves none.
        width: E of its hidden rows.
        branches: G of its hidden rows.
        guidance: s of z_u + s (z_c - z_u), which mixes its two branches, c first; 1 if there is one branch.
        mask: the id at positions that a masked model fills; it has probability zero. None if the model is not
            masked, or if positions to fill hold any id (uniform noise).
        block: if not 0, entries see their block of so many positions, counted from 0, and earlier blocks.
        condition: C, the width of the rows that it makes of a prompt's condition; 0 if it makes none.
        pard: the id whose copies behind a text a causal model was tuned to fill in one pass; None if it was not.
        queries: the id of the query of each cell of the grid, in raster order; empty if the model is not order-free.
        block_mask: of a model that meets BOTH_MASKS, the id at positions of a block that it fills, each row its own.
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
    block: int = 0
    condition: int = 0
    pard: int | None = None
    block_mask: int | None = None
    turn_ends: frozenset[int] = frozenset()
    queries: Sequence[int] = ()

    @property
    def cell_ids(self) -> Sequence[int]:
        """Return the ids that a cell of the grid may take, or the whole vocabulary if the backbone names none."""
        return range(self.vocabulary) if self.grid is None or self.grid.ids is None else self.grid.ids
