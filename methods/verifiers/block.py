"""Block verification of a chain, and traversal verification of a tree: drafts are tested from their ends.

The length of an accepted prefix is drawn for all drafts of a chain together. No rule that keeps the target's
distribution, and leaves the next step to it, accepts more drafts in a step. Each prefix is kept at least as often as by
`rejection.verify_chain`. In a tree leaves are tested first, and a node once all nodes below it are refused, so a node
that would be refused alone may be kept for the tokens behind it. On a chain the two are one.

Symbols: x drafted tokens, q the distribution each was drawn from, given its earlier siblings, p the target's, w the
capped joint ratio of a prefix (weights of nodes in a tree); K nodes; R = K + 1 rows, row 0 after the last emitted
token, row k + 1 after node k.
Sources: Sun et al. 2025, arXiv:2403.10444, Algorithm 2; Weng et al. 2025, arXiv:2505.12398.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.draft import Acceptance, Draft
from stridebench.harness.core.draws import Draws
from stridebench.harness.core.method import Mutant
from stridebench.methods.verifiers.rejection import draft_probs, residual, verify_chain
from stridebench.methods.verifiers.tree import verify_delta


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


CHAIN_VERIFIERS = {"token": verify_chain, "block": verify_block}
"""Verifiers of a chain of drawn drafts by p / q, as the parameter ``verifier`` of methods names them."""


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


def verify_traversal(draft: Draft, p: Float[Tensor, "R V"], draws: Draws) -> Acceptance:
    """Accept the path to the node at which the traversal stops; its next token is drawn from what that node has left.

    Args:
        draft: its ``probs`` hold q, siblings drawn with or without replacement. For point masses (None) the rule is
            that of `tree.verify_delta`, which is called. The parents are read on their device.
        p: the target's distributions.
        draws: asked for one `path` of K probabilities and one categorical token.

    Raises:
        ContractError: some q[k, x[k]] is 0 (checked on a CPU only).
    """
    if draft.probs is None or not len(draft):
        return verify_delta(draft, p, draws)
    parents = draft.explicit_parents
    traversal = Traversal(draft.tokens, draft.probs.to(p.dtype), p, parents.tolist())
    path = draws.path(traversal.acceptance(), parents)
    return Acceptance(path, draws.categorical(traversal.laws.index_select(0, path.stop.reshape(1)), "resid")[0])


@dataclass
class Traversal:
    """The probability that the traversal stops at each row, and the distribution of the token that follows there."""

    x: Int[Tensor, " K"]
    q: Float[Tensor, "K V"]
    p: Float[Tensor, "R V"]
    parents: list[int]

    def __post_init__(self) -> None:
        self.laws, self.stops = self.p.clone(), self.p.new_zeros(len(self.p))
        self._qx, self._left = draft_probs(self.x, self.q), self.p.new_ones(())
        self._children: defaultdict[int, list[int]] = defaultdict(list)
        for node, parent in enumerate(self.parents):
            self._children[parent].append(node)
        self._visit(-1, self.p.new_ones(()))

    def _visit(self, node: int, weight: Float[Tensor, ""]) -> None:
        """Test all nodes below ``node`` and then itself, with the weight and the distribution that are left by then."""
        law = self.p[node + 1]
        for child in self._children[node]:
            self._visit(child, (weight * law[self.x[child]] / self._qx[child]).clamp_max(1.0))
            rest = (weight * law - self.q[child]).clamp_min(0.0)
            mass = rest.sum()
            whole = mass + 1 - weight
            law = torch.where(mass > 0, rest / mass, law)
            weight = torch.where(whole > 0, mass / whole, torch.ones_like(mass))
        self.laws[node + 1] = law
        self.stops[node + 1] = self._left * weight
        self._left = self._left * (1 - weight)

    def acceptance(self) -> Float[Tensor, " K"]:
        """Return the probability of each node, once its parent is reached and its earlier siblings are rejected.

        It is the mass of the stops below the node, over that mass with those of its later siblings and of its parent.
        """
        mass, accept = list(self.stops), [self._left] * len(self.x)
        for node in reversed(range(len(self.x))):
            above = self.parents[node] + 1
            mass[above] = mass[above] + mass[node + 1]
            accept[node] = torch.where(mass[above] > 0, mass[node + 1] / mass[above], 0.0)
        return torch.stack(accept)


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
DIVIDED_BY_REFUSED_MASS = Mutant(
    f"{__name__}:Traversal._visit",
    "weight = torch.where(whole > 0, mass / whole, ",
    "weight = torch.where(self._qx[child] < 1, (mass / (1 - self._qx[child])).clamp_max(1.0), ",
    "the weight after a rejection is divided by the drafter's mass that is left, as in a public implementation",
)
