"""Drafts of whole rows of a picture, from a model of the same pictures at 1/r of the scale.

Symbols: x cells of the large picture, y cells of the small one, r linear factor, N positions of a band, C its cells.
Source: MuLo-SD, Algorithm 1, steps 7, 1 and 2: D_r, M_q and U_r.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.canvas import Canvas
from stridebench.harness.core.capabilities import Capabilities
from stridebench.harness.core.draws import Stream
from stridebench.harness.core.method import Mutant
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.methods.drafters.scales.net import Samplers
from stridebench.methods.verifiers.codebook import codes_of, ids_of

# Cells of a picture's rows, drawn one by one or, as ZipAR does, several rows side by side.
# Symbols: N positions of a band, C its cells. Source: MuLo-SD, Algorithm 1, steps 1 and 6; He et al. 2024,
# arXiv:2412.04062, section 3.


@dataclass(frozen=True)
class Band:
    """Rows of a picture, with the ends of rows and, behind the last row of the picture, its tail.

    A canvas that ends inside the picture ends the band, which then has fewer cells than its rows.

    Args:
        row: the first.
        rows: how many.
        columns: of cells.
        first, stop: its positions.
        cells: positions of its cells, in raster order.
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
        """Indices of its cells among its positions."""
        return torch.tensor(self.cells, device=device) - self.first

    def blank(self, canvas: Canvas) -> Int[Tensor, " N"]:
        """Ids at its positions: ends and tail are forced, and cells are 0."""
        grid = canvas.capabilities.grid
        assert grid is not None
        return torch.tensor([grid.forced(p) or 0 for p in range(self.first, self.stop)], device=canvas.device)


