"""Distributions that a sampler may draw from by mistake: one for each kind of bias and strength.

An alternative is a function of `TokenOutcomes`, which hold nothing that depends on the tokens it bets on. A package may
add alternatives by entry points in the group ``stridebench.alternatives``: a name and a function of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from stridebench.harness.audit.outcomes import FloatArray, IntArray, TokenOutcomes
from stridebench.harness.errors import ContractError
from stridebench.harness.registry import ALTERNATIVES

Alternative = Callable[[TokenOutcomes], FloatArray]
"""Weights of the outcomes, [N, A], at least 0; they are normalised. Row n may use row n of the outcomes alone."""

HEDGE = 0.05
"""Share of p in each alternative, so that no single token can lose a bet for good."""


def powered(outcomes: TokenOutcomes, power: float) -> FloatArray:
    """Another temperature: p to this power, id by id. Above 1 it is colder."""
    sizes = np.maximum(outcomes.sizes, 1.0)
    weights: FloatArray = outcomes.sizes * np.power(outcomes.p / sizes, power)
    return weights


def narrowed(outcomes: TokenOutcomes, mass: float) -> FloatArray:
    """Only the most probable ids, of this mass together; the last one that is needed is kept."""
    order = np.argsort(-outcomes.p, axis=1, kind="stable")
    ordered = np.take_along_axis(outcomes.p, order, axis=1)
    kept = np.cumsum(ordered, axis=1) - ordered < mass
    weights = np.zeros_like(ordered)
    np.put_along_axis(weights, order, ordered * kept, axis=1)
    return weights


def twice_cut(outcomes: TokenOutcomes) -> FloatArray:
    """Top-p once more, of what top-p has kept."""
    return narrowed(outcomes, outcomes.top_p)


def argmax_boosted(outcomes: TokenOutcomes, share: float) -> FloatArray:
    """The most probable id, with this probability, in place of a draw."""
    return mixed(outcomes.p, _indicator(outcomes, outcomes.p.argmax(1)), share)


def copying(outcomes: TokenOutcomes, share: float) -> FloatArray:
    """Continue the context's last n-gram as before, with this probability, if the continuation is an outcome."""
    return mixed(outcomes.p, _indicator(outcomes, outcomes.copies), share)


def never_copying(outcomes: TokenOutcomes, share: float) -> FloatArray:
    """The context's last n-gram is not continued as before, with this probability."""
    return mixed(outcomes.p, outcomes.p * (1 - _indicator(outcomes, outcomes.copies)), share)


def penalised(outcomes: TokenOutcomes, nats: float, in_output: bool = False, by_count: bool = False) -> FloatArray:
    """Ids that stand in the context are less probable: their logits are lower by ``nats``, before p is normalised.

    Args:
        in_output: ids of the prompt alone are not penalised.
        by_count: the logit is lowered again for each time the id stands there.
    """
    stood = outcomes.stood_in_output if in_output else outcomes.stood
    assert stood is not None  # `usable` leaves it out
    weights: FloatArray = outcomes.p * np.exp(-nats * (stood if by_count else np.minimum(stood, 1)))
    return weights


def leaking(outcomes: TokenOutcomes, share: float) -> FloatArray:
    """Any id that may be drawn, with this probability."""
    return mixed(outcomes.p, outcomes.sizes, share)


def drafted(outcomes: TokenOutcomes, share: float) -> FloatArray:
    """The drafter's draw, kept untested with this probability."""
    return mixed(outcomes.p, _q(outcomes), share)


def without_residual(outcomes: TokenOutcomes, share: float = 1.0) -> FloatArray:
    """After a rejection the token is drawn from p, not from the residual, with this probability."""
    accepted = np.minimum(outcomes.p, _q(outcomes))
    return mixed(outcomes.p, accepted + (1 - accepted.sum(1, keepdims=True)) * outcomes.p, share)


def root_accepted(outcomes: TokenOutcomes) -> FloatArray:
    """Drafts are accepted with probability sqrt(p / q)."""
    return _tested(outcomes, np.sqrt(outcomes.p * _q(outcomes)))


def swapped(outcomes: TokenOutcomes) -> FloatArray:
    """Drafts are accepted with probability q / p."""
    q = _q(outcomes)
    return _tested(outcomes, np.divide(q * q, outcomes.p, out=np.zeros_like(q), where=outcomes.p > 0))


