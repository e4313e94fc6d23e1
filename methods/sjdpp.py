"""SJD++: SJD that keeps a draft whose probability did not fall much, instead of redrawing it.

Source: SJD++ (Teng et al. 2025, the extension of arXiv:2410.01699), section 3, eqs. 2-5.
Symbols: x drafts that stay in the window, q the laws they were drawn from, p the new laws, C = p(x) / q(x),
K = {v: p(v) > tau q(v)} the tokens that would be kept, m = q(K).

Keeping on C > tau selects on the value of x. Recording p all the same ("paper") or q ("frozen") therefore
changes the output's law; C and B2 record the law that the kept or redrawn token really has, M couples p to q,
G draws old and new from one noise vector a position. Those four are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from harness.contracts import Verdict
from harness.draws import Draws
from harness.errors import UsageError
from harness.method import Claim, Method, Plant, Run
from harness.registry import METHODS
from methods.drafters.jacobi import Fresh, Init, JacobiWindow, Refine
from methods.verifiers.rejection import verify_chain

Reuse = Literal["paper", "frozen", "C", "B2", "M", "G"]


@METHODS.register("sjdpp")
@dataclass(frozen=True)
class SJDPlusPlus(Method[JacobiWindow]):
    """SJD with token reuse.

    Args:
        window, init, window_counts_refed: as SJD. reuse: how a draft is carried over.
        tau: reuse threshold of all but M and G; larger is closer to SJD, inf is SJD.
    """

    window: int = 16
    init: Init = "uniform"
    window_counts_refed: bool = True
    reuse: Reuse = "paper"
    tau: float = 0.5

    source = "SJD++ section 3, eqs. 2-5"
    exact_at = "tau = inf, or reuse C, B2, M, G"
    plants = (
        Plant(
            "methods.verifiers.rejection:verify_chain",
            "residual(law, ",
            "(lambda p, q: p)(law, ",
            "the correction is drawn from p",
        ),
        Plant(
            "methods.sjdpp:reuse_by_threshold",
            "q.where(keep_set, 0.0) + (1 - mass) * p",
            "p.clone()",
            "mode C records p, as the paper does",
        ),
        Plant("methods.sjdpp:reuse_by_threshold", "q.where(keep_set, 0.0) / mass", "q", "mode B2 records the old q"),
        Plant("methods.sjdpp:carry_over", "draws.couple(x, q, p[:-1])", "draws.couple(x, p[:-1], p[:-1].clone())", "M always keeps"),
        Plant("methods.sjdpp:carry_over", "draws.race(p, range(first", "draws.race(p.roll(1, 1), range(first", "G draws from a shifted law"),
    )

    def __post_init__(self) -> None:
        if self.window - self.window_counts_refed < 1:
            raise UsageError(f"sjdpp: window is {self.window}, which leaves no draft; use 2 or more")
        if not self.tau >= 0:
            raise UsageError(f"sjdpp: tau is {self.tau:g}; it is a ratio of probabilities, 0 or more")

    @property
    def claim(self) -> Claim:
        lossless = self.reuse in ("C", "B2", "M", "G") or self.tau == inf
        return Claim.SAME_LAW if lossless else Claim.APPROXIMATE

    def start(self, run: Run) -> JacobiWindow:
        return JacobiWindow.empty(run, self.window - self.window_counts_refed, self.init)

    def step(self, run: Run, state: JacobiWindow) -> Verdict:
        draft = state.propose(run)
        p = run.law(run.target.forward(draft))
        verdict = verify_chain(draft.tokens, draft.law, p, run.draws)
        refine = carry_over(run.draws, self.reuse, self.tau)
        state.advance(p, len(verdict.read().path), refine, first=len(run.target))
        return verdict

    @classmethod
    def variants(cls) -> Sequence[SJDPlusPlus]:
        modes: tuple[Reuse, ...] = ("paper", "frozen", "C", "B2", "M", "G")
        settings = [cls(window=3, reuse=mode) for mode in modes]
        return (*settings, cls(window=3, tau=inf))


def carry_over(draws: Draws, reuse: Reuse, tau: float) -> Refine:
    """The refinement of one reuse mode; the place behind the window is always drawn anew."""

    def refine(
        x: Int[Tensor, " M"], q: Float[Tensor, "M V"], p: Float[Tensor, "M+1 V"], first: int
    ) -> Fresh:
        if reuse == "G":
            tokens = draws.race(p, range(first, first + len(p)))
            kept = torch.zeros_like(tokens, dtype=torch.bool)
            kept[:-1] = tokens[:-1] == x
            return Fresh(tokens, p, kept)
        last = draws.categorical(p[-1:], "draft")
        if reuse == "M":
            tokens = draws.couple(x, q, p[:-1])
            old = Fresh(tokens, p[:-1], tokens == x)
        else:
            old = reuse_by_threshold(x, q, p[:-1], reuse, tau, draws)
        tokens = torch.cat([old.tokens, last])
        kept = torch.cat([old.kept, torch.zeros_like(last, dtype=torch.bool)])
        return Fresh(tokens, torch.cat([old.law, p[-1:]]), kept)

    return refine


def reuse_by_threshold(
    x: Int[Tensor, " M"],
    q: Float[Tensor, "M V"],
    p: Float[Tensor, "M V"],
    reuse: Reuse,
    tau: float,
    draws: Draws,
) -> Fresh:
    """Keep x where p(x) > tau q(x), else draw from p; and the law that the mode records.

    Returns:
        Drafts, their recorded laws, and which were kept. C records q 1_K + (1 - m) p for both outcomes;
        B2 records q 1_K / m for a kept draft and p for a redrawn one.
    """
    keep_set = p > tau * q if tau < inf else torch.zeros_like(p, dtype=torch.bool)
    kept = keep_set.gather(1, x[:, None])[:, 0]
    tokens = x.clone()
    tokens[~kept] = draws.categorical(p[~kept], "draft")
    mass = q.where(keep_set, 0.0).sum(-1, keepdim=True)
    if reuse == "C":
        law = q.where(keep_set, 0.0) + (1 - mass) * p
    elif reuse == "B2":
        law = torch.where(kept[:, None], q.where(keep_set, 0.0) / mass, p)
    elif reuse == "frozen":
        law = torch.where(kept[:, None], q, p)
    else:
        law = p
    return Fresh(tokens, law, kept)
