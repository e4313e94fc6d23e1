"""Rejection sampling of drafts, and matching with samples of the target: the output keeps the target's distribution.

Symbols: x drafted tokens, q the distribution each was really drawn from, p the target's distributions, y its samples.
Source: Leviathan et al. 2023, arXiv:2211.17192, Algorithm 1; Chen et al. 2023, arXiv:2302.01318; coupled drafters:
Daliri et al. 2024, arXiv:2408.07978.
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


# Verification by samples of the target. It draws by exponential clocks, one for each (position, token) of a decode, so
# the output is token by token that of autoregressive decoding with these clocks, whatever was drafted. A drafter that
# draws by the same clocks is coupled: it agrees with the target at least as often as (1 - D) / (1 + D), with D the
# total variation of their distributions.


def verify_match(
    x: Int[Tensor, " K"], q: Float[Tensor, "K V"] | None, p: Float[Tensor, "K+1 V"], draws: Draws, first: int
) -> Acceptance:
    """Accept the longest prefix of ``x`` that the target draws too, and emit its next token.

    Args:
        x: drafted token ids, in draft order.
        q: the distributions of a drafter that drew by the clocks of the positions; None if it drew by others.
        p: the target's distributions; row k is p(. | prefix, x[:k]) and sums to one.
        draws: asked for a `race` of the rows up to the first that differs; of all of them on a GPU, in one call.
        first: position of ``x[0]``, or of the next token if nothing is drafted.
    """
    y = _until_it_differs(x, p, draws, first) if x.device.type == "cpu" else draws.race(p, _keys(first, len(p)))
    index = torch.arange(len(x), device=x.device)
    stop = (y[: len(x)] == x[: len(y)]).long().cumprod(0).sum()
    expected = match_probs(x, q, p).cumprod(0).sum()
    return Acceptance(Path(index.where(index < stop, -1), stop, expected), y.index_select(0, stop.reshape(1))[0])


def _until_it_differs(x: Int[Tensor, " K"], p: Float[Tensor, "K+1 V"], draws: Draws, first: int) -> Int[Tensor, " N"]:
    y: list[Tensor] = []
    for k, draft in enumerate([*x.tolist(), None]):
        y.append(draws.race(p[k : k + 1], _keys(first + k, 1)))
        if int(y[-1]) != draft:
            break
    return torch.cat(y)


def _keys(first: int, count: int) -> range:
    return range(first, first + count)


def match_probs(x: Int[Tensor, " K"], q: Float[Tensor, "K V"] | None, p: Float[Tensor, "K+1 V"]) -> Float[Tensor, " K"]:
    """Return the probability that the target draws each draft, given that the drafter did.

    By common clocks token v wins both races with probability 1 / sum_u max(q[u] / q[v], p[u] / p[v]).
    """
    px = p[: len(x)].gather(1, x[:, None])
    if q is None:
        return px[:, 0]
    q = q.to(p.dtype)
    both = torch.maximum(q, p[: len(x)] * (q.gather(1, x[:, None]) / px)).sum(-1)
    return torch.where(px[:, 0] > 0, 1 / both, torch.zeros_like(both))


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
COMPARED_WITH_NEIGHBOUR = Mutant(
    f"{__name__}:_until_it_differs",
    "y.append(draws.race(p[k : k + 1], _keys(first + k, 1)))",
    "y.append(draws.race(p[max(0, k - 1) : max(1, k)], _keys(first + k, 1)))",
    "drafts are compared with samples of the row before theirs",
)
MIN_P_SKIPPED = Mutant(
    "stridebench.harness.core.run:Run.probs",
    "return warp(logits, self.sampling)",
    "cut = self.sampling\n"
    "    cut = type(cut)(cut.temperature, cut.top_k, cut.top_p, order=cut.order) if len(logits) > 1 else cut\n"
    "    return warp(logits, cut)",
    "min_p_skipped_on_verified: tokens below min-p are not left out where drafts are verified, as in vLLM #42744",
)
