"""How SJD++ carries a draft over to the next pass: keep it or draw it again, and which distribution to record.

Source: SJD++ (Teng et al. 2025, the extension of arXiv:2410.01699), section 3, eqs. 2-5.
Symbols: x drafts that stay in the window, q the distributions they were drawn from, p the new distributions,
K = {v: p(v) > tau q(v)} the tokens that would be kept, m = q(K).

Keeping x where p(x) / q(x) > tau selects on the value of x. So recording p all the same ("paper") or q ("frozen")
changes the output distribution. Four modes are exact: C and B2 record the distribution that the kept or redrawn token
really has, M couples p to q, and G draws old and new from one noise vector a position.
"""

from __future__ import annotations

from functools import partial
from math import inf
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.draws import Draws
from stridebench.methods.drafters.jacobi.refine import Fresh, Refine

Reuse = Literal["paper", "frozen", "C", "B2", "M", "G"]


def carry_over(draws: Draws, reuse: Reuse, tau: float) -> Refine:
    """The refinement of one reuse mode; the position behind the window is always drawn."""
    return partial(_refine, draws, reuse, tau)


def _refine(
    draws: Draws,
    reuse: Reuse,
    tau: float,
    x: Int[Tensor, " M"],
    q: Float[Tensor, "M V"],
    p: Float[Tensor, "M+1 V"],
    first: int,
) -> Fresh:
    if reuse == "G":
        tokens = draws.race(p, range(first, first + len(p)))
        reused = torch.zeros_like(tokens, dtype=torch.bool)
        reused[:-1] = tokens[:-1] == x
        return Fresh(tokens, p, reused)
    last = draws.categorical(p[-1:], "draft")
    if reuse == "M":
        tokens = draws.couple(x, q, p[:-1])
        old = Fresh(tokens, p[:-1], tokens == x)
    else:
        old = reuse_by_threshold(x, q, p[:-1], reuse, tau, draws)
    tokens = torch.cat([old.tokens, last])
    reused = torch.cat([old.reused, torch.zeros_like(last, dtype=torch.bool)])
    return Fresh(tokens, torch.cat([old.probs, p[-1:]]), reused)


def reuse_by_threshold(
    x: Int[Tensor, " M"],
    q: Float[Tensor, "M V"],
    p: Float[Tensor, "M V"],
    reuse: Reuse,
    tau: float,
    draws: Draws,
) -> Fresh:
    """Keep x where p(x) > tau q(x), else draw from p; record the distribution of the mode.

    C records q 1_K + (1 - m) p for both outcomes. B2 records q 1_K / m for a kept draft and p for a redrawn one.
    """
    keep_set = p > tau * q if tau < inf else torch.zeros_like(p, dtype=torch.bool)
    reused = keep_set.gather(1, x[:, None])[:, 0]
    tokens = x.clone()
    tokens[~reused] = draws.categorical(p[~reused], "draft")
    mass = q.where(keep_set, 0.0).sum(-1, keepdim=True)
    if reuse == "C":
        probs = q.where(keep_set, 0.0) + (1 - mass) * p
    elif reuse == "B2":
        probs = torch.where(reused[:, None], q.where(keep_set, 0.0) / mass, p)
    elif reuse == "frozen":
        probs = torch.where(reused[:, None], q, p)
    else:
        probs = p
    return Fresh(tokens, probs, reused)
