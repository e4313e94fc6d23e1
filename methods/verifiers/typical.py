"""Acceptance that changes the output distribution: of tokens that are probable enough, or by another distribution.

Symbols: x drafted tokens; p the target's distributions; K nodes; R = K + 1 rows, row 0 after the last emitted token
and row k + 1 after node k.
Sources: Cai et al. 2024, Medusa, arXiv:2401.10774, section 2.3.1, and its released ``evaluate_posterior``; cascades:
Narasimhan et al. 2024, arXiv:2405.19261; mixtures: transformers' ``assistant_ensemble_weight``; relaxed acceptance:
TensorRT-LLM's ``use_relaxed_acceptance_for_thinking``; thresholds: SGLang's ``--speculative-accept-threshold-single``
and ``-acc``; FLy: arXiv:2511.22972, with the entropy and the sampling of vLLM's ``rejection_sample_method="fly"``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from stridebench.harness.core.draft import Acceptance, Draft, Path
from stridebench.harness.core.draws import Draws
from stridebench.harness.core.method import Mutant
from stridebench.harness.core.session import ancestors
from stridebench.harness.errors import UsageError
from stridebench.methods.verifiers.rejection import acceptance_probs, judge
from stridebench.methods.verifiers.tree import paths


def threshold(p: Float[Tensor, "R V"], epsilon: float, alpha: float) -> Float[Tensor, " R"]:
    """Return min(epsilon, alpha exp(-H(p))) of each row, with the entropy in nats."""
    return (alpha * torch.exp(torch.special.entr(p).sum(1).neg())).clamp_max(epsilon)


def verify_typical(
    draft: Draft, p: Float[Tensor, "R V"], draws: Draws, limit: Float[Tensor, " R"], *, greedy: bool
) -> Acceptance:
    """Keep the longest path whose tokens all have p(x) above their row's limit; of equals the most probable one.

    Only the token after the path is drawn. At T = 0 it keeps the longest path of argmaxima, as any limit below 1 does.

    Args:
        draft: without probes.
        limit: of each row, see `threshold`.
        greedy: the token after the path is the most probable one, instead of a draw from p.
    """
    x, parents = draft.tokens, draft.explicit_parents
    if not draft.proposed:
        return Acceptance(Path.root(p), _next_token(p[:1], draws, greedy))
    px, above = p[parents + 1, x], ancestors(parents)
    accepted = (~above | (px > limit[parents + 1])[None, :]).all(1)
    depth = torch.where(accepted, above.sum(1), 0)
    log_probs = torch.where(above, px.log()[None, :], 0.0).sum(1)
    best = log_probs.where(accepted & (depth == depth.max()), -torch.inf).argmax()
    index = torch.arange(len(x), device=x.device)
    nodes = index.where(above[best] & accepted.any(), len(x)).sort().values
    stop = torch.where(accepted.any(), best + 1, 0)
    path = Path(nodes.where(nodes < len(x), -1), stop, depth.max().to(p.dtype))
    return Acceptance(path, _next_token(p.index_select(0, stop.reshape(1)), draws, greedy))


def _next_token(row: Float[Tensor, "1 V"], draws: Draws, greedy: bool) -> Int[Tensor, ""]:
    return row[0].argmax() if greedy else draws.categorical(row, "resid")[0]


def verify_redrawn(draft: Draft, p: Float[Tensor, "R V"], draws: Draws, levels: int) -> Acceptance:
    """Keep the longest path on which a draw from p at each node, anew for each leaf, equals the draft; then draw again.

    Biased: a draw that matched no draft is followed by another draw from p. So a draft is emitted with
    p + p (1 - p), and more where several leaves lie below it. Only the matches are drawn, not the tokens.

    Args:
        draft: without probes.
        levels: of its tree.
    """
    x, parents = draft.tokens, draft.explicit_parents
    if not draft.proposed:
        return Acceptance(Path.root(p), draws.categorical(p[:1], "resid")[0])
    leaf = torch.ones(len(x) + 1, dtype=torch.bool, device=x.device).index_fill(0, parents + 1, False)[1:]
    nodes = paths(parents, levels)
    on_path = (nodes >= 0) & leaf[:, None]
    match_probs = p[parents + 1, x][nodes.clamp_min(0)].where(on_path, 0.0)
    coins = torch.stack([match_probs, 1 - match_probs], -1).reshape(-1, 2)
    reached = (draws.categorical(coins, "accept") == 0).view_as(on_path).long().cumprod(1)
    length = reached.sum(1)
    best = length.argmax()
    path = nodes[best].where(reached[best] > 0, -1)
    stop = path.max() + 1
    missed = (1 - match_probs.cumprod(1)).prod(0)  # by all leaves, at each level
    padded = torch.cat([path, path.new_full((len(x) - levels,), -1)])
    probs = p.index_select(0, stop.reshape(1))
    return Acceptance(Path(padded, stop, (1 - missed).sum()), draws.categorical(probs, "resid")[0])


# XSpecMesh, section 4.2 and Algorithm 1, lines 6-10; section 5.4 for the best K_a. delta is the threshold.


def above(x: Int[Tensor, " K"], p: Float[Tensor, "K+1 V"], delta: float) -> Float[Tensor, " K"]:
    """Return 1 if p(x) > delta, else 0."""
    return (_target_probs(x, p) > delta).to(p.dtype)


def among_best(x: Int[Tensor, " K"], p: Float[Tensor, "K+1 V"], best: int) -> Float[Tensor, " K"]:
    """Return 1 if fewer than ``best`` tokens are more probable than x and p(x) > 0, else 0."""
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


# FLy: a rejection is overruled where the target is unsure and the drafts behind it agree with it.

BEST = 3
"""Tokens whose entropy says whether the target is unsure."""


def verify_fly(
    draft: Draft, p: Float[Tensor, "R V"], draws: Draws, unsure: Bool[Tensor, " K"], window: int
) -> Acceptance:
    """Accept as `verify_chain`, but go on behind a rejected draft if the next ``window`` drafts are accepted.

    Args:
        draft: a chain of one node or more.
        unsure: whether a rejection may be overruled, see `unsure_of`.
    """
    x, q = draft.tokens, draft.probs
    return judge(overruled(acceptance_probs(x, q, p), unsure, window), x, q, p, draws)


def unsure_of(x: Int[Tensor, " K"], p: Float[Tensor, "K+1 V"], entropy: float) -> Bool[Tensor, " K"]:
    """Return where p(x) > 0 and the most probable tokens have an ``entropy`` of so many nats or more."""
    best = p[: len(x)].topk(min(BEST, p.shape[1])).values
    unsure: Tensor = torch.special.entr(best).sum(1) >= entropy
    return unsure & (_target_probs(x, p) > 0)


def overruled(native: Float[Tensor, " K"], unsure: Bool[Tensor, " K"], window: int) -> Float[Tensor, " K"]:
    """Return the probability that each draft is kept, given that those before it are.

    Args:
        native: probability that the test of each draft accepts. The tests are independent.
        unsure: drafts that may be kept although their test rejects, if the tests of the next ``window`` drafts accept.
    """
    behind = torch.cat([native[1:], native.new_zeros(window)]).unfold(0, window, 1).prod(1) * unsure
    refused, rescued = (1 - native) * (1 - behind), (1 - native) * behind
    reached = native.new_ones(())
    untested = [reached]  # probability that draft k is reached and in no window, so that nothing is known of its test
    kept = []
    for k in range(len(native)):
        stopped = untested[k] * refused[k]
        kept.append(1 - stopped / reached.clamp_min(1e-30))
        reached = reached - stopped
        after_window = untested[k - window] * rescued[k - window] if k >= window else 0.0
        untested.append(untested[k] * native[k] + after_window)
    return torch.stack(kept).clamp(0, 1)


# Rules for the chain of any drafter.

RULES: dict[str, tuple[float, ...]] = {
    "mixture": (0.9,),
    "cascade": (0.5,),
    "cascade_token": (0.25,),
    "typical": (0.09, 0.3),
    "relaxed": (3.0, 0.2),
    "thresholds": (0.5, 1.0),
    "fly": (6.0, 0.3),
}
"""Rules by name, with their numbers unless others are given, as in ``relaxed:3,0.2``."""
DECLARED = ("mixture", "cascade", "cascade_token")
"""Rules that sample exactly from a distribution that p and q give."""


@dataclass(frozen=True)
class LossyRule:
    """A rule of acceptance that changes the output distribution, and its numbers.

    - ``mixture:w`` samples from w p + (1 - w) q.
    - ``cascade:a`` samples from q if max q >= max p - a TV(p, q), else from p.
    - ``cascade_token:a`` samples from q at tokens of p >= (1 - a) max p, and from p with the mass that q has elsewhere.
    - ``typical:epsilon,alpha`` keeps a draft of p(x) > min(epsilon, alpha exp(-H(p))).
    - ``relaxed:k,delta`` keeps a draft among the k best of p(x) >= max p - delta.
    - ``thresholds:single,acc`` keeps a draft of p(x) >= single, others with p(x) / acc; after a rejection p without x.
    - ``fly:window,entropy`` is rejection sampling, but keeps a rejected draft if p(x) > 0, the 3 best tokens of p
      have an entropy of so many nats or more, and the tests of the next ``window`` drafts accept; else (p - q)+.

    After a rejection by typical or relaxed acceptance, the next token is drawn from p.
    """

    name: str
    values: tuple[float, ...]

    @classmethod
    def of(cls, method: str, rule: str) -> LossyRule:
        """Return the rule ``NAME`` or ``NAME:NUMBER,...``."""
        name, _, numbers = rule.partition(":")
        if name not in RULES:
            raise UsageError(f"{method}: acceptance is {rule!r}; known: exact, {', '.join(RULES)}")
        try:
            values = tuple(map(float, numbers.split(","))) if numbers else RULES[name]
        except ValueError:
            values = ()
        usual = ",".join(f"{value:g}" for value in RULES[name])
        if name == "fly" and not (len(values) == 2 and values[0] in range(1, 1000) and values[1] >= 0):
            numbers = "a number of drafts from 1 on and an entropy in nats"
            raise UsageError(f"{method}: acceptance is {rule!r}; give {numbers}, as in fly:{usual}")
        shares = values[1:] if name == "relaxed" else () if name == "fly" else values
        if len(values) != len(RULES[name]) or not all(0 <= value <= 1 for value in shares) or min(values) < 0:
            raise UsageError(f"{method}: acceptance is {rule!r}; give numbers from 0 to 1, as in {name}:{usual}")
        return cls(name, values)

    @property
    def exact(self) -> bool:
        """Return whether the numbers leave the target's distribution as it is."""
        never = self.name == "fly" and self.values[1] > math.log(BEST)  # a larger entropy than any three tokens have
        return never or (self.name, *self.values) in (("mixture", 1.0), ("thresholds", 1.0, 1.0))

    @property
    def declares(self) -> bool:
        """Return whether the rule samples exactly from a distribution that p and q give."""
        return self.name in DECLARED

    def declared(self, q: Float[Tensor, "K V"], p: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
        """Return the distributions that a declared rule samples from; the last row, which has no draft, is p's."""
        value, rows = self.values[0], p[:-1]
        q = q.to(p.dtype)
        if self.name == "mixture":
            mixed = value * rows + (1 - value) * q
        elif self.name == "cascade":
            distance = (rows - q).abs().sum(1) / 2
            mixed = torch.where((q.amax(1) >= rows.amax(1) - value * distance)[:, None], q, rows)
        else:
            kept = q.where(rows >= (1 - value) * rows.amax(1, keepdim=True), 0.0)
            mixed = kept + (1 - kept.sum(1, keepdim=True)) * rows
        return torch.cat([mixed, p[-1:]])

    def verify(self, x: Int[Tensor, " K"], p: Float[Tensor, "K+1 V"], draws: Draws) -> Acceptance:
        """Accept the drafts before the first that another rule rejects."""
        px = _target_probs(x, p)
        if self.name == "typical":
            return keep_passing((px > threshold(p, *self.values)[: len(x)]).to(p.dtype), p, draws)
        if self.name == "relaxed":
            near = px >= p[: len(x)].amax(1) - self.values[1]
            return keep_passing(near * among_best(x, p, int(self.values[0])), p, draws)
        single, total = self.values
        accept = torch.where(px >= single, torch.ones_like(px), (px / max(total, 1e-9)).clamp_max(1.0))
        return judge(accept.where(px > 0, 0.0), x, None, p, draws)


# Bugs to inject, which `stride verify` must catch.

DRAFTS_JUDGED_BY_NEIGHBOUR_ROW = Mutant(
    f"{__name__}:_target_probs",
    "p[: len(x)]",
    "p.roll(1, 0)[: len(x)]",
    "drafts are judged by the row of their neighbour",
)
NEXT_TOKEN_FROM_ROW_BEFORE = Mutant(
    f"{__name__}:keep_passing",
    "path.stop.reshape(1)",
    "(path.stop - 1).clamp_min(0).reshape(1)",
    "the bonus or correction token is drawn from the row before",
)
IMPROBABLE_DRAFTS_KEPT = Mutant(
    f"{__name__}:above", "_target_probs(x, p) > delta", "_target_probs(x, p) <= delta", "improbable drafts are kept"
)
SURE_TARGET_OVERRULED = Mutant(
    f"{__name__}:unsure_of", ">= entropy", ">= 0", "a rejection is overruled where the target is sure"
)
