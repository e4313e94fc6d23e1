"""Audits an output by the probabilities that its engine sends with each token, so it needs no weights.

An engine sends the k most probable tokens. Each is an outcome, and all others together are one more. This is exact at
T = 1 without cuts, because the outcome is a function of the token. At another T the bets are on the k tokens alone. So
they are behind a cut of top-k or top-p, which may lie among the k tokens: then no other token can be drawn.
Bets that need the prompt's ids or the drafter's distributions are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from stridebench.harness.audit.bets import Bets, bet
from stridebench.harness.audit.outcomes import FloatArray, TokenOutcomes, copied, counted
from stridebench.harness.core.engine import TokenRow
from stridebench.harness.core.task import Sampling

SPARE = 1e-6
"""Least probability of the other tokens together: probabilities are sent rounded."""
PLAIN = Sampling(temperature=1.0)
MARGIN = 0.25
"""Logits by which scoring and decoding may differ: no bet this near to a cut."""
PART = "\ufffd"
"""A part of a character, which is the text of many tokens: such a token is one of the others."""


def width_of(outputs: Sequence[Sequence[TokenRow]]) -> int:
    """Return how many most probable tokens every row has.

    A row may hold one entry more, the token itself, if it is not one of them. So the shortest row decides.
    """
    return min((len(row.top) for rows in outputs for row in rows), default=0)


def top_of(row: TokenRow, width: int) -> dict[str, float]:
    """Return the most probable tokens of a row with their log-probabilities, from the most probable on."""
    ordered = sorted(row.top.items(), key=lambda entry: (-entry[1], entry[0]))[:width]
    return {name: value for name, value in ordered if PART not in name}


def bets_on_rows(rows: Sequence[TokenRow], width: int, sampling: Sampling = PLAIN) -> Bets:
    """Return the bets on one output.

    At a temperature other than 1 the distribution is known given that the token is one of the most probable ones, up to
    a factor. So a token that is not one of them bets nothing; it counts as one near a cut. Behind a cut that lies
    wholly among them no such token can be drawn.

    Args:
        rows: one for each token of the output.
        width: of ``width_of``, at least 1.
        sampling: of the request: temperature, above 0, top-k and top-p.
    """
    tops = [top_of(row, width) for row in rows]
    numbers: dict[str, int] = {}
    context = [numbers.setdefault(row.token, len(numbers)) for row in rows]
    ids = np.full((len(rows), width + 1), -1, dtype=np.int64)
    p = np.zeros((len(rows), width + 1))
    for place, top in enumerate(tops):
        ids[place, : len(top)] = [numbers.setdefault(name, len(numbers)) for name in top]
        p[place, : len(top)] = np.exp(list(top.values()))
    whole = sampling.top_p == 1 and not sampling.top_k
    known = whole and sampling.temperature == 1
    near = np.zeros(p.shape, dtype=bool)
    near[:, -1] = not known
    if not whole:
        for place, (row, top) in enumerate(zip(rows, tops, strict=True)):
            cut = cut_of(row, width, sampling)
            logs = np.array(list(top.values()))
            p[place, : len(top)] *= logs > cut.kept
            near[place, : len(top)] = (logs <= cut.kept) & (logs >= cut.gone)
            near[place, -1] = not cut.inside or any(PART in name and log >= cut.gone for name, log in row.top.items())
    p = p if known else np.power(p, 1 / sampling.temperature)
    p[:, -1] = np.maximum(1 - p.sum(axis=1), SPARE) if known else 0.0
    p /= np.maximum(p.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    sizes = (p > 0).astype(np.float64)
    least = np.where(p[:, :-1] > 0, p[:, :-1], 1.0).min(axis=1)
    sizes[:, -1] = np.ceil(p[:, -1] / least)  # the others are no more probable than the last token that is known
    copies = np.array(copied(context, 0)[: len(rows)], dtype=np.int64)
    match = (ids == copies[:, None]) & (copies[:, None] >= 0)
    stood = counted(context, 0, 0, ids)
    outcomes = TokenOutcomes(
        p,
        sizes,
        ids,
        np.where(match.any(1), match.argmax(1), -1),
        top_p=sampling.top_p,
        stood=stood,
        stood_in_output=stood,
    )
    tokens = np.array(context, dtype=np.int64)
    places = outcomes.of(tokens)
    drawn: FloatArray = p[np.arange(len(rows)), places]
    unknown = near[np.arange(len(rows)), places] | (p.sum(axis=1) == 0)
    return bet(outcomes, tokens, unknown.astype(np.int64), drawn)


class RowCut(NamedTuple):
    """Where top-k and top-p cut a row, in log-probabilities.

    Args:
        kept: a token above it is kept. gone: a token below it is cut off. Between them one rounding may decide.
        inside: whether no token that is not sent can be kept.
    """

    kept: float
    gone: float
    inside: bool


def cut_of(row: TokenRow, width: int, sampling: Sampling) -> RowCut:
    """Return the cut of a row; top-k is applied first, as servers do.

    The tokens that are not sent are each at most as probable as the least one that is. At T = 1 their mass is known,
    else it lies between 0 and that of as many such tokens as make up the rest.
    """
    logs = np.sort(np.array(list(row.top.values())))[::-1][:width]
    margin = MARGIN * sampling.temperature
    kept, gone, inside = -math.inf, -math.inf, False
    rest = max(0.0, 1 - float(np.exp(logs).sum()))
    if 0 < sampling.top_k < len(logs):
        kept, gone = logs[sampling.top_k] + margin, logs[sampling.top_k - 1] - margin
        inside, rest = bool(logs[-1] < gone), 0.0
    if sampling.top_p < 1:
        heat = 1 / sampling.temperature
        weights = np.exp(heat * (logs - logs[0])) * (logs >= gone)
        others = rest * math.exp((heat - 1) * logs[-1] - heat * logs[0])
        most = others if heat >= 1 else math.inf
        least = others if heat <= 1 else 0.0
        before = np.cumsum(weights) - weights
        slack = 2 * MARGIN * sampling.top_p * (1 - sampling.top_p)
        stays = before / (weights[logs > kept].sum() + least) < sampling.top_p - slack
        leaves = before / (weights.sum() + most) >= min(sampling.top_p + slack, 1.0)
        kept = max(kept, logs[stays].min() - 1e-9) if stays.any() else math.inf
        if leaves.any():
            gone, inside = max(gone, logs[leaves].max() + 1e-9), True
    return RowCut(kept, gone, inside)


def distance(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Return the least total variation that two distributions with these most probable tokens can have."""
    return max(_above(one, other), _above(other, one))


def _above(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Return the mass by which the first exceeds the second, at least.

    A token that the second does not name is at most as probable as its least one, and as all that it does not name.
    """
    named = {name: math.exp(value) for name, value in other.items()}
    most = max(0.0, min(*named.values(), 1 - math.fsum(named.values())))
    return math.fsum(max(0.0, math.exp(value) - named.get(name, most)) for name, value in one.items())
