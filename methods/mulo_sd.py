"""MuLo-SD: a model of smaller pictures drafts rows of a larger one; what the target refuses is drawn again.

Source: Multi-Scale Local Speculative Decoding (MuLo-SD), supplement 7, Algorithm 1.
Symbols: r factor between the scales, x drafts of a band, p target's law, R cells drawn again, l radius.
A band takes one pass that judges all its drafts, and one for each cell of R but the first, whose law is in that pass.
What changes the law: a draft may stay that p would rarely draw; it is not judged again when a cell before it changes,
and its entry, made among refused drafts, is read on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf

import torch
from jaxtyping import Float, Int
from torch import Tensor

from harness.core.capabilities import Requirement
from harness.core.draft import Fill
from harness.core.method import Claim, Method, Mutant
from harness.core.run import Run
from harness.errors import ContractError, UsageError
from harness.registry import METHODS
from methods.drafters.scales.band import Band, draw_cells
from methods.drafters.scales.drafter import UNTRAINED, BandDrafter
from methods.verifiers.codebook import cluster_mass, dilate, nearest, neighbour_count
from methods.verifiers.image_codes import codes_of, ids_of

NEAR = lru_cache(maxsize=4)(nearest)


@dataclass
class Progress:
    """How far a picture is.

    Args:
        row: first of the next band. unread: positions filled whose tokens the next pass must read, in raster order.
    """

    row: int
    unread: list[int]


@METHODS.register("mulo_sd")
@dataclass(frozen=True)
class MuLoSD(Method[Progress]):
    """Draft a band on the other scale, judge it by clusters of codes, draw the surroundings of each refusal again.

    Args:
        drafter: a backbone of the same codes whose pictures are 1/r as high and wide.
        samplers: of the package by name, a folder, or the untrained ``repeat`` or ``bilinear``.
        factor: r. band: rows of a band, some times r; the last band of a picture may have fewer.
        tau: a draft stays where it and its neighbours have more mass; 1e-3 is strict, 1e-5 loose, at inf none stays.
        k: most neighbours of a code; 0: the paper's share of the codebook (`neighbour_count`).
        delta: most mass that neighbours lend. radius: l, in cells.
        recompute: the next band's pass also reads again all that follows the first cell of R; by default the entries
            of drafts that stay are those made among refused ones.
        window: of `zipar`, in cells: a pass draws a cell of each row of R so far behind the one above; 0: one cell.
        draft_window: the same for the drafter's own rows.
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
    mutants = (
        Mutant("methods.drafters.scales.band:draw_cells", "{*late, ", "{", "a redrawn token is never read"),
        Mutant("harness.core.canvas:Canvas.read", "frozenset(positions)", "frozenset()", "the draft's entry stays"),
    )

    def __post_init__(self) -> None:
        if self.factor < 2 or self.band < 1 or self.band % self.factor:
            found = f"factor is {self.factor} and band {self.band}"
            raise UsageError(f"mulo_sd: {found}; give 2 or more, and a multiple of it")
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

    def start(self, run: Run) -> Progress:
        BandDrafter.open(run, self.drafter, self.samplers, self.factor)
        grid, asked = run.capabilities.grid, run.canvas.end - run.canvas.start
        assert grid is not None
        if asked > grid.length:
            raise ContractError(f"mulo_sd: asked for {asked} tokens of a picture of {grid.length}; ask for no more")
        for name, most in (("window", grid.columns), ("draft_window", grid.columns // self.factor)):
            if getattr(self, name) > most:
                raise UsageError(
                    f"mulo_sd: {name} is {getattr(self, name)} and rows have {most} cells; choose 0 to {most}"
                )
        return Progress(0, [run.canvas.start - 1])

    def step(self, run: Run, state: Progress) -> Fill:
        canvas, band = run.canvas, Band.of(run.canvas, state.row, self.band)
        drafter = BandDrafter.open(run, self.drafter, self.samplers, self.factor)
        x, at = drafter.propose(run, band, self.draft_window), band.at(canvas.device)
        before, last = torch.tensor([canvas.tokens[p] for p in state.unread], device=canvas.device), band.cells[-1]
        ids = torch.cat([before, x[: last - band.first]])
        read = run.timed(canvas.read, "score")
        p = run.probs(read(ids, [*state.unread, *range(band.first, last)]))[len(before) - 1 + at]
        again = run.timed(self._refused, "judge")(run, band, x[at], p)
        late = run.timed(draw_cells, "redraw")(run, canvas, band, x, again, "resid", self.window, p)
        if self.recompute and again:
            late = list(range(band.cells[again[0]], last))
        state.row, state.unread = band.row + band.rows, sorted({*late, *range(last, band.stop)})
        return Fill(torch.arange(band.first, band.stop, device=canvas.device), x, len(again))

    def _refused(self, run: Run, band: Band, x: Int[Tensor, " C"], p: Float[Tensor, "C V"]) -> list[int]:
        """R: which cells of the band are to be drawn again, in raster order. Reads the device once."""
        book, ids = run.capabilities.codebook, ids_of(run.capabilities, x.device)
        assert book is not None
        k = neighbour_count(self.k, len(book))
        mass = cluster_mass(p[:, ids], codes_of(ids, x, run.capabilities.vocabulary), NEAR(book, k), self.delta, k)
        bad = torch.zeros(band.rows * band.columns, dtype=torch.bool, device=x.device)
        bad[: len(x)] = ~(mass > self.tau)
        wide = dilate(bad.view(band.rows, -1), self.radius).flatten()[: len(x)]
        return [int(n) for n in wide.nonzero()[:, 0].tolist()]

    @classmethod
    def variants(cls) -> Sequence[MuLoSD]:
        beside = cls(tau=0.3, radius=1, window=1, draft_window=1)
        lossy = (cls(tau=0.3, radius=0), cls(tau=0.3, radius=0, recompute=True), beside)
        return (cls(), cls(tau=inf), *lossy)
