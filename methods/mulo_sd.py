"""MuLo-SD: a model of smaller pictures drafts rows of a larger one; cells that the target rejects are drawn again.

Source: Multi-Scale Local Speculative Decoding (MuLo-SD), supplement 7, Algorithm 1.
Symbols: r factor between the scales, x drafts of a band, p the target's distributions, R cells drawn again, l radius.
A band takes one pass that judges all its drafts, and one for each cell of R but the first, whose distribution is in
that pass. Three things change the output distribution:
- A draft may stay that p would rarely draw.
- A draft is not judged again when a cell before it changes.
- Later cells still attend to KV entries computed from rejected drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.canvas import Canvas
from stridebench.harness.core.capabilities import Capabilities, Requirement
from stridebench.harness.core.draft import Fill
from stridebench.harness.core.draws import Stream
from stridebench.harness.core.method import Claim, Method, Mutant
from stridebench.harness.core.run import Run
from stridebench.harness.errors import ContractError, UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.scales import Samplers
from stridebench.methods.verifiers.codebook import cached_nearest, cluster_mass, codes_of, dilate, neighbour_count

# Symbols: x cells of the large picture, y cells of the small one, N positions of a band, C its cells. Steps 7, 1 and 2
# of Algorithm 1 are D_r, M_q and U_r.


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
        """Return at most ``rows`` rows from ``row`` on, as far as the canvas goes."""
        grid = canvas.capabilities.grid
        assert grid is not None
        rows = min(rows, grid.rows - row)
        first = grid.start + row * grid.stride
        tail = len(grid.tail) if row + rows == grid.rows else 0
        stop = min(first + rows * grid.stride + tail, canvas.end)
        cells = tuple(p for p in range(first, stop) if grid.cell(p) is not None)
        return cls(row, rows, grid.columns, first, stop, cells)

    def at(self, device: torch.device) -> Int[Tensor, " C"]:
        """Return the indices of its cells among its positions."""
        return torch.tensor(self.cells, device=device) - self.first

    def blank(self, canvas: Canvas) -> Int[Tensor, " N"]:
        """Return the ids at its positions: ends and tail are forced, and cells are 0."""
        grid = canvas.capabilities.grid
        assert grid is not None
        return torch.tensor([grid.forced(p) or 0 for p in range(self.first, self.stop)], device=canvas.device)


def parallel_cells(left: Sequence[int], columns: int, window: int) -> list[int]:
    """Return the cells to draw at once: the first, and with a window each row's first so far behind the row above.

    Args:
        left: cells to draw, ascending.
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
            r: cells to draw, ascending.
            p: distributions of the band's cells, if a pass over x gave them. Cells before any new token are drawn
                from these. Without ``p`` the cells r are still empty: if a row begins before the one above has
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
    """Return the last position up to this one that is not empty."""
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
        """Open a backbone by name, and samplers: untrained ones by kind, others as ``run.component`` finds them."""
        canvas = run.picture(drafter, factor)
        _check_scales(drafter, canvas.capabilities, run.capabilities, factor)
        assert run.capabilities.codebook is not None
        untrained = samplers if samplers in UNTRAINED else "repeat"
        folder = None if samplers in UNTRAINED else run.component("samplers", samplers)
        return cls(canvas, _load(folder, untrained, factor, run.capabilities.codebook))

    def propose(self, run: Run, band: Band, window: int = 0) -> Int[Tensor, " N"]:
        """Return ids at all positions of the band; ends and tail are forced.

        Distributions of small cells are warped as the target's. The small rows above are D_r of the large ones, not
        those that were drawn before. U_r reads only the new rows.

        Args:
            window: see `parallel_cells`; 0: one pass a small cell.
        """
        canvas, grid = run.canvas, run.capabilities.grid
        assert grid is not None
        ids = torch.tensor(run.capabilities.cell_ids, device=canvas.device)
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
    """Reject a drafter that does not draw the same pictures at 1/r."""
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


REDRAWN_TOKEN_NEVER_READ = Mutant(f"{__name__}:CellSampler.draw", "{*late, ", "{", "a redrawn token is never read")
DRAFT_ENTRY_STAYS = Mutant(
    "stridebench.harness.core.canvas:Canvas.read",
    "frozenset(positions)",
    "frozenset()",
    "the KV entry of a replaced draft stays",
)


@dataclass
class BandProgress:
    """How far a picture is.

    Args:
        row: first of the next band.
        unread: filled positions whose tokens the next pass must read, in raster order.
    """

    row: int
    unread: list[int]


