"""The distributions that a canvas was filled from: its passes are made again, in their order, with an empty cache.

A position may be filled before those ahead of it in raster order. So its token is bet on in the order of filling,
against what was known when it was filled. Symbols: N positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from stridebench.harness.core.canvas import Canvas, Filled, Read


class Filling(NamedTuple):
    """The filled positions for which a pass gave a distribution, in the order of filling.

    Attributes:
        tokens: the id at each of them, N.
        logits: of the last pass over the position before it, made before it was filled; None where N is 0.
        unseen: positions that were filled without such a pass, and at which more than one token is allowed.
    """

    tokens: list[int]
    logits: Float[Tensor, "N V"] | None
    unseen: int = 0


def filling_of(canvas: Canvas, history: Sequence[Read | Filled]) -> Filling:
    """Make the passes of a decode again.

    Args:
        canvas: of the same prompt, empty.
        history: of the canvas that was decoded.
    """
    latest: dict[int, Float[Tensor, " V"]] = {}
    tokens: list[int] = []
    grid, unseen = canvas.capabilities.grid, 0
    rows: list[Float[Tensor, " V"]] = []
    for event in history:
        if isinstance(event, Read):
            logits = canvas.read(event.tokens, event.positions, event.sees, event.rows)
            behind = [position + 1 for position in event.positions[len(event.positions) - len(logits) :]]
            latest |= dict(zip(behind, logits, strict=True))
        else:
            known = [position for position in event.tokens if position in latest]
            tokens += [event.tokens[position] for position in known]
            rows += [latest[position] for position in known]
            others = [position for position in event.tokens if position not in latest]
            unseen += sum(grid is None or grid.forced(position) is None for position in others)
    return Filling(tokens, torch.stack(rows) if rows else None, unseen)
