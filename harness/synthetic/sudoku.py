"""A world of puzzles with several answers: 4x4 sudokus of which few cells are given, written out as text.

A grid holds 1 to 4 once in every row, column and 2x2 box; there are 288. A puzzle shows some cells of one and hides the
others, so most puzzles have more than one answer. What must not be repeated ties cells together: the laws of single
cells, each right by itself, do not make a grid. It is the known example of an order of decoding that matters (Kim et
al. 2025, arXiv:2502.06768).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import permutations, product

import numpy as np
from jaxtyping import Int

SIDE = 4
CELLS = SIDE * SIDE
BOX = 2
DIGITS = "1234"
HIDDEN = "."
ASK = "="
GIVEN = range(2, 7)
"""How many cells a puzzle shows."""
HELD_OUT = 16
"""One puzzle in so many is held out, chosen by its text."""


@dataclass(frozen=True)
class Puzzle:
    """Some cells of a grid.

    Args:
        shown: 16 characters in raster order, a digit or a point. answer: the grid that it was made from, 16 digits; one
            of those that it allows.
    """

    shown: str
    answer: str

    @property
    def text(self) -> str:
        """As a model reads it."""
        return self.shown + ASK

    @property
    def held_out(self) -> bool:
        """Whether it is kept for evaluation, whichever seed writes it and whichever grid it is made from."""
        return hashlib.sha256(self.shown.encode()).digest()[0] % HELD_OUT == 0


@cache
def grids() -> Int[np.ndarray, "288 16"]:
    """Every grid, digits 1 to 4 in raster order."""
    rows = ["".join(row) for row in permutations(DIGITS)]
    bands = [a + b for a, b in product(rows, repeat=BOX) if len({*a[:BOX], *b[:BOX]}) == SIDE]
    found = [list(map(int, a + b)) for a, b in product(bands, repeat=BOX) if not faults(a + b)]
    return np.array(found)


def faults(text: str) -> int:
    """Rows, columns and boxes, of 12, that do not hold every digit once.

    Args:
        text: 16 characters in raster order; of a shorter text the rest is missing.
    """
    return sum(sorted(text[at : at + 1] for at in unit) != list(DIGITS) for unit in UNITS)


def solves(shown: str, text: str) -> bool:
    """Whether an answer is a grid that keeps the cells shown."""
    kept = len(text) == CELLS and all(a in (HIDDEN, b) for a, b in zip(shown, text, strict=True))
    return kept and not faults(text)


def answers(shown: str) -> int:
    """How many grids a puzzle allows."""
    cells = np.array([0 if cell == HIDDEN else int(cell) for cell in shown])
    return int(((cells == 0) | (grids() == cells)).all(1).sum())


def puzzles(random: np.random.Generator, held_out: bool) -> Iterator[Puzzle]:
    """Puzzles of one side of the split, without end: a grid, a number of cells and those cells, each evenly drawn."""
    while True:
        grid = "".join(map(str, grids()[int(random.integers(len(grids())))]))
        seen = set(random.permutation(CELLS)[: int(random.choice(GIVEN))].tolist())
        shown = "".join(cell if at in seen else HIDDEN for at, cell in enumerate(grid))
        found = Puzzle(shown, grid)
        if found.held_out == held_out:
            yield found


def _units() -> tuple[tuple[int, ...], ...]:
    """Cells of the rows, the columns and the boxes."""
    places = np.arange(CELLS).reshape(SIDE, SIDE)
    boxes = places.reshape(BOX, BOX, BOX, BOX).swapaxes(1, 2).reshape(SIDE, SIDE)
    return tuple(tuple(int(at) for at in unit) for unit in (*places, *places.T, *boxes))


UNITS = _units()