@METHODS.register("mulo_sd")
@dataclass(frozen=True)
class MuLoSD(Method[BandProgress]):
    """Draft a band on the other scale, judge it by clusters of codes, draw the surroundings of each rejection again.

    Args:
        drafter: a backbone of the same codes whose pictures are 1/r as high and wide.
        samplers: shipped ones by name, a folder, or the untrained ``repeat`` or ``bilinear``.
        factor: r.
        band: rows of a band, a multiple of r; the last band of a picture may have fewer.
        tau: a draft stays if it and its neighbours have more mass. 1e-3 is strict, 1e-5 loose; at inf none stays.
        k: most neighbours of a code; 0: the paper's share of the codebook (`neighbour_count`).
        delta: largest mass that neighbours add.
        radius: l, in cells.
        recompute: the next band's pass reads all cells after the first of R again; by default stale entries stay.
        window, draft_window: of `zipar`, in cells, for R and for the drafter's rows: a pass draws a cell of each row
            so far behind the one above. 0: one cell a pass.
    """

    drafter: str = "embedded-image-8x8"
    samplers: str = "mulo-2x"
    factor: int = 2
    band: int = 4
    tau: float = 1e-4
    k: int = 0
    delta: float = 0.1
    radius: int = 3
    recompute: bool = False
    window: int = 0
    draft_window: int = 0

    requirements = frozenset({Requirement.GRID, Requirement.CODEBOOK, Requirement.ANY_ORDER, Requirement.DRAFTER})
    source = "MuLo-SD, supplement 7, Algorithm 1"
    exact_at = "tau = inf, window = 0"
    mutants = (REDRAWN_TOKEN_NEVER_READ, DRAFT_ENTRY_STAYS)

    def __post_init__(self) -> None:
        if self.factor < 2 or self.band < 1 or self.band % self.factor:
            raise UsageError(
                f"mulo_sd: factor is {self.factor} and band {self.band}; give 2 or more, and a multiple of it"
            )
        for name in ("tau", "delta", "k", "radius", "window", "draft_window"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"mulo_sd: {name} is {getattr(self, name):g}; give 0 or more")

    @property
    def claim(self) -> Claim:
        return Claim.SAME_LAW if self.tau == inf and not self.window else Claim.APPROXIMATE

    @property
    def components(self) -> Sequence[tuple[str, str]]:
        return () if self.samplers in UNTRAINED else (("samplers", self.samplers),)

    @property
    def drafter_shrink(self) -> int:
        return self.factor

    def start(self, run: Run) -> BandProgress:
        BandDrafter.open(run, self.drafter, self.samplers, self.factor)
        grid, length = run.capabilities.grid, run.canvas.end - run.canvas.start
        assert grid is not None
        if length > grid.length:
            raise ContractError(f"mulo_sd: asked for {length} tokens of a picture of {grid.length}; ask for no more")
        for name, most in (("window", grid.columns), ("draft_window", grid.columns // self.factor)):
            if getattr(self, name) > most:
                raise UsageError(
                    f"mulo_sd: {name} is {getattr(self, name)} and rows have {most} cells; choose 0 to {most}"
                )
        return BandProgress(0, [run.canvas.start - 1])

    def step(self, run: Run, state: BandProgress) -> Fill:
        canvas, band = run.canvas, Band.of(run.canvas, state.row, self.band)
        drafter = BandDrafter.open(run, self.drafter, self.samplers, self.factor)
        x, at = drafter.propose(run, band, self.draft_window), band.at(canvas.device)
        before, last = torch.tensor([canvas.tokens[p] for p in state.unread], device=canvas.device), band.cells[-1]
        ids = torch.cat([before, x[: last - band.first]])
        read = run.timed(canvas.read, "score")
        p = run.probs(read(ids, [*state.unread, *range(band.first, last)]))[len(before) - 1 + at]
        again = run.timed(self._rejected, "judge")(run, band, x[at], p)
        late = run.timed(CellSampler(run, canvas, band, "resid", self.window).draw, "redraw")(x, again, p)
        if self.recompute and again:
            late = list(range(band.cells[again[0]], last))
        state.row, state.unread = band.row + band.rows, sorted({*late, *range(last, band.stop)})
        return Fill(torch.arange(band.first, band.stop, device=canvas.device), x, len(again))

    def _rejected(self, run: Run, band: Band, x: Int[Tensor, " C"], p: Float[Tensor, "C V"]) -> list[int]:
        """Return R: the cells of the band to draw again, in raster order. Reads the device once."""
        codebook, ids = run.capabilities.codebook, torch.tensor(run.capabilities.cell_ids, device=x.device)
        assert codebook is not None
        k = neighbour_count(self.k, len(codebook))
        mass = cluster_mass(
            p[:, ids], codes_of(ids, x, run.capabilities.vocabulary), cached_nearest(codebook, k), self.delta, k
        )
        rejected = torch.zeros(band.rows * band.columns, dtype=torch.bool, device=x.device)
        rejected[: len(x)] = ~(mass > self.tau)
        surroundings = dilate(rejected.view(band.rows, -1), self.radius).flatten()[: len(x)]
        return [int(n) for n in surroundings.nonzero()[:, 0].tolist()]

    @classmethod
    def variants(cls) -> Sequence[MuLoSD]:
        side_by_side = cls(tau=0.3, radius=1, window=1, draft_window=1)
        lossy = (cls(tau=0.3, radius=0), cls(tau=0.3, radius=0, recompute=True), side_by_side)
        return (cls(), cls(tau=inf), *lossy)