def accepted_by_p(outcomes: TokenOutcomes) -> FloatArray:
    """The drafter's distribution is lost: drafts are accepted with probability p, and corrections drawn from p."""
    accepted = outcomes.p * _q(outcomes)
    weights: FloatArray = accepted + (1 - accepted.sum(1, keepdims=True)) * outcomes.p
    return weights


def number_of_draft_reused(outcomes: TokenOutcomes) -> FloatArray:
    """The correction is drawn by the number in [0, 1) that drew the draft, both by the sums of ids in their order."""
    chain = _chain(outcomes)
    knots, rejected = _sums(chain.q), _sums(chain.q * (1 - chain.accepts))
    return chain.back(_between(_sums(chain.residual), knots, rejected))


def number_of_test_reused(outcomes: TokenOutcomes) -> FloatArray:
    """The correction is drawn by the number in [0, 1) that rejected the draft."""
    chain = _chain(outcomes)
    order = np.argsort(chain.accepts, axis=1, kind="stable")
    knots = np.pad(np.take_along_axis(chain.accepts, order, axis=1), ((0, 0), (1, 1)), constant_values=((0, 0), (0, 1)))
    slopes = np.cumsum(np.take_along_axis(chain.q, order, axis=1), axis=1)  # mass whose test a number above has failed
    rejected = np.pad(np.cumsum(slopes * np.diff(knots[:, 1:], axis=1), axis=1), ((0, 0), (2, 0)))
    return chain.back(_between(_sums(chain.residual), knots, rejected))


def noise_of_draft_reused(outcomes: TokenOutcomes) -> FloatArray:
    """The correction is the argmin of noise / residual, with the exponential noise whose argmin over q was the draft.

    With m the least noise / q, the noise of an id v that was not drawn is q(v) m and an exponential time. So v enters
    the second race at m q(v) / residual(v), and m is exponential itself. Both integrals are closed.
    """
    chain = _chain(outcomes)
    residual = chain.residual
    entry = np.divide(chain.q, residual, out=np.full_like(residual, np.inf), where=residual > 0)
    order = np.argsort(entry, axis=1, kind="stable")
    entry, rate = (np.take_along_axis(table, order, axis=1) for table in (entry, residual))
    entry = np.where(np.isfinite(entry), entry, np.nanmax(np.where(np.isfinite(entry), entry, 0), 1, keepdims=True))
    slope = np.cumsum(rate, axis=1)
    reached = 1 + np.pad(np.cumsum(slope[:, :-1] * np.diff(entry, axis=1), axis=1), ((0, 0), (1, 0)))
    inverse = 1 / reached
    after = np.pad(inverse[:, 1:], ((0, 0), (0, 1)))
    stays = np.divide(inverse - after, slope, out=np.zeros_like(slope), where=slope > 0)
    weights = np.zeros_like(rate)
    np.put_along_axis(weights, order, rate * np.cumsum(stays[:, ::-1], axis=1)[:, ::-1], axis=1)
    total = weights.sum(1, keepdims=True)
    return chain.back(np.divide(weights, total, out=residual.copy(), where=total > 0) * chain.rejected)


@dataclass(frozen=True)
class _Chain:
    """A test of one draft, its outcomes in the order of their ids; all other ids together come last.

    Args:
        p, q: distributions, [N, A].
        order: the outcome at each place, [N, A].
    """

    p: FloatArray
    q: FloatArray
    order: IntArray

    @property
    def accepts(self) -> FloatArray:
        """Return the probability that a draft is accepted, 0 if it is never drawn."""
        ratio: FloatArray = np.divide(self.p, self.q, out=np.zeros_like(self.p), where=self.q > 0)
        return np.minimum(ratio, 1.0)

    @property
    def rejected(self) -> FloatArray:
        """Return the probability that the draft is rejected, [N, 1]."""
        total: FloatArray = 1 - np.minimum(self.p, self.q).sum(1, keepdims=True)
        return total.clip(min=0)

    @property
    def residual(self) -> FloatArray:
        """Return the residual distribution, from which the correction is drawn; p if no draft is rejected."""
        above = np.maximum(self.p - self.q, 0.0)
        total = above.sum(1, keepdims=True)
        residual: FloatArray = np.divide(above, total, out=self.p.copy(), where=total > 0)
        return residual

    def back(self, corrections: FloatArray) -> FloatArray:
        """Return accepted drafts and these corrections, in the order of the outcomes."""
        weights = np.zeros_like(self.p)
        np.put_along_axis(weights, self.order, np.minimum(self.p, self.q) + corrections.clip(min=0), axis=1)
        return weights


