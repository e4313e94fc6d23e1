"""Acceptance of drafts that the target finds probable enough, whatever they were drawn from: biased above T = 0.

Symbols: x drafted tokens, p the target's distributions, delta the threshold.
Source: Chen et al., XSpecMesh, section 4.2 and Algorithm 1, lines 6-10; section 5.4 for the best K_a.
"""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.draws import Draws


def above(x: Int[Tensor, " K"], p: Float[Tensor, "K+1 V"], delta: float) -> Float[Tensor, " K"]:
    """1 where p(x) > delta, else 0."""
    return (_target_probs(x, p) > delta).to(p.dtype)


def among_best(x: Int[Tensor, " K"], p: Float[Tensor, "K+1 V"], best: int) -> Float[Tensor, " K"]:
    """1 where fewer than ``best`` tokens are more probable than x and p(x) > 0, else 0."""
    px = _target_probs(x, p)
    return ((px > 0) & ((p[: len(x)] > px[:, None]).sum(1) < best)).to(p.dtype)


def keep_passing(passes: Float[Tensor, " K"], p: Float[Tensor, "K+1 V"], draws: Draws) -> Acceptance:
    """Keep the drafts before the first that does not pass, then draw from p: no residual is taken.

    With drafts from q and A the tokens that pass, one token has the distribution q 1_A + (1 - q(A)) p. Where A is one
    token x* (so with delta >= 0.5) its total variation to p is q(x*) (1 - p(x*)).
    """
    path = draws.path(passes)
    return Acceptance(path, draws.categorical(p.index_select(0, path.stop.reshape(1)), "resid")[0])


def _target_probs(x: Int[Tensor, " K"], p: Float[Tensor, "K+1 V"]) -> Float[Tensor, " K"]:
    return p[: len(x)].gather(1, x[:, None])[:, 0]
