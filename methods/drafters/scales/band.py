"""Cells of a picture's rows, drawn one by one or, as ZipAR does, side by side.

Symbols: N positions of a band, C its cells.
Source: MuLo-SD, Algorithm 1, steps 1 and 6; He et al. 2024, arXiv:2412.04062, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from harness.core.canvas import Canvas
from harness.core.draws import Stream
from harness.core.run import Run


@dataclass(frozen=True)
class Band:
    """Rows of a picture, with the ends of rows and, behind its last row, its tail.

    Args:
        row: the first; rows: how many; columns: of cells. first, stop: its positions; cells: those of cells, in raster
            order. A canvas that ends inside the picture ends the band, which then has fewer cells than its rows.
    """

    row: int
    rows: int
    columns: int
    first: int
    stop: int
    cells: tuple[int, ...]

    @classmethod
    def of(cls, canvas: Canvas, row: int, rows: int) -> Band:
        """At most ``rows`` rows from ``row`` on, as far as the canvas goes."""
        grid = canvas.capabilities.grid
        assert grid is not None
        rows = min(rows, grid.rows - row)
        first = grid.start + row * grid.stride
        tail = len(grid.tail) if row + rows == grid.rows else 0
        stop = min(first + rows * grid.stride + tail, canvas.end)
        cells = tuple(p for p in range(first, stop) if grid.cell(p) is not None)
        return cls(row, rows, grid.columns, first, stop, cells)

    def at(self, device: torch.device) -> Int[Tensor, " C"]:
        """Where its cells lie among its positions."""
        return torch.tensor(self.cells, device=device) - self.first

    def blank(self, canvas: Canvas) -> Int[Tensor, " N"]:
        """Ids at its positions: ends and tail are what they must be, and cells are 0."""
        grid = canvas.capabilities.grid
        assert grid is not None
        return torch.tensor([grid.forced(p) or 0 for p in range(self.first, self.stop)], device=canvas.device)


def parallel_cells(left: Sequence[int], columns: int, window: int) -> list[int]:
    """Cells to draw again at once: the first, and with a window each row's first that is so far behind the row above.

    Args:
        left: cells to draw again, ascending. columns: of a row. window: ZipAR's, in cells; 0: one cell at a time.
    """
    first = {n // columns: n for n in reversed(left)}
    now: list[int] = []
    ahead = 0
    for n in sorted(first.values()):
        if not now or 0 < window <= ahead - n % columns:
            now.append(n)
        ahead = n % columns
    return now


def draw_cells(
    run: Run,
    canvas: Canvas,
    band: Band,
    x: Int[Tensor, " N"],
    r: Sequence[int],
    stream: Stream,
    window: int,
    p: Float[Tensor, "C V"] | None = None,
    unread: Sequence[int] = (),
) -> list[int]:
    """Write tokens over the cells r of a band; returns the positions of those that no pass has read yet.

    A pass reads the token before each cell, which may be an end of row, and the new ones not read yet.

    Args:
        x: ids at the band's positions.
        r: cells to draw, ascending.
        window: see `parallel_cells`.
        p: distributions of the band's cells, where a pass over x gave them. Cells before any new token are drawn from
            these. Without ``p`` the cells r are still empty: where a row begins before the one above has ended, the
            newest token of that row is read in place of its last one.
        unread: positions that the first pass must read.
    """
    left, late = r, list(unread)
    while left:
        now = parallel_cells(left, band.columns, window)
        places = [band.cells[n] for n in now]
        if p is not None and len(left) == len(r):
            probs = p[now]
        else:
            fed = sorted({*late, *(place - 1 for place in places)})
            above = x.new_tensor([canvas.tokens[f] for f in fed if f < band.first])
            empty = {band.cells[n] for n in left} if p is None else set[int]()
            ids = torch.cat([above, x[[_filled(f, empty) - band.first for f in fed[len(above) :]]]])
            probs = run.probs(canvas.read(ids, fed))[[fed.index(place - 1) for place in places]]
        x[[place - band.first for place in places]] = run.draws.categorical(probs, stream)
        left, late = [n for n in left if n not in now], places
    return late


def _filled(position: int, empty: set[int]) -> int:
    """The last one up to here that is not empty."""
    return next(place for place in range(position, -1, -1) if place not in empty)