def _chain(outcomes: TokenOutcomes) -> _Chain:
    last = np.iinfo(np.int64).max
    order = np.argsort(np.where(outcomes.ids < 0, last, outcomes.ids), axis=1, kind="stable")
    p, q = (np.take_along_axis(table, order, axis=1) for table in (outcomes.p, _q(outcomes)))
    return _Chain(p, q, order)


def _sums(table: FloatArray) -> FloatArray:
    """0 and the running sums of each row, [N, A + 1]."""
    sums: FloatArray = np.pad(np.cumsum(table, axis=1), ((0, 0), (1, 0)))
    return sums


def _between(places: FloatArray, knots: FloatArray, values: FloatArray) -> FloatArray:
    """Return the gain of a function that is linear between knots from each place of a row to the next."""
    rows = zip(places, knots, values, strict=True)
    return np.diff(np.array([np.interp(at, knot, value) for at, knot, value in rows]), axis=1)


def dropped(outcomes: TokenOutcomes, part: Literal["unguided", "unpenalised"], share: float) -> FloatArray:
    """Drawn without guidance, or without penalties, with this probability, among the ids that may be drawn."""
    without: FloatArray = getattr(outcomes, part)  # `usable` leaves out those that are None
    return mixed(outcomes.p, without * (outcomes.p > 0), share)


def mixed(p: FloatArray, weights: FloatArray, share: float) -> FloatArray:
    """``share`` of the weights, normalised, and the rest of p; p alone in rows without weights."""
    total = weights.sum(1, keepdims=True)
    law = np.divide(weights, total, out=p.copy(), where=total > 0)
    mixture: FloatArray = (1 - share) * p + share * law
    return mixture


def _tested(outcomes: TokenOutcomes, accepted: FloatArray) -> FloatArray:
    """Accepted drafts, at most q of each, and draws from the right residual in place of the others."""
    q = _q(outcomes)
    accepted = np.minimum(accepted, q)
    residual = np.maximum(outcomes.p - q, 0.0)
    total = residual.sum(1, keepdims=True)
    residual = np.divide(residual, total, out=outcomes.p.copy(), where=total > 0)
    weights: FloatArray = accepted + (1 - accepted.sum(1, keepdims=True)).clip(min=0) * residual
    return weights


