"""Verification by samples of the target: a draft is kept if it is the token that the target draws at its position.

The target draws by exponential clocks, one for each (position, token) of a decode, so the output is token by token that
of autoregressive decoding with these clocks, whatever was drafted. A drafter that draws by the same clocks is coupled:
it agrees with the target at least as often as (1 - D) / (1 + D), with D the total variation of their distributions.

Symbols: x drafted tokens, y the target's, q the distributions of a coupled drafter, p the target's.
Source: Daliri et al. 2024, arXiv:2408.07978, for coupled drafters.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.draft import Acceptance, Path
from stridebench.harness.core.draws import Draws
from stridebench.harness.core.method import Mutant


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

COMPARED_WITH_NEIGHBOUR = Mutant(
    f"{__name__}:_until_it_differs",
    "y.append(draws.race(p[k : k + 1], _keys(first + k, 1)))",
    "y.append(draws.race(p[max(0, k - 1) : max(1, k)], _keys(first + k, 1)))",
    "drafts are compared with samples of the row before theirs",
)
