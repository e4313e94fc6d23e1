"""The result of an audit: the e-value, the alternative that won most, and the bias that would have been seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stridebench.harness.audit.bets import PLACED_SHARE, TILTS, Bets, added_up, mixture, newton_path
from stridebench.harness.audit.outcomes import BEHIND, FloatArray
from stridebench.harness.record.metrics import refuting

SEEN = 1.2815515655446004
"""Normal quantile of 0.9: a bias is visible where nine of ten audits would refute it."""
LARGEST = 690.0
"""Log e-values are cut here, so that an e-value is a finite number."""
STRENGTHS = np.geomspace(1e-4, 1.0, 400)
"""Shares of a biased distribution that are tried."""
LONGER = np.geomspace(1.0, 1e5, 51)
"""Multiples of the tokens that are tried to find out how many would do."""


@dataclass(frozen=True)
class Audit:
    """The audit of one sampler.

    Args:
        log_e: natural log of the e-value; ``LARGEST`` if a token was drawn that cannot be drawn.
        tokens: tokens that were bet on.
        near: tokens near a cut, on which there was no bet.
        impossible: tokens that cannot be drawn.
        visible_tv: total variation a token from which on a bias of each kind in ``visible`` would have been refuted in
            9 of 10 audits; None if one of these kinds could be stronger and would not be refuted. Nothing is said about
            biases of other kinds.
        best: the alternative or tilt with the largest gain.
        gains: log gain of each alternative and tilt.
        threshold: the e-value from which on the sampler is refuted.
        visible: total variation a token by kind of bias; None if it would not be seen, however strong.
        needed: tokens from which on ``visible_tv`` is known, if later ones are like these; None if a hundred thousand
            times as many would not do.
    """

    log_e: float
    tokens: int
    near: int
    impossible: int
    visible_tv: float | None
    best: str
    gains: dict[str, float]
    threshold: float
    visible: dict[str, float | None]
    needed: int | None = None

    @property
    def verdict(self) -> str:
        """Return refuted, not refuted, or inconclusive: nothing would have been seen with so few tokens."""
        if self.log_e >= np.log(self.threshold):
            return "refuted"
        return "inconclusive" if all(tv is None for tv in self.visible.values()) else "not refuted"


def audit(outputs: Sequence[Bets], cells: int = 1) -> Audit:
    """Return the audit of all outputs of a sampler.

    Args:
        cells: number of samplers that are audited together. The threshold is so many times higher, so that one correct
            sampler among them is refuted once in a thousand audits of all.

    Raises:
        UsageError: ``outputs`` is empty.
    """
    bets = added_up(outputs)
    wealth = newton_path(np.array(bets.tilts))[-1] if bets.tilts else np.zeros(0)
    gains = dict(zip(bets.names, bets.gains, strict=True))
    gains |= {f"tilt by {name}": float(value) for name, value in zip(TILTS, wealth, strict=False)}
    placed = np.array([bet.gain for bet in bets.placed.values()])
    threshold, names = refuting(cells), len(gains)
    gains |= {name: bet.gain for name, bet in bets.placed.items()}
    groups = _visibilities(bets, threshold, names)
    enough = next((n for n in LONGER if _least_of_all(_visibilities(bets, threshold, names, n))), None)
    return Audit(
        log_e=LARGEST if bets.impossible else min(float(mixture(np.array(bets.gains), wealth, placed)), LARGEST),
        tokens=bets.tokens,
        near=bets.near,
        impossible=bets.impossible,
        visible_tv=_least_of_all(groups),
        best="a token that cannot be drawn" if bets.impossible else max(gains, key=lambda name: gains[name]),
        gains=gains,
        threshold=threshold,
        visible={name: _least(kinds) for name, kinds in groups.items()},
        needed=None if enough is None else round_up(bets.tokens * enough),
    )


def round_up(tokens: float) -> int:
    """Return the next whole number with two digits that are not zero."""
    unit: int = 10 ** max(0, math.floor(math.log10(max(tokens, 1))) - 1)
    return math.ceil(tokens / unit - 1e-9) * unit


class _Visibility(NamedTuple):
    """The least total variation a token of one kind of bias that 9 of 10 audits refute, or None; and the strongest."""

    seen: float | None
    strongest: float


def _least(kinds: Sequence[_Visibility]) -> float | None:
    """Return the total variation from which on all kinds are seen; None if an unseen kind could be as strong."""
    seen = [kind.seen for kind in kinds if kind.seen is not None]
    unseen = [kind.strongest for kind in kinds if kind.seen is None]
    return max(seen) if seen and max(unseen, default=0.0) < max(seen) else None


def _least_of_all(groups: Mapping[str, Sequence[_Visibility]]) -> float | None:
    return _least([kind for kinds in groups.values() for kind in kinds])


def evidence_path(outputs: Sequence[Bets]) -> list[tuple[int, float]]:
    """Return audited tokens and the natural log of the e-value after each output in turn; the last is the audit's.

    Raises:
        UsageError: ``outputs`` is empty.
    """
    together = added_up(outputs)
    columns = {name: index for index, name in enumerate(together.names)}
    gains = np.zeros((len(outputs), len(columns)))
    for row, bets in zip(gains, outputs, strict=True):
        row[[columns[name] for name in bets.names]] = bets.gains
    placed = np.array([[bets.placed[n].gain if n in bets.placed else 0.0 for n in together.placed] for bets in outputs])
    tokens = np.cumsum([bets.tokens for bets in outputs])
    wealth = newton_path(np.array(together.tilts)) if together.tilts else np.zeros((0, 0))
    started = np.vstack([np.zeros((1, wealth.shape[1])), wealth])
    log_e = np.minimum(mixture(gains.cumsum(0), started[tokens], placed.cumsum(0)), LARGEST)
    log_e[np.cumsum([bets.impossible for bets in outputs]) > 0] = LARGEST
    return [(int(count), float(value)) for count, value in zip(tokens, log_e, strict=True)]


def _visibilities(bets: Bets, threshold: float, names: int, times: float = 1.0) -> dict[str, list[_Visibility]]:
    """Return how visible each kind of bias is; kinds at places of a step are in two groups.

    A sampler that draws from the biased distribution with probability s has a gain whose mean and variance are known
    from those under both; the sum over tokens is taken as normal. The variance is bounded from above by that of the
    pooled tokens. Tilts, which adapt, are left out.

    Args:
        threshold: of the e-value.
        names: number of alternatives and tilts.
        times: so many times the tokens, all like these.
    """
    total = bets.tokens + bets.near + bets.impossible
    needs = np.log(threshold) + np.log(names) - (np.log(1 - PLACED_SHARE) if bets.placed else 0.0)
    means, squares = np.array(bets.means), np.array(bets.squares)
    groups = {
        kind: [_visibility(total, times, needs, distance, means[[0, row]], squares[[0, row]])]
        for row, (kind, distance) in enumerate(zip(bets.kinds, bets.distances, strict=True), start=1)
    }
    needs = np.log(threshold) + np.log(max(len(bets.placed), 1)) - np.log(PLACED_SHARE)
    for name, bet in bets.placed.items():
        means, squares = np.array([[bet.mean], [bet.biased_mean]]), np.array([[bet.square], [bet.biased_square]])
        group = "behind a step" if name.endswith(BEHIND) else "one place of a step"
        groups.setdefault(group, []).append(_visibility(total, times, needs, bet.distance, means, squares))
    return groups


def _visibility(
    total: int, times: float, needs: float, distance: float, means: FloatArray, squares: FloatArray
) -> _Visibility:
    """Return how visible a bias is: the first rows are sums of moments of the gains under p, the others under it."""
    if not total:
        return _Visibility(None, 0.0)
    share = STRENGTHS[:, None]
    mean, square = ((1 - share) * table[0] + share * table[1] for table in (means, squares))
    spread: FloatArray = np.sqrt(np.maximum(square - mean**2 / total, 0.0))
    seen = (times * mean - SEEN * np.sqrt(times) * spread >= needs).any(axis=1)
    return _Visibility(float(STRENGTHS[seen.argmax()] * distance / total) if seen.any() else None, distance / total)
