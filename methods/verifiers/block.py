"""Block verification of a chain: the length of the accepted prefix is drawn for all drafts together.

No rule that keeps the target's distribution, and leaves the next step to it, accepts more drafts in a step. Each prefix
is kept at least as often as by `rejection.verify_chain`.

Symbols: x drafted tokens, q the distribution each was drawn from, p the target's, w the capped joint ratio of a prefix.
Source: Sun et al. 2025, arXiv:2403.10444, Algorithm 2.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.draws import Draws
from stridebench.harness.core.method import Mutant
from stridebench.methods.verifiers.rejection import draft_probs, residual, verify_chain


def verify_block(
    x: Int[Tensor, " K"], q: Float[Tensor, "K V"] | None, p: Float[Tensor, "K+1 V"], draws: Draws
) -> Acceptance:
    """Accept the prefix of ``x`` at which block verification stops.

    Args:
        x: drafted token ids, in draft order.
        q: the drafter's distributions; row k is q(. | prefix, x[:k]). For point masses (None) the rule is that of
            `verify_chain`, which is called.
        p: the target's distributions; row k is p(. | prefix, x[:k]) and sums to one.
        draws: asked for one `path` of K probabilities and one categorical token.

    Returns:
        The accepted path, 0 to K nodes. After a stop at k < K the next token is drawn from (w[k] p[k] - q[k])+
        renormalised, which may be x[k] itself; after K the bonus token is drawn from p[K].

    Raises:
        ContractError: some q[k, x[k]] is 0 (checked on a CPU only).
    """
    if q is None or len(x) == 0:
        return verify_chain(x, q, p, draws)
    w = capped_ratios(x, q, p)
    path = draws.path(block_acceptance(q, p, w))
    last = path.stop.clamp_max(len(x) - 1).reshape(1)
    share = w.index_select(0, last)[:, None]
    stopped = residual(share * p.index_select(0, last), q.index_select(0, last).to(p.dtype))
    probs = stopped.where(path.stop < len(x), p[-1:])
    return Acceptance(path, draws.categorical(probs, "resid")[0])


def capped_ratios(x: Int[Tensor, " K"], q: Float[Tensor, "K V"], p: Float[Tensor, "K+1 V"]) -> Float[Tensor, " K+1"]:
    """Return w[0] = 1 and w[k+1] = min(1, w[k] p[k, x[k]] / q[k, x[k]]): the joint ratio over its running maximum."""
    px = p[: len(x)].gather(1, x[:, None])[:, 0]
    joint = torch.cat([px.new_ones(1), (px / draft_probs(x, q).to(p.dtype)).cumprod(0)])
    return joint / joint.cummax(0).values


def block_acceptance(
    q: Float[Tensor, "K V"], p: Float[Tensor, "K+1 V"], w: Float[Tensor, " K+1"]
) -> Float[Tensor, " K"]:
    """Return the probability that each draft is kept, given that those before it are.

    The stop is the last k whose coin shows h[k] = S[k] / (S[k] + 1 - w[k]), with S[k] the mass of (w[k] p[k] - q[k])+,
    and h[K] = w[K]. Where S[k] and 1 - w[k] are 0, p[k] is q[k], so a longer prefix is kept for certain.
    """
    mass = (w[:-1, None] * p[:-1] - q.to(p.dtype)).clamp_min(0.0).sum(-1)
    whole = mass + 1 - w[:-1]
    stops = torch.cat([torch.where(whole > 0, mass / whole, torch.ones_like(mass)), w[-1:]])
    kept = 1 - (1 - stops[1:]).flip(0).cumprod(0).flip(0)
    before = torch.cat([kept.new_ones(1), kept[:-1]])
    return torch.where(before > 0, kept / before, torch.zeros_like(kept)).clamp(0.0, 1.0)


# Bugs to inject, which `stride verify` must catch.

RATIO_CAPPED_ONCE = Mutant(
    f"{__name__}:capped_ratios",
    "return joint / joint.cummax(0).values",
    "return joint.clamp_max(1.0)",
    "the joint ratio is capped for the whole prefix, not after each draft, as in the released code of HSD",
)
STOP_WITH_TOKEN_RESIDUAL = Mutant(
    f"{__name__}:verify_block",
    "share = w.index_select(0, last)[:, None]",
    "share = torch.ones_like(w.index_select(0, last)[:, None])",
    "after a stop the token is drawn from the residual of token verification",
)