def _indicator(outcomes: TokenOutcomes, places: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> FloatArray:
    """Return 1 at the outcome of each row; zeros if the place is negative or the outcome cannot be drawn."""
    marked: FloatArray = (np.arange(outcomes.p.shape[1]) == places[:, None]).astype(np.float64)
    return marked * (outcomes.p > 0)


def _q(outcomes: TokenOutcomes) -> FloatArray:
    assert outcomes.q is not None  # `usable` leaves these alternatives out
    return outcomes.q


OWN: Mapping[str, Alternative] = {
    "hotter, p^0.8": partial(powered, power=0.8),
    "hotter, p^0.9": partial(powered, power=0.9),
    "hotter, p^0.95": partial(powered, power=0.95),
    "colder, p^1.05": partial(powered, power=1.05),
    "colder, p^1.1": partial(powered, power=1.1),
    "colder, p^1.25": partial(powered, power=1.25),
    "colder, p^1.6": partial(powered, power=1.6),
    "argmax with 3 %": partial(argmax_boosted, share=0.03),
    "argmax with 15 %": partial(argmax_boosted, share=0.15),
    "nucleus of 0.5": partial(narrowed, mass=0.5),
    "nucleus of 0.8": partial(narrowed, mass=0.8),
    "nucleus of 0.95": partial(narrowed, mass=0.95),
    "copy of an n-gram with 3 %": partial(copying, share=0.03),
    "copy of an n-gram with 20 %": partial(copying, share=0.2),
    "any id with 1 %": partial(leaking, share=0.01),
    "any id with 10 %": partial(leaking, share=0.1),
}
"""Alternatives that need nothing but p."""
REPEATED: Mapping[str, Alternative] = {
    "repeated ids lowered by 0.2 nats": partial(penalised, nats=0.2),
    "repeated ids lowered by 0.6 nats": partial(penalised, nats=0.6),
    "repeated ids lowered by 2 nats": partial(penalised, nats=2.0),
    "repeated ids raised by 0.3 nats": partial(penalised, nats=-0.3),
    "presence penalty of 0.3": partial(penalised, nats=0.3, in_output=True),
    "presence penalty of 1": partial(penalised, nats=1.0, in_output=True),
    "frequency penalty of 0.1": partial(penalised, nats=0.1, in_output=True, by_count=True),
    "frequency penalty of 0.5": partial(penalised, nats=0.5, in_output=True, by_count=True),
    "no repeated n-gram": partial(never_copying, share=1.0),
    "no repeated n-gram with 30 %": partial(never_copying, share=0.3),
}
"""Alternatives that need to know which ids stand in the context."""
CUT: Mapping[str, Alternative] = {"top-p twice": twice_cut}
"""Of a sampling with top-p."""
DRAFTED: Mapping[str, Alternative] = {
    "drafts untested with 5 %": partial(drafted, share=0.05),
    "drafts untested with 30 %": partial(drafted, share=0.3),
    "drafts untested": partial(drafted, share=0.9),
    "no residual": without_residual,
    "no residual with 40 %": partial(without_residual, share=0.4),
    "acceptance by sqrt(p/q)": root_accepted,
    "p and q swapped": swapped,
    "drafts tested by p alone": accepted_by_p,
    "number of the draft reused": number_of_draft_reused,
    "number of the test reused": number_of_test_reused,
    "noise of the draft reused": noise_of_draft_reused,
}
"""Of a sampler whose drafter's distribution is known."""
GUIDED: Mapping[str, Alternative] = {
    "guidance dropped with 5 %": partial(dropped, part="unguided", share=0.05),
    "guidance dropped with 25 %": partial(dropped, part="unguided", share=0.25),
    "guidance dropped": partial(dropped, part="unguided", share=0.9),
}
"""Of a sampler of a guided target."""
PENALISED: Mapping[str, Alternative] = {
    "penalties dropped with 5 %": partial(dropped, part="unpenalised", share=0.05),
    "penalties dropped with 25 %": partial(dropped, part="unpenalised", share=0.25),
    "penalties dropped": partial(dropped, part="unpenalised", share=0.9),
}
"""Of a sampling with penalties."""


def added() -> Mapping[str, Alternative]:
    """Return the alternatives of other packages."""
    return {name: ALTERNATIVES.get(name) for name in ALTERNATIVES}


def usable(outcomes: TokenOutcomes) -> dict[str, Alternative]:
    """Return the alternatives that can be computed from these outcomes."""
    cut = CUT if outcomes.top_p < 1 else {}
    guided = GUIDED if outcomes.unguided is not None else {}
    guided = {**guided, **(PENALISED if outcomes.unpenalised is not None else {})}
    repeated = REPEATED if outcomes.stood is not None else {}
    return {**OWN, **repeated, **cut, **(DRAFTED if outcomes.q is not None else {}), **guided, **added()}


def distribution(name: str, alternative: Alternative, outcomes: TokenOutcomes) -> FloatArray:
    """Return the hedged distribution of an alternative, [N, A]; p if the alternative has no weights or p is zero.

    Raises:
        ContractError: its weights are not finite numbers of the right shape and at least 0, or a row of them depends
            on later rows.
    """
    weights = np.asarray(alternative(outcomes), dtype=np.float64)
    if weights.shape != outcomes.p.shape or not np.isfinite(weights).all() or (weights < 0).any():
        raise ContractError(
            f"the alternative {name!r} gave weights of the shape {weights.shape} for outcomes of {outcomes.p.shape}, "
            f"or one that is negative or not finite; give one weight of at least 0 for each outcome"
        )
    if name in added():
        _refuse_foresight(name, alternative, outcomes, weights)
    return mixed(outcomes.p, weights * (outcomes.p > 0), 1 - HEDGE)


def _refuse_foresight(name: str, alternative: Alternative, outcomes: TokenOutcomes, weights: FloatArray) -> None:
    """Refuse weights that change when later rows, which depend on the token that is bet on, are taken away."""
    half = (len(outcomes) + 1) // 2
    again = np.asarray(alternative(outcomes.rows(half)), dtype=np.float64)
    if not np.allclose(again, weights[:half], rtol=1e-9, atol=1e-300):
        raise ContractError(
            f"the alternative {name!r} gives other weights where later tokens are left out, so it sees what it bets "
            f"on; let row n depend on row n alone"
        )
