"""The result of an audit: the e-value, the alternative that won most, and the bias that would have been seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stridebench.harness.audit.bets import TILTS, Bets, added_up, mixture, newton_path
from stridebench.harness.audit.outcomes import FloatArray
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
    threshold = refuting(cells)
    single = float(np.log(threshold) + np.log(len(gains)))
    visible = visible_distances(bets, single)
    enough = next((n for n in LONGER if _visible_tv(bets, visible_distances(bets, single, n))), None)
    return Audit(
        log_e=LARGEST if bets.impossible else min(float(mixture(np.array(bets.gains), wealth)), LARGEST),
        tokens=bets.tokens,
        near=bets.near,
        impossible=bets.impossible,
        visible_tv=_visible_tv(bets, visible),
        best="a token that cannot be drawn" if bets.impossible else max(gains, key=lambda name: gains[name]),
        gains=gains,
        threshold=threshold,
        visible=visible,
        needed=None if enough is None else round_up(bets.tokens * enough),
    )


def round_up(tokens: float) -> int:
    """Return the next whole number with two digits that are not zero."""
    unit: int = 10 ** max(0, math.floor(math.log10(max(tokens, 1))) - 1)
    return math.ceil(tokens / unit - 1e-9) * unit


def _visible_tv(bets: Bets, visible: Mapping[str, float | None]) -> float | None:
    """Return the largest of the visible distances; None if a kind that is not seen could be stronger."""
    seen = [tv for tv in visible.values() if tv is not None]
    total = max(bets.tokens + bets.near + bets.impossible, 1)
    strongest = dict(zip(bets.kinds, np.array(bets.distances) / total, strict=True))
    unseen = [strongest[kind] for kind, tv in visible.items() if tv is None]
    return max(seen) if seen and max(unseen, default=0.0) < max(seen) else None


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
    tokens = np.cumsum([bets.tokens for bets in outputs])
    wealth = newton_path(np.array(together.tilts)) if together.tilts else np.zeros((0, 0))
    started = np.vstack([np.zeros((1, wealth.shape[1])), wealth])
    log_e = np.minimum(mixture(gains.cumsum(0), started[tokens]), LARGEST)
    log_e[np.cumsum([bets.impossible for bets in outputs]) > 0] = LARGEST
    return [(int(count), float(value)) for count, value in zip(tokens, log_e, strict=True)]


def visible_distances(bets: Bets, threshold: float, times: float = 1.0) -> dict[str, float | None]:
    """Return, for each kind of bias, the least total variation a token that 9 of 10 audits refute.

    A sampler that draws from the biased distribution with probability s has a gain whose mean and variance are known
    from those under both; the sum over tokens is taken as normal. The variance is bounded from above by that of the
    pooled tokens. Tilts, which adapt, are left out.

    Args:
        threshold: of a single alternative's log gain.
        times: so many times the tokens, all like these.
    """
    total = bets.tokens + bets.near + bets.impossible
    if not total:
        return dict.fromkeys(bets.kinds)
    means, squares = np.array(bets.means), np.array(bets.squares)
    share = STRENGTHS[:, None]
    visible: dict[str, float | None] = {}
    for row, (kind, distance) in enumerate(zip(bets.kinds, bets.distances, strict=True), start=1):
        mean = (1 - share) * means[0] + share * means[row]
        square = (1 - share) * squares[0] + share * squares[row]
        spread: FloatArray = np.sqrt(np.maximum(square - mean**2 / total, 0.0))
        seen = (times * mean - SEEN * np.sqrt(times) * spread >= threshold).any(axis=1)
        visible[kind] = float(STRENGTHS[seen.argmax()] * distance / total) if seen.any() else None
    return visible
