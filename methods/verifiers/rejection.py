"""Rejection sampling of drafts: the emitted distribution is the target's for any honest q.

Symbols: x drafted tokens, q the distribution each was really drawn from, p the target's distributions.
Source: Leviathan et al. 2023, arXiv:2211.17192, Algorithm 1; Chen et al. 2023, arXiv:2302.01318.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.draft import Acceptance, Path
from stridebench.harness.core.draws import Draws
from stridebench.harness.core.method import Mutant
from stridebench.harness.errors import ContractError


def verify_chain(
    x: Int[Tensor, " K"], q: Float[Tensor, "K V"] | None, p: Float[Tensor, "K+1 V"], draws: Draws
) -> Acceptance:
    """Accept the longest prefix of ``x`` that rejection sampling keeps.

    Args:
        x: drafted token ids, in draft order.
        q: the drafter's distributions; row k is q(. | prefix, x[:k]) and sums to one. If None, point masses on ``x``.
        p: the target's distributions; row k is p(. | prefix, x[:k]) and sums to one.
        draws: asked for one `path` of K probabilities and one categorical token.

    Returns:
        The accepted path, 0 to K nodes. After a rejection the correction token is drawn from ``residual``; after K
        acceptances the bonus token is drawn from p[K].

    Raises:
        ContractError: some x[k] has q[k, x[k]] = 0, so it was not drawn from ``q``. Checked on a CPU only, since it
            costs no synchronisation there.

    Source: Leviathan et al. 2023, arXiv:2211.17192, Algorithm 1.
    """
    return judge(acceptance_probs(x, q, p), x, q, p, draws)


def judge(
    accept_probs: Float[Tensor, " K"],
    x: Int[Tensor, " K"],
    q: Float[Tensor, "K V"] | None,
    p: Float[Tensor, "K+1 V"],
    draws: Draws,
) -> Acceptance:
    """Accept a prefix as `verify_chain` by any acceptance probabilities; lossless for `acceptance_probs` alone."""
    if len(x) == 0:
        return Acceptance(Path.root(p), draws.categorical(p, "resid")[0])
    path = draws.path(accept_probs)
    stop = path.stop
    probs = p.index_select(0, stop.reshape(1))
    if stop.device.type == "cpu" and int(stop) == len(x):  # nothing was rejected; reading a CPU waits for nothing
        return Acceptance(path, draws.categorical(probs, "resid")[0])
    last = stop.clamp_max(len(x) - 1).reshape(1)
    rejected = x.index_select(0, last) if q is None else q.index_select(0, last).to(p.dtype)
    probs = residual(probs, rejected).where(stop < len(x), probs)
    return Acceptance(path, draws.categorical(probs, "resid")[0])


def acceptance_probs(
    x: Int[Tensor, " K"], q: Float[Tensor, "K V"] | None, p: Float[Tensor, "K+1 V"]
) -> Float[Tensor, " K"]:
    """Return min(1, p(x) / q(x)) at each draft, given that it is reached."""
    px = p[: len(x)].gather(1, x[:, None])[:, 0]
    if q is None:
        return px
    return (px / draft_probs(x, q).to(p.dtype)).clamp_max(1.0)


def draft_probs(x: Int[Tensor, " K"], q: Float[Tensor, "K V"]) -> Float[Tensor, " K"]:
    """Return q(x) at each draft, or raise ContractError if some q[k, x[k]] is 0 (checked on a CPU only)."""
    qx = q.gather(1, x[:, None])[:, 0]
    if qx.device.type == "cpu" and not bool((qx > 0).all()):
        where = int((qx <= 0).nonzero()[0, 0])
        raise ContractError(
            f"drafted token {int(x[where])} at position {where} has q = 0, so it was not drawn from q. "
            f"Pass the distribution the drafter sampled from, after temperature and top-p."
        )
    return qx


def residual(p: Float[Tensor, "N V"], q: Float[Tensor, "N V"] | Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
    """Return (p - q)+ renormalised, row by row; p if nothing is left (p = q, and then nothing is rejected).

    Args:
        q: distributions, or the ids of point masses: these leave p without the id.
    """
    positive = (p - q).clamp_min(0.0) if q.is_floating_point() else p.scatter(1, q[:, None], 0.0)
    mass = positive.sum(-1, keepdim=True)
    return torch.where(mass > 0, positive / mass, p)


# Bugs to inject, which `stride verify` must catch.

CORRECTION_FROM_TARGET = Mutant(
    f"{__name__}:judge", "residual(probs, ", "(lambda p, q: p)(probs, ", "the correction token is drawn from p"
)
DRAFT_ACCEPTED_TOO_OFTEN = Mutant(
    f"{__name__}:acceptance_probs",
    "(px / draft_probs(x, q).to(p.dtype))",
    "(px / draft_probs(x, q).to(p.dtype)).sqrt()",
    "drafts are accepted more often than p / q",
)
GUESS_KEPT_TOO_OFTEN = Mutant(
    f"{__name__}:acceptance_probs",
    "return px",
    "return px.sqrt()",
    "a guess is kept more often than a fresh draw equals it",
)
GUESS_ALWAYS_KEPT = Mutant(
    f"{__name__}:acceptance_probs",
    "return px",
    "return torch.ones_like(px)",
    "a block is committed before it is a fixed point",
)
GUESS_JUDGED_BY_NEXT_ROW = Mutant(
    f"{__name__}:acceptance_probs",
    "px = p[: len(x)]",
    "px = p[1 : 1 + len(x)]",
    "guesses are compared with the row of their neighbour",
)
BONUS_AFTER_REJECTION = Mutant(
    f"{__name__}:judge",
    "probs = p.index_select(0, stop.reshape(1))",
    "probs = p[-1:]",
    "the token after the path is always the bonus token",
)
