"""Grouped speculative decoding (GSD): SJD's window, judged by groups of similar tokens.

Source: So et al. 2025, grouped speculative decoding, in the form of its released code.
Symbols: x drafts, q the distribution each was drawn from, p the target's, S(x) the group of x.
The group is a slice of the target's ranking around x, cut to the tokens whose probability and embedding are near those
of x. It depends on p, and the correction token is drawn token by token, so the output distribution differs from p.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError, one_of
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.jacobi_window import Init, JacobiWindow, redraw
from stridebench.methods.verifiers.codebook import codes_of
from stridebench.methods.verifiers.rejection import CORRECTION_FROM_TARGET, judge


@METHODS.register("gsd")
@dataclass(frozen=True)
class GSD(Method[JacobiWindow]):
    """Verify the window by groups; a rejected draft is replaced from the residual of its token.

    Args:
        window, init: as SJD.
        width: ranks on either side of a draft that may stand for it; 0 is SJD.
        gap: largest difference of probability.
        reach: largest distance of embeddings, as a share of the mean distance of two codes. inf leaves embeddings out,
            as the released code does above 10,000 codes.
        absolute: reach is a distance in the tokenizer's units, as released (0.5).
    """

    window: int = 16
    init: Init = "uniform"
    width: int = 7
    gap: float = 0.15
    reach: float = 0.5
    absolute: bool = False

    source = "So et al. 2025, released code"
    exact_at = "width = 0"
    mutants = (CORRECTION_FROM_TARGET,)

    def __post_init__(self) -> None:
        if self.window < 2:
            raise UsageError(f"gsd: window is {self.window}, which leaves no draft; use 2 or more")
        one_of("gsd", "init", self.init, get_args(Init))
        if self.width < 0 or not self.gap > 0 or not self.reach > 0:
            raise UsageError(
                f"gsd: width is {self.width}, gap {self.gap:g}, reach {self.reach:g}; give a width from 0, the others "
                f"above 0"
            )

    @property
    def claim(self) -> Claim:
        return Claim.SAME_LAW if self.width == 0 else Claim.APPROXIMATE

    @property
    def requirements(self) -> frozenset[Requirement]:
        return frozenset({Requirement.GRID, Requirement.CODEBOOK})

    def start(self, run: Run) -> JacobiWindow:
        return JacobiWindow.empty(run, self.window - 1, self.init)

    def step(self, run: Run, state: JacobiWindow) -> Acceptance:
        draft = state.propose(run)
        p = run.probs(run.target.forward(draft))
        x, q, p_x = draft.tokens, draft.q(p.shape[1], p), p[:-1]
        groups = group(x, p_x, self._near(run, state.init.ids, x), self.width, self.gap)
        acceptance = judge(group_acceptance(x, q, p_x, groups), x, q, p, run.draws)
        state.advance(run, p, len(acceptance.read().path), redraw(run.draws))
        return acceptance

    def _near(self, run: Run, ids: Int[Tensor, " I"], x: Int[Tensor, " K"]) -> Bool[Tensor, "K V"]:
        """Mark ids whose embedding is near that of x; none for a forced end of row: no other id is possible."""
        vocabulary, codebook = run.capabilities.vocabulary, run.capabilities.codebook
        assert codebook is not None
        near = x.new_zeros(len(x), vocabulary, dtype=torch.bool)
        near[:, ids] = near_codes(codebook, codes_of(ids, x, vocabulary), self.reach, self.absolute)
        return near

    @classmethod
    def variants(cls) -> Sequence[GSD]:
        return (cls(window=3, reach=10.0, gap=1.0), cls(window=3, width=0))


def group(
    x: Int[Tensor, " K"], p: Float[Tensor, "K V"], near: Bool[Tensor, "K V"], width: int, gap: float
) -> Bool[Tensor, "K V"]:
    """Mark S(x): ranks r - width to r + width - 1 around the rank r of x, with |p(s) - p(x)| < gap and ``near``.

    The slice is cut at the first and the last rank, and x is always in it. (The released code's slice is empty for the
    most probable tokens, which are then rejected.)

    Args:
        near: tokens that may stand for x, by their embeddings.
    """
    order = p.argsort(dim=-1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(p.shape[1], device=p.device).expand_as(order))
    distance = rank - rank.gather(1, x[:, None])
    in_slice = (distance >= -width) & (distance < width)
    similar = (p - p.gather(1, x[:, None])).abs() < gap
    return (in_slice & similar & near).scatter(1, x[:, None], True)


def group_acceptance(
    x: Int[Tensor, " K"], q: Float[Tensor, "K V"], p: Float[Tensor, "K V"], groups: Bool[Tensor, "K V"]
) -> Float[Tensor, " K"]:
    """Return min(1, p(S) / q(S)) at each draft, given that it is reached; groups that hold x have q(S) > 0."""
    return (p.where(groups, 0.0).sum(-1) / q.to(p.dtype).where(groups, 0.0).sum(-1)).clamp_max(1.0)


def near_codes(
    codebook: Float[Tensor, "I C"], x: Int[Tensor, " K"], reach: float, absolute: bool = False
) -> Bool[Tensor, "K I"]:
    """Mark codes whose vector is nearer to that of x than ``reach`` times the mean distance of two codes.

    The released threshold, 0.5, is a distance in one tokenizer's units (``absolute``); as a share it means the same
    in any.
    """
    return torch.cdist(codebook[x], codebook) < (reach if absolute else reach * mean_distance(codebook))


def mean_distance(codebook: Float[Tensor, "I C"]) -> Float[Tensor, ""]:
    """Return the root mean square distance of two codes drawn at random."""
    return (2 * codebook.var(0, unbiased=False).sum()).sqrt()
