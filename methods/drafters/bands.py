"""Drafts of whole rows of a picture, from a model of the same pictures at 1/r of the scale.

Symbols: x cells of the large picture, y cells of the small one, r linear factor, N positions of a band, C its cells.
Source: MuLo-SD, Algorithm 1, steps 7, 1 and 2: D_r, M_q and U_r.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from harness.contracts import Grid, Offers
from harness.errors import UsageError
from harness.method import Run
from harness.session import Session
from methods.drafters.codes import codes_of, ids_of
from methods.drafters.samplers import Samplers

UNTRAINED = ("repeat", "bilinear")


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
    def of(cls, run: Run, row: int, rows: int) -> Band:
        """At most ``rows`` rows from ``row`` on, as far as the canvas goes."""
        grid = run.offers.grid
        assert grid is not None
        rows = min(rows, grid.rows - row)
        first = grid.start + row * grid.stride
        tail = len(grid.tail) if row + rows == grid.rows else 0
        stop = min(first + rows * grid.stride + tail, run.canvas.end)
        cells = tuple(p for p in range(first, stop) if grid.cell(p) is not None)
        return cls(row, rows, grid.columns, first, stop, cells)

    def at(self, device: torch.device) -> Int[Tensor, " C"]:
        """Where its cells lie among its positions."""
        return torch.tensor(self.cells, device=device) - self.first


@dataclass(frozen=True)
class BandDrafter:
    """Draws bands.

    Args:
        session: of the drafter, on the same prompt. samplers: between the two scales.
    """

    session: Session
    samplers: Samplers

    @classmethod
    def open(cls, run: Run, drafter: str, samplers: str, factor: int) -> BandDrafter:
        """A backbone by name, and samplers: untrained ones by kind, others as ``run.part`` finds them.

        Raises:
            UsageError: the drafter or the samplers do not fit target and factor. WeightsError: there are no samplers.
        """
        session = run.open(drafter, factor)
        _check_scales(drafter, session.offers, run.offers, factor)
        assert run.offers.codebook is not None
        untrained = samplers if samplers in UNTRAINED else "repeat"
        folder = None if samplers in UNTRAINED else run.part("samplers", samplers)
        return cls(session, _load(folder, untrained, factor, run.offers.codebook))

    def propose(self, run: Run, band: Band) -> Int[Tensor, " N"]:
        """Ids at all positions of the band; ends and tail are what they must be.

        One pass a small cell; its law is warped as the target's. The small rows above are what D_r makes of the large
        ones, not those that were drawn before. U_r reads the new rows alone.
        """
        canvas, grid, small = run.canvas, run.offers.grid, self.session.offers.grid
        assert grid is not None and small is not None
        ids = ids_of(run.offers, canvas.device)
        prefix: list[int] = []
        if band.row:
            rows = range(grid.start, band.first, grid.stride)
            x = torch.tensor([[canvas.tokens[first + c] for c in range(grid.columns)] for first in rows])
            codes = codes_of(ids, x.to(canvas.device), run.offers.vocabulary)
            y = ids[run.timed(run.timed(self.samplers.down, "down"))(codes)]
            prefix = [token for row in y.tolist() for token in (*row, *_end(small))]
        self.session.sync([*self.session.tokens[: grid.start], *prefix])
        drawn = torch.stack([self._row(run, small) for _ in range(band.rows // self.samplers.factor)])
        fine = ids[run.timed(run.timed(self.samplers.up, "up"))(codes_of(ids, drawn, run.offers.vocabulary))]
        out = torch.tensor([grid.forced(p) or 0 for p in range(band.first, band.stop)], device=canvas.device)
        out[band.at(canvas.device)] = fine.flatten()[: len(band.cells)]
        return out

    def _row(self, run: Run, small: Grid) -> Int[Tensor, " w"]:
        """The next small row; its end takes no pass."""
        cells = []
        for _ in range(small.columns):
            cells.append(run.draws.categorical(run.law(self.session.forward()), "draft"))
            self.session.append(cells[-1])
        if small.eol is not None:
            self.session.append(cells[-1].new_tensor(_end(small)))
        return torch.cat(cells)


def _end(grid: Grid) -> list[int]:
    return [] if grid.eol is None else [grid.eol]


@lru_cache(maxsize=4)
def _load(folder: Path | None, untrained: str, factor: int, codebook: Tensor) -> Samplers:
    """Once for all prompts."""
    if folder is None:
        return Samplers.untrained(untrained, codebook, factor)
    found = Samplers.load(folder, codebook)
    if found.factor != factor:
        raise UsageError(f"the samplers in {folder} are of factor {found.factor}, and the method's is {factor}")
    return found


def _check_scales(name: str, small: Offers, large: Offers, factor: int) -> None:
    """Refuse a drafter that does not draw the same pictures at 1/r.

    Raises:
        UsageError: its pictures have another size, or its cells other codes.
    """
    a, b = small.grid, large.grid
    ours, theirs = large.codebook, small.codebook
    assert b is not None and ours is not None
    if a is None or (a.rows * factor, a.columns * factor) != (b.rows, b.columns):
        found = "no pictures" if a is None else f"pictures of {a.rows} x {a.columns} cells"
        raise UsageError(
            f"the drafter {name!r} makes {found} and the target {b.rows} x {b.columns}: at factor {factor} the "
            f"drafter's are 1/{factor} as high and wide; choose another drafter or factor"
        )
    if a.ids != b.ids or theirs is None or not torch.equal(theirs.to(ours), ours):
        raise UsageError(f"the drafter {name!r} has other codes than the target; choose one of the same tokenizer")
