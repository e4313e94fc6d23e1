"""The bets on the tokens of one output, and their total over all outputs of a sampler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import scipy  # its parts are read when they are used (see `stats`)

from stridebench.harness.audit.alternatives import argmax_boosted, distribution, leaking, never_copying, powered, usable
from stridebench.harness.audit.outcomes import PLACES, BoolArray, FloatArray, IntArray, TokenOutcomes
from stridebench.harness.errors import UsageError

RANGE = 4.0
"""Nats of surprise, below and above the mean, that the tilt by surprise tells apart."""
TAIL = 0.1
"""Largest mass of the improbable outcomes that the tilt by tail takes together."""
STEP = 2 / (2 - np.log(3))
"""Of the online Newton step, for bets of at most one half."""

TILTS = ("surprise", "argmax", "tail", "copy", "repeat", "draft")
"""Names of the tilts; the last is used if the drafter's distribution is known."""
PLACED = {
    "hotter": "hotter, p^0.8",
    "colder": "colder, p^1.25",
    "argmax": "argmax with 15 %",
    "any id": "any id with 10 %",
    "draft": "drafts untested with 30 %",
}
"""Kinds of bias that are bet on at each of `PLACES` alone, and the alternative that bets on each."""
PLACED_SHARE = 0.2
"""Share of the wealth that those bets begin with."""


class Gains(NamedTuple):
    """Bets on every outcome, before one is drawn.

    Args:
        names: of the J alternatives.
        log: log r / p of each outcome, [N, A, J]; 0 where p is 0.
        tilts: functions of the outcome in [-1, 1] whose mean under p is 0, [N, A, D].
    """

    names: tuple[str, ...]
    log: FloatArray
    tilts: FloatArray


@dataclass(frozen=True)
class PlacedBet:
    """The bet on one kind of bias at one of `PLACES`, added up over the tokens there.

    Args:
        gain: sum of log r(x) / p(x).
        distance: total variation between p and the bias.
        mean, square: sums of the mean of log r / p and of its square, drawn from p.
        biased_mean, biased_square: the same, drawn from the bias.
    """

    gain: float
    distance: float
    mean: float
    square: float
    biased_mean: float
    biased_square: float

    def __add__(self, other: PlacedBet) -> PlacedBet:
        return PlacedBet(*_floats(map(sum, zip(astuple(self), astuple(other), strict=True))))


