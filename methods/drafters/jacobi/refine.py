"""What becomes of the drafts behind a rejection: drawn again, or discarded.

Symbols: x drafts that stay in the window, q the distributions they were drawn from, p the new distributions.
Source: Teng et al. 2025, arXiv:2410.01699, Algorithm 1; SJD++ Fig. 12.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from stridebench.harness.core.draws import Draws


class Fresh(NamedTuple):
    """Drafts, the distributions that they were drawn from, and which of them were reused rather than drawn."""

    tokens: Int[Tensor, " L"]
    probs: Float[Tensor, "L V"]
    reused: Bool[Tensor, " L"]


Refine = Callable[[Int[Tensor, " M"], Float[Tensor, "M V"], Float[Tensor, "M+1 V"], int], Fresh]
"""(M old drafts, their distributions, the new ones, position of the first) -> M + 1 drafts of the next pass.

The last row is the distribution behind the window, where no draft stood yet.
"""


def discard(x: Tensor, q: Tensor, p: Tensor, first: int) -> Fresh:
    """No refinement: nothing of the window is reused, so the next one is all fresh (SJD++ Fig. 12)."""
    return Fresh(x[:0], q[:0], x[:0].bool())


def redraw(draws: Draws) -> Refine:
    """Each draft is drawn again from its new distribution: the refinement of Jacobi sampling and of SJD."""
    return partial(_redraw_all, draws)


def _redraw_all(draws: Draws, x: Tensor, q: Tensor, p: Tensor, first: int) -> Fresh:
    tokens = draws.categorical(p, "draft")
    return Fresh(tokens, p, torch.zeros_like(tokens, dtype=torch.bool))
