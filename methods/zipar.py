"""ZipAR: the rows of a picture grow side by side, each begun when the row above it holds a window of tokens.

Source: He et al. 2024, arXiv:2412.04062, section 3, and the released code, github.com/ThisisBillhe/ZipAR.
Symbols: w window, k tokens of the row above, p_k the distribution of a row's first token at that time.
A token is drawn from the target's distribution given the tokens that exist before it in raster order; the ends of the
rows above are still missing. Passes over H rows of D tokens, ends of rows included: D + (H - 1) w, or
2 D + (H - 2) w if the first row is finished alone. Autoregressive decoding takes H D.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.canvas import Canvas
from stridebench.harness.core.capabilities import Grid, Requirement
from stridebench.harness.core.draft import Draft, Fill
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import ContractError, UsageError, one_of
from stridebench.harness.registry import METHODS

Schedule = Literal["fixed", "adaptive"]


@dataclass
class GrowthFront:
    """Where a picture grows.

    Args:
        row: first position of the last row begun.
        unread: positions filled by the last step, for the next pass.
        candidate: token and distribution drawn for the first position of the next row, not emitted yet.
    """

    row: int
    unread: list[int]
    candidate: Draft | None = None


@METHODS.register("zipar")
@dataclass(frozen=True)
class ZipAR(Method[GrowthFront]):
    """Each pass reads the newest token of every growing row and draws the next one of each.

    Args:
        window: w, in tokens of a row; no more than the picture is wide. The paper has 16 for 48 rows of 48 cells, and 8
            for 24 of 24.
        schedule: ``fixed`` begins a row at k = w. ``adaptive`` draws its first token at k = w, couples it to p_k at
            each later k, and begins the row once the token stays, or once the row above is complete.
        first_row_alone: finish the first row before the second begins, as LlamaGen's released code does.
    """

    window: int = 8
    schedule: Schedule = "fixed"
    first_row_alone: bool = False

    claim = Claim.APPROXIMATE
    requirements = frozenset({Requirement.GRID, Requirement.ANY_ORDER})
    source = "arXiv:2412.04062, section 3"
    exact_at = "window = the picture's width"

    def __post_init__(self) -> None:
        if self.window < 1:
            raise UsageError(f"zipar: window is {self.window}; a row begins behind 1 or more tokens of the one above")
        one_of("zipar", "schedule", self.schedule, get_args(Schedule))

    def start(self, run: Run) -> GrowthFront:
        columns = _grid(run).columns
        if self.window > columns:
            raise UsageError(
                f"zipar: window is {self.window} and the picture's rows have {columns} cells, at which one row follows "
                f"the other already; choose 1 to {columns}"
            )
        return GrowthFront(run.canvas.start, [run.canvas.start - 1])

    def step(self, run: Run, state: GrowthFront) -> Fill:
        canvas, grid, opening = run.canvas, _grid(run), self._opening(run, state)
        inputs = {position: canvas.tokens[position] for position in state.unread}
        if opening is not None:
            inputs.setdefault(opening - 1, token_before(canvas, grid, opening))
        row_ends = [i for i in inputs if i not in canvas.tokens and grid.forced(i) is not None]
        positions = sorted(inputs)
        ids = torch.tensor([inputs[i] for i in positions], device=canvas.device)
        p = run.probs(canvas.read(ids, positions))
        filled = canvas.tokens.keys() | row_ends
        rows = {i + 1: n for n, i in enumerate(positions) if i + 1 < canvas.end and i + 1 not in filled}
        first = None if opening is None else self._first(run, state, p[rows.pop(opening)][None])
        tokens = run.draws.categorical(p[list(rows.values())], "draft")
        state.unread = list(rows)
        if first is not None and opening is not None:
            state.row, state.candidate = opening, None
            state.unread, tokens = [*rows, opening], torch.cat([tokens, first])
        tokens = torch.cat([tokens, tokens.new_tensor([inputs[i] for i in row_ends])])
        return Fill(tokens.new_tensor([*state.unread, *row_ends]), tokens)

    def _opening(self, run: Run, state: GrowthFront) -> int | None:
        """Return the first position of the next row, or None if the row above holds too few tokens or is the last."""
        grid, alone = _grid(run), self.first_row_alone and state.row == run.canvas.start
        needed = grid.stride if alone else self.window
        following = state.row + grid.stride
        last = min(run.canvas.end, grid.start + grid.rows * grid.stride)
        return following if following < last and state.row + needed - 1 in run.canvas.tokens else None

    def _first(self, run: Run, state: GrowthFront, p: Float[Tensor, "1 V"]) -> Int[Tensor, " 1"] | None:
        """Return the first token of the next row, from p_k, or None while the adaptive schedule may change it."""
        old, complete = state.candidate, state.row + _grid(run).columns - 1 in run.canvas.tokens
        if self.schedule == "fixed" or complete:
            return run.draws.categorical(p, "draft")
        if old is None:
            state.candidate = Draft(run.draws.categorical(p, "draft"), p)
            return None
        token = run.draws.couple(old.tokens, old.q(p.shape[-1], p), p)
        state.candidate = Draft(token, p)
        return token if bool(token == old.tokens) else None  # read from the device: it decides the next pass

    @classmethod
    def variants(cls) -> Sequence[ZipAR]:
        return (cls(window=1),)


def token_before(canvas: Canvas, grid: Grid, opening: int) -> int:
    """Return the token before a row while the row above it, r, is unfinished.

    Returns:
        The end of line where rows have one, since it is known. Else a substitute, as in LlamaGen's released code: the
        newest token of row r - 1, or of row r if that is the first.
    """
    end_of_line = grid.forced(opening - 1)
    if end_of_line is not None:
        return end_of_line
    above = max(opening - 2 * grid.stride, canvas.start)
    return canvas.tokens[max(i for i in range(above, above + grid.stride) if i in canvas.tokens)]


def _grid(run: Run) -> Grid:
    if run.capabilities.grid is None:
        raise ContractError("zipar needs a backbone with a grid, and this one offers none")
    return run.capabilities.grid
