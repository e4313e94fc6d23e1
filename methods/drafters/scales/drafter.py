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

from stridebench.harness.core.canvas import Canvas
from stridebench.harness.core.capabilities import Capabilities
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.methods.drafters.scales.band import Band, CellSampler
from stridebench.methods.drafters.scales.samplers import Samplers
from stridebench.methods.verifiers.image_codes import codes_of, ids_of

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
