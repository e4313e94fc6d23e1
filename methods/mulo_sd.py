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
from math import inf

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Fill
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import ContractError, UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.scales.drafter import (
    DRAFT_ENTRY_STAYS,
    REDRAWN_TOKEN_NEVER_READ,
    UNTRAINED,
    Band,
    BandDrafter,
    CellSampler,
)
from stridebench.methods.verifiers.codebook import (
    cached_nearest,
    cluster_mass,
    codes_of,
    dilate,
    ids_of,
    neighbour_count,
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
        tau: a draft stays where it and its neighbours have more mass. 1e-3 is strict, 1e-5 loose; at inf none stays.
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
        """R: the cells of the band to draw again, in raster order. Reads the device once."""
        codebook, ids = run.capabilities.codebook, ids_of(run.capabilities, x.device)
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