@dataclass(frozen=True)
class Bets:
    """The bets on the tokens of one output, added up. Bets of several outputs add.

    Args:
        names: of the alternatives.
        kinds: of bias.
        gains: sum of log r(x) / p(x) by alternative, [J].
        tilts: value of each tilt at each token that was bet on, [N, D].
        tokens: tokens that were bet on.
        near: tokens near a cut of top-k or top-p, on which nothing is bet.
        impossible: tokens that the sampler cannot draw, and that are not near a cut.
        distances: total variation between p and each kind of bias, summed over tokens, [B].
        means: sums of the mean of log r / p over tokens that were bet on, by alternative, drawn from p and from each
            kind of bias, [1 + B, J].
        squares: the same of its square.
        placed: the bets at places of a step, by kind of bias and place; empty if it is unknown what a step emitted.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    gains: tuple[float, ...]
    tilts: tuple[tuple[float, ...], ...]
    tokens: int
    near: int
    impossible: int
    distances: tuple[float, ...]
    means: tuple[tuple[float, ...], ...]
    squares: tuple[tuple[float, ...], ...]
    placed: Mapping[str, PlacedBet] = field(default_factory=dict)

    def plain(self) -> dict[str, object]:
        """Return JSON values."""
        return asdict(self)

    @staticmethod
    def of(plain: Mapping[str, Any]) -> Bets:
        """Return the bets that ``plain`` was made of."""
        tables = {name: tuple(map(tuple, plain[name])) for name in ("tilts", "means", "squares")}
        rows: dict[str, Any] = {name: tuple(plain[name]) for name in ("names", "kinds", "gains", "distances")}
        placed = {name: PlacedBet(**bet) for name, bet in plain.get("placed", {}).items()}
        return Bets(**{**plain, **rows, **tables, "placed": placed})


def gains_of(outcomes: TokenOutcomes) -> Gains:
    """Return the bets of every alternative and tilt on every outcome."""
    p, alternatives = outcomes.p, usable(outcomes)
    log = np.zeros((*p.shape, len(alternatives)))
    for index, (name, alternative) in enumerate(alternatives.items()):
        law = distribution(name, alternative, outcomes)
        np.log(np.divide(law, p, out=np.ones_like(p), where=p > 0), out=log[:, :, index])
    return Gains(tuple(alternatives), log, _tilts(outcomes))


def _tilts(outcomes: TokenOutcomes) -> FloatArray:
    """Return functions of an outcome, centred under p and scaled into [-1, 1], [N, A, D]."""
    p = outcomes.p
    surprise = -np.log(np.divide(p, np.maximum(outcomes.sizes, 1), out=np.ones_like(p), where=p > 0))
    entropy = (p * surprise).sum(1, keepdims=True)
    order = np.argsort(p, axis=1, kind="stable")
    upto = np.cumsum(np.take_along_axis(p, order, axis=1), axis=1)
    tail = np.zeros_like(p)
    np.put_along_axis(tail, order, (upto <= TAIL).astype(np.float64), axis=1)
    index = np.arange(p.shape[1])
    features = [
        np.clip(surprise - entropy, -RANGE, RANGE) / (2 * RANGE),
        (index == p.argmax(1)[:, None]).astype(np.float64),
        tail,
        (index == outcomes.copies[:, None]).astype(np.float64),
        np.zeros_like(p) if outcomes.stood is None else (outcomes.stood > 0).astype(np.float64),
    ]
    if outcomes.q is not None:
        features.append((outcomes.q > p).astype(np.float64))
    stacked = np.stack(features, axis=2)
    centred: FloatArray = stacked - np.einsum("na,nad->nd", p, stacked)[:, None]
    centred *= (p.sum(1) > 0)[:, None, None]
    return centred


def biases(outcomes: TokenOutcomes) -> dict[str, FloatArray]:
    """Return the kinds of bias whose visibility is told, each at full strength, [N, A]."""
    p = outcomes.p
    kinds = {
        "hotter": powered(outcomes, 0.5),
        "colder": powered(outcomes, 2.0),
        "argmax": argmax_boosted(outcomes, 1.0),
        "any id": leaking(outcomes, 1.0),
    }
    if outcomes.stood is not None:
        kinds["no repeated id"] = p * (outcomes.stood == 0)
        kinds["no repeated n-gram"] = never_copying(outcomes, 1.0)
    if outcomes.q is not None:
        kinds["draft"] = outcomes.q * (p > 0)
    if outcomes.unguided is not None:
        kinds["no guidance"] = outcomes.unguided * (p > 0)
    if outcomes.unpenalised is not None:
        kinds["no penalties"] = outcomes.unpenalised * (p > 0)
    total = {name: law.sum(1, keepdims=True) for name, law in kinds.items()}
    return {name: np.divide(law, total[name], out=p.copy(), where=total[name] > 0) for name, law in kinds.items()}


def bet(outcomes: TokenOutcomes, tokens: IntArray, near: IntArray, probs: FloatArray) -> Bets:
    """Bet on the tokens of one output.

    Args:
        tokens: the ids drawn, [N].
        near: whether each is near a cut, [N].
        probs: p of each, [N].
    """
    gains = gains_of(outcomes)
    place, row = outcomes.of(tokens), np.arange(len(tokens))
    counted = (near == 0) & (probs > 0)
    kinds = biases(outcomes)
    laws = [outcomes.p, *kinds.values()]
    bets_on = counted[:, None]  # a token near a cut bets nothing, so its row shows nothing
    return Bets(
        names=gains.names,
        kinds=tuple(kinds),
        gains=_floats(gains.log[row, place][counted].sum(0)),
        tilts=_table(gains.tilts[row, place][counted]),
        tokens=int(counted.sum()),
        near=int((near != 0).sum()),
        impossible=int(((near == 0) & (probs <= 0)).sum()),
        distances=_floats([np.abs(law - outcomes.p).sum() / 2 for law in laws[1:]]),
        means=_table([np.einsum("na,naj->j", law * bets_on, gains.log) for law in laws]),
        squares=_table([np.einsum("na,naj->j", law * bets_on, gains.log**2) for law in laws]),
        placed=_placed(outcomes, gains, kinds, place, counted),
    )


def _placed(
    outcomes: TokenOutcomes, gains: Gains, kinds: Mapping[str, FloatArray], place: IntArray, counted: BoolArray
) -> dict[str, PlacedBet]:
    """Return the bets at places of a step: those of some alternatives, added up over the tokens of one place."""
    if outcomes.places is None:
        return {}
    placed: dict[str, PlacedBet] = {}
    for kind in PLACED.keys() & kinds.keys():
        log, p, law = gains.log[:, :, gains.names.index(PLACED[kind])], outcomes.p, kinds[kind]
        gain = log[np.arange(len(place)), place] * counted
        moments = [(weights * power).sum(1) * counted for weights in (p, law) for power in (log, log**2)]
        sums = np.stack([gain, np.abs(law - p).sum(1) / 2, *moments], axis=1)
        for name, row in zip(PLACES, outcomes.places.T.astype(np.float64) @ sums, strict=True):
            placed[f"{kind} at {name}"] = PlacedBet(*_floats(row))
    return dict(sorted(placed.items()))


def _floats(values: Iterable[Any]) -> tuple[float, ...]:
    return tuple(round(float(value), 9) for value in values)


def _table(values: Iterable[Iterable[Any]]) -> tuple[tuple[float, ...], ...]:
    return tuple(map(_floats, values))


def newton_path(tilts: FloatArray) -> FloatArray:
    """Return the log wealth of the online Newton step on each tilt, after each token, [..., N, D].

    A bettor stakes the share b of its wealth on a tilt g, at most one half, and its wealth is multiplied by 1 + b g.
    It begins with b = 0, and knows the tilts of earlier tokens alone.

    Source: Cutkosky & Orabona 2018, arXiv:1802.06293, Algorithm 1, in one dimension for each tilt.
    """
    path = np.zeros_like(tilts)
    share = np.zeros(tilts.shape[:-2] + tilts.shape[-1:])
    wealth, curvature = np.zeros_like(share), np.ones_like(share)
    for index in range(tilts.shape[-2]):
        tilt = tilts[..., index, :]
        factor = 1 + share * tilt
        wealth = wealth + np.log(factor)
        path[..., index, :] = wealth
        slope = tilt / factor
        curvature = curvature + slope**2
        share = np.clip(share + STEP * slope / curvature, -0.5, 0.5)
    return path


def mixture(gains: FloatArray, wealth: FloatArray, placed: FloatArray | None = None) -> FloatArray:
    """Return the log e-value: alternatives and tilts begin with equal shares. [..., J] and [..., D] give [...].

    Args:
        placed: log gains of the bets at places of a step, [..., M], which share `PLACED_SHARE` of the wealth.
    """
    joint = np.concatenate([gains, wealth], axis=-1)
    total: FloatArray = scipy.special.logsumexp(joint, axis=-1) - np.log(joint.shape[-1])
    if placed is None or not placed.shape[-1]:
        return total
    at_places = scipy.special.logsumexp(placed, axis=-1) - np.log(placed.shape[-1])
    joined: FloatArray = np.logaddexp(total + np.log(1 - PLACED_SHARE), at_places + np.log(PLACED_SHARE))
    return joined


def added_up(outputs: Sequence[Bets]) -> Bets:
    """Return the bets on several outputs as one. If an output has no bet of some name, its gain is 0.

    Raises:
        UsageError: ``outputs`` is empty.
    """
    if not outputs:
        raise UsageError("there is no output to audit")
    names = tuple(dict.fromkeys(name for bets in outputs for name in bets.names))
    placed: dict[str, PlacedBet] = {}
    for name, placed_bet in (item for bets in outputs for item in bets.placed.items()):
        placed[name] = placed[name] + placed_bet if name in placed else placed_bet
    kinds = tuple(dict.fromkeys(kind for bets in outputs for kind in bets.kinds))
    width = max(len(row) for bets in outputs for row in (*bets.tilts, ()))
    gains, distances = np.zeros(len(names)), np.zeros(len(kinds))
    moments = np.zeros((2, 1 + len(kinds), len(names)))
    for bets in outputs:
        columns = [names.index(name) for name in bets.names]
        gains[columns] += bets.gains
        rows = [1 + bets.kinds.index(kind) if kind in bets.kinds else 0 for kind in kinds]
        moments[:, :, columns] += np.array([bets.means, bets.squares])[:, [0, *rows]]
        distances += [bets.distances[row - 1] if row else 0.0 for row in rows]
    return Bets(
        names=names,
        kinds=kinds,
        gains=_floats(gains),
        tilts=tuple((*row, *(0.0,) * (width - len(row))) for bets in outputs for row in bets.tilts),
        tokens=sum(bets.tokens for bets in outputs),
        near=sum(bets.near for bets in outputs),
        impossible=sum(bets.impossible for bets in outputs),
        distances=_floats(distances),
        means=_table(moments[0]),
        squares=_table(moments[1]),
        placed=placed,
    )
