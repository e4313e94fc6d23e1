"""What a sampler may draw from by mistake: a distribution for each kind of bias and strength.

An alternative is a function of `Outcomes`, which hold nothing that depends on the tokens it bets on. A package may add
alternatives by entry points in the group ``stridebench.alternatives``: a name and a function of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from harness.audit.outcomes import FloatArray, Outcomes
from harness.errors import ContractError
from harness.registry import ALTERNATIVES

Alternative = Callable[[Outcomes], FloatArray]
"""Weights of the outcomes, [N, A], at least 0; they are normalised. Row n may use row n of the outcomes alone."""

HEDGE = 0.05
"""Share of p in each alternative, so that no single token can lose a bet for good."""


def powered(outcomes: Outcomes, power: float) -> FloatArray:
    """Another temperature: p to this power, id by id. Above 1 it is colder."""
    sizes = np.maximum(outcomes.sizes, 1.0)
    weights: FloatArray = outcomes.sizes * np.power(outcomes.p / sizes, power)
    return weights


def narrowed(outcomes: Outcomes, mass: float) -> FloatArray:
    """Only the most probable ids, of this mass together; the last one that is needed is kept."""
    order = np.argsort(-outcomes.p, axis=1, kind="stable")
    ordered = np.take_along_axis(outcomes.p, order, axis=1)
    kept = np.cumsum(ordered, axis=1) - ordered < mass
    weights = np.zeros_like(ordered)
    np.put_along_axis(weights, order, ordered * kept, axis=1)
    return weights


def twice_cut(outcomes: Outcomes) -> FloatArray:
    """Top-p once more, of what top-p has kept."""
    return narrowed(outcomes, outcomes.top_p)


def argmax_boosted(outcomes: Outcomes, share: float) -> FloatArray:
    """The most probable id, with this probability, in place of a draw."""
    return mixed(outcomes.p, _indicator(outcomes, outcomes.p.argmax(1)), share)


def copying(outcomes: Outcomes, share: float) -> FloatArray:
    """The context's last n-gram continued as before, with this probability, where the continuation is an outcome."""
    return mixed(outcomes.p, _indicator(outcomes, outcomes.copies), share)


def leaking(outcomes: Outcomes, share: float) -> FloatArray:
    """Any id that may be drawn, with this probability."""
    return mixed(outcomes.p, outcomes.sizes, share)


def drafted(outcomes: Outcomes, share: float) -> FloatArray:
    """The drafter's draw, kept untested with this probability."""
    return mixed(outcomes.p, _q(outcomes), share)


def without_residual(outcomes: Outcomes, share: float = 1.0) -> FloatArray:
    """After a rejection the token is drawn from p, not from the residual, with this probability."""
    accepted = np.minimum(outcomes.p, _q(outcomes))
    return mixed(outcomes.p, accepted + (1 - accepted.sum(1, keepdims=True)) * outcomes.p, share)


def root_accepted(outcomes: Outcomes) -> FloatArray:
    """Drafts are accepted with probability sqrt(p / q)."""
    return _tested(outcomes, np.sqrt(outcomes.p * _q(outcomes)))


def swapped(outcomes: Outcomes) -> FloatArray:
    """Drafts are accepted with probability q / p."""
    q = _q(outcomes)
    return _tested(outcomes, np.divide(q * q, outcomes.p, out=np.zeros_like(q), where=outcomes.p > 0))


def mixed(p: FloatArray, weights: FloatArray, share: float) -> FloatArray:
    """``share`` of the weights, normalised, and the rest of p; p alone in rows without weights."""
    total = weights.sum(1, keepdims=True)
    law = np.divide(weights, total, out=p.copy(), where=total > 0)
    mixture: FloatArray = (1 - share) * p + share * law
    return mixture


def _tested(outcomes: Outcomes, accepted: FloatArray) -> FloatArray:
    """Accepted drafts, at most q of each, and draws from the right residual in place of the others."""
    q = _q(outcomes)
    accepted = np.minimum(accepted, q)
    residual = np.maximum(outcomes.p - q, 0.0)
    total = residual.sum(1, keepdims=True)
    residual = np.divide(residual, total, out=outcomes.p.copy(), where=total > 0)
    weights: FloatArray = accepted + (1 - accepted.sum(1, keepdims=True)).clip(min=0) * residual
    return weights


def _indicator(outcomes: Outcomes, places: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> FloatArray:
    """1 at the outcome of each row; zeros where the place is negative or the outcome cannot be drawn."""
    marked: FloatArray = (np.arange(outcomes.p.shape[1]) == places[:, None]).astype(np.float64)
    return marked * (outcomes.p > 0)


def _q(outcomes: Outcomes) -> FloatArray:
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
}
"""Of a sampler whose drafter's distribution is known."""


def added() -> Mapping[str, Alternative]:
    """The alternatives of other packages."""
    return {name: ALTERNATIVES.get(name) for name in ALTERNATIVES}


def usable(outcomes: Outcomes) -> dict[str, Alternative]:
    """The alternatives that can be computed from these outcomes."""
    cut = CUT if outcomes.top_p < 1 else {}
    return {**OWN, **cut, **(DRAFTED if outcomes.q is not None else {}), **added()}


def distribution(name: str, alternative: Alternative, outcomes: Outcomes) -> FloatArray:
    """The hedged distribution of an alternative, [N, A]; p where the alternative has no weights or p is zero.

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


def _refuse_foresight(name: str, alternative: Alternative, outcomes: Outcomes, weights: FloatArray) -> None:
    """Refuse weights that change when later rows, which depend on the token that is bet on, are taken away."""
    half = (len(outcomes) + 1) // 2
    again = np.asarray(alternative(outcomes.rows(half)), dtype=np.float64)
    if not np.allclose(again, weights[:half], rtol=1e-9, atol=1e-300):
        raise ContractError(
            f"the alternative {name!r} gives other weights where later tokens are left out, so it sees what it bets "
            f"on; let row n depend on row n alone"
        )
