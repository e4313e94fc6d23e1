"""4x4 sudokus with few clues, written as text; most have several answers.

A grid has 1 to 4 once in every row, column and 2x2 box; there are 288 grids. A puzzle shows some cells of a grid.
Cells depend on each other, so answers drawn from the marginal distributions of single cells are rarely grids. The order
of decoding matters for such puzzles (Kim et al. 2025, arXiv:2502.06768).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import permutations, product
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Int

SIDE = 4
CELLS = SIDE * SIDE
BOX = 2
DIGITS = "1234"
HIDDEN = "."
ASK = "="
CLUES = range(2, 7)
"""Numbers of clues of a puzzle."""
HELD_OUT = 16
"""One puzzle in this many is held out."""


@dataclass(frozen=True)
class Puzzle:
    """Some cells of a grid.

    Args:
        clues: 16 characters in raster order, a digit or a point.
        answer: 16 digits: the grid that it was drawn from, which is one of its answers.
    """

    clues: str
    answer: str

    @property
    def text(self) -> str:
        """Return the tokens that a model reads."""
        return self.clues + ASK

    @property
    def held_out(self) -> bool:
        """Whether it is kept for evaluation. Its clues alone decide, whatever the seed and the grid."""
        return hashlib.sha256(self.clues.encode()).digest()[0] % HELD_OUT == 0


@cache
def grids() -> Int[np.ndarray, "288 16"]:
    """Every grid, digits 1 to 4 in raster order."""
    rows = ["".join(row) for row in permutations(DIGITS)]
    bands = [a + b for a, b in product(rows, repeat=BOX) if len({*a[:BOX], *b[:BOX]}) == SIDE]
    valid = [list(map(int, a + b)) for a, b in product(bands, repeat=BOX) if not faults(a + b)]
    return np.array(valid)


def faults(text: str) -> int:
    """Number of the 12 rows, columns and boxes that do not have every digit once.

    Args:
        text: 16 characters in raster order; a shorter text lacks the last cells.
    """
    return sum(sorted(text[at : at + 1] for at in unit) != list(DIGITS) for unit in UNITS)


def solves(clues: str, text: str) -> bool:
    """Whether an answer is a grid with these clues."""
    agrees = len(text) == CELLS and all(a in (HIDDEN, b) for a, b in zip(clues, text, strict=True))
    return agrees and not faults(text)


def answers(clues: str) -> int:
    """Number of answers of a puzzle."""
    cells = np.array([0 if cell == HIDDEN else int(cell) for cell in clues])
    return int(((cells == 0) | (grids() == cells)).all(1).sum())


def puzzles(random: np.random.Generator, held_out: bool) -> Iterator[Puzzle]:
    """An endless stream of puzzles of one split. Grid, number of clues and their cells are drawn uniformly."""
    while True:
        grid = "".join(map(str, grids()[int(random.integers(len(grids())))]))
        clue_cells = set(random.permutation(CELLS)[: int(random.choice(CLUES))].tolist())
        clues = "".join(cell if at in clue_cells else HIDDEN for at, cell in enumerate(grid))
        puzzle = Puzzle(clues, grid)
        if puzzle.held_out == held_out:
            yield puzzle


def _units() -> tuple[tuple[int, ...], ...]:
    """Cells of the rows, the columns and the boxes."""
    places = np.arange(CELLS).reshape(SIDE, SIDE)
    boxes = places.reshape(BOX, BOX, BOX, BOX).swapaxes(1, 2).reshape(SIDE, SIDE)
    return tuple(tuple(int(at) for at in unit) for unit in (*places, *places.T, *boxes))


UNITS = _units()