def parallel_cells(left: Sequence[int], columns: int, window: int) -> list[int]:
    """Cells to draw at once: the first, and with a window each row's first that is so far behind the row above.

    Args:
        left: cells to draw, ascending.
        columns: of a row.
        window: ZipAR's, in cells; 0: one cell at a time.
    """
    first_of_row = {n // columns: n for n in reversed(left)}
    together: list[int] = []
    ahead = 0
    for n in sorted(first_of_row.values()):
        if not together or 0 < window <= ahead - n % columns:
            together.append(n)
        ahead = n % columns
    return together


@dataclass(frozen=True)
class CellSampler:
    """Draws cells of one band.

    Args:
        run: its distributions and draws.
        canvas: read cell by cell.
        band: of the cells.
        stream: of the draws.
        window: see `parallel_cells`.
    """

    run: Run
    canvas: Canvas
    band: Band
    stream: Stream
    window: int

    def draw(
        self,
        x: Int[Tensor, " N"],
        r: Sequence[int],
        p: Float[Tensor, "C V"] | None = None,
        unread: Sequence[int] = (),
    ) -> list[int]:
        """Write tokens over the cells r of x; return the positions of those that no pass has read yet.

        A pass reads the token before each cell, which may be an end of row, and the new ones not read yet.

        Args:
            x: ids at the band's positions.
            r: cells to draw, ascending.
            p: distributions of the band's cells, where a pass over x gave them. Cells before any new token are drawn
                from these. Without ``p`` the cells r are still empty: where a row begins before the one above has
                ended, the newest token of that row is read in place of its last one.
            unread: positions that the first pass must read.
        """
        band, left, late = self.band, r, list(unread)
        while left:
            cells = parallel_cells(left, band.columns, self.window)
            positions = [band.cells[n] for n in cells]
            if p is not None and len(left) == len(r):
                probs = p[cells]
            else:
                inputs = sorted({*late, *(position - 1 for position in positions)})
                above = x.new_tensor([self.canvas.tokens[i] for i in inputs if i < band.first])
                empty = {band.cells[n] for n in left} if p is None else set[int]()
                ids = torch.cat([above, x[[_last_filled(i, empty) - band.first for i in inputs[len(above) :]]]])
                rows = [inputs.index(position - 1) for position in positions]
                probs = self.run.probs(self.canvas.read(ids, inputs))[rows]
            x[[position - band.first for position in positions]] = self.run.draws.categorical(probs, self.stream)
            left, late = [n for n in left if n not in cells], positions
        return late


def _last_filled(position: int, empty: set[int]) -> int:
    """The last position up to this one that is not empty."""
    return next(candidate for candidate in range(position, -1, -1) if candidate not in empty)


UNTRAINED = ("repeat", "bilinear")


@dataclass(frozen=True)
class BandDrafter:
    """Draws bands.

    Args:
        canvas: of the drafter, on the same prompt.
        samplers: between the two scales.
    """

    canvas: Canvas
    samplers: Samplers

    @classmethod
    def open(cls, run: Run, drafter: str, samplers: str, factor: int) -> BandDrafter:
        """A backbone by name, and samplers: untrained ones by kind, others as ``run.component`` finds them.

        Raises:
            UsageError: the drafter or the samplers do not fit target and factor.
            WeightsError: there are no samplers.
        """
        canvas = run.picture(drafter, factor)
        _check_scales(drafter, canvas.capabilities, run.capabilities, factor)
        assert run.capabilities.codebook is not None
        untrained = samplers if samplers in UNTRAINED else "repeat"
        folder = None if samplers in UNTRAINED else run.component("samplers", samplers)
        return cls(canvas, _load(folder, untrained, factor, run.capabilities.codebook))

    def propose(self, run: Run, band: Band, window: int = 0) -> Int[Tensor, " N"]:
        """Ids at all positions of the band; ends and tail are forced.

        Distributions of small cells are warped as the target's. The small rows above are D_r of the large ones, not
        those that were drawn before. U_r reads only the new rows.

        Args:
            window: see `parallel_cells`; 0: one pass a small cell.
        """
        canvas, grid = run.canvas, run.capabilities.grid
        assert grid is not None
        ids = ids_of(run.capabilities, canvas.device)
        small = Band.of(self.canvas, band.row // self.samplers.factor, band.rows // self.samplers.factor)
        prefix: list[int] = []
        if band.row:
            rows = range(grid.start, band.first, grid.stride)
            x = torch.tensor([[canvas.tokens[first + c] for c in range(grid.columns)] for first in rows])
            codes = codes_of(ids, x.to(canvas.device), run.capabilities.vocabulary)
            y = ids[run.timed(run.timed(self.samplers.down, "down"))(codes)]
            above = Band.of(self.canvas, 0, small.row)
            out = above.blank(self.canvas)
            out[above.at(out.device)] = y.flatten()
            prefix = out.tolist()
        unread = self.canvas.rewrite(prefix)
        drawn = small.blank(self.canvas)
        CellSampler(run, self.canvas, small, "draft", window).draw(drawn, range(len(small.cells)), unread=unread)
        y = drawn[small.at(drawn.device)].view(small.rows, -1)
        fine = ids[run.timed(run.timed(self.samplers.up, "up"))(codes_of(ids, y, run.capabilities.vocabulary))]
        out = band.blank(canvas)
        out[band.at(canvas.device)] = fine.flatten()[: len(band.cells)]
        return out


@lru_cache(maxsize=4)
def _load(folder: Path | None, untrained: str, factor: int, codebook: Tensor) -> Samplers:
    """Read once for all prompts."""
    if folder is None:
        return Samplers.untrained(untrained, codebook, factor)
    samplers = Samplers.load(folder, codebook)
    if samplers.factor != factor:
        raise UsageError(f"the samplers in {folder} are of factor {samplers.factor}, and the method's is {factor}")
    return samplers


def _check_scales(name: str, small: Capabilities, large: Capabilities, factor: int) -> None:
    """Reject a drafter that does not draw the same pictures at 1/r.

    Raises:
        UsageError: its pictures have another size, or its cells other codes.
    """
    grid, codebook = large.grid, large.codebook
    assert grid is not None and codebook is not None
    if small.grid is None or (small.grid.rows * factor, small.grid.columns * factor) != (grid.rows, grid.columns):
        size = "no pictures" if small.grid is None else f"pictures of {small.grid.rows} x {small.grid.columns} cells"
        raise UsageError(
            f"the drafter {name!r} makes {size} and the target {grid.rows} x {grid.columns}: at factor {factor} the "
            f"drafter's are 1/{factor} as high and wide; choose another drafter or factor"
        )
    same_codes = small.codebook is not None and torch.equal(small.codebook.to(codebook), codebook)
    if small.grid.ids != grid.ids or not same_codes:
        raise UsageError(f"the drafter {name!r} has other codes than the target; choose one of the same tokenizer")


# Bugs to inject into the drawing of cells and into the canvas that they are read from.


REDRAWN_TOKEN_NEVER_READ = Mutant(
    "stridebench.methods.drafters.scales.drafter:CellSampler.draw",
    "{*late, ",
    "{",
    "a redrawn token is never read",
)
DRAFT_ENTRY_STAYS = Mutant(
    "stridebench.harness.core.canvas:Canvas.read",
    "frozenset(positions)",
    "frozenset()",
    "the KV entry of a replaced draft stays",
)
