"""Audits an output by the probabilities that its engine sends with each token, so it needs no weights.

An engine sends the k most probable tokens. Each is an outcome, and all others together are one more. This is exact at
T = 1 without cuts, because the outcome is a function of the token. At another T, or behind penalties that reach another
token, the bets are on the k tokens alone. So they are behind a cut of top-k, top-p or min-p, which may lie among the k
tokens: then no other token can be drawn. Bets that need the drafter's distributions are left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from stridebench.harness.audit.bets import Bets, bet
from stridebench.harness.audit.outcomes import FloatArray, TokenOutcomes, copied, counted
from stridebench.harness.core.engine import Penalties, TokenRow
from stridebench.harness.core.task import Sampling

SPARE = 1e-6
"""Least probability of the other tokens together: probabilities are sent rounded."""
PLAIN = Sampling(temperature=1.0)
NO_PENALTIES = Penalties()
MARGIN = 0.25
"""Logits by which scoring and decoding may differ: no bet this near to a cut."""
LEAST, LARGEST = 300.0, 700.0
"""Least log-probability that counts, with its sign changed, and largest exponent."""
PART = "\ufffd"
"""A part of a character, which is the text of many tokens: such a token is one of the others."""


def width_of(outputs: Sequence[Sequence[TokenRow]]) -> int:
    """Return how many most probable tokens every row has.

    A row may hold one entry more, the token itself, if it is not one of them. So the shortest row decides. It is 0 if
    every row names the drawn token alone: then the draw decides which probabilities are sent, and no bet is fair.
    """
    if all(row.top.keys() == {row.token} for rows in outputs for row in rows):
        return 0
    return min((len(row.top) for rows in outputs for row in rows), default=0)


def top_of(row: TokenRow, width: int) -> dict[str, float]:
    """Return the most probable tokens of a row with their log-probabilities, from the most probable on."""
    ordered = sorted(row.top.items(), key=lambda entry: (-entry[1], entry[0]))[:width]
    return {name: value for name, value in ordered if PART not in name}


class KnownTokens(NamedTuple):
    """The tokens of one row that are known, behind the penalties of the request.

    Args:
        names: of the A tokens, from the largest weight on.
        raw: their log-probabilities, as they were sent, [A].
        logs: the same behind the penalties, up to a constant, [A]; descending.
        rest: probability of all other tokens together, as it was sent.
        raised, lowered: nats by which penalties raise and lower another token at most.
    """

    names: tuple[str, ...]
    raw: FloatArray
    logs: FloatArray
    rest: float
    raised: float
    lowered: float

    @property
    def ceiling(self) -> float:
        """Return what no other token exceeds: it is at most as probable as the least known one, before penalties."""
        return float(self.raw.min()) + self.raised

    def others(self, heat: float) -> tuple[float, float]:
        """Return bounds of the others' sum of exp(heat * (log - logs[0])), below and above."""
        least, most = float(self.raw.min()), float(self.logs[0])
        below, above = (heat * (least + by - most) - least for by in (-self.lowered, self.raised))
        return (
            self.rest * math.exp(min(below, LARGEST)) if heat <= 1 else 0.0,
            self.rest * math.exp(min(above, LARGEST)) if heat >= 1 else math.inf,
        )


def known_tokens(row: TokenRow, width: int, penalties: Penalties, seen: Mapping[str, int]) -> KnownTokens:
    """Return what a row says of its tokens.

    Args:
        seen: how often each token stands in the output before this one, by its name.
    """
    ordered = sorted(row.top.items(), key=lambda entry: (-entry[1], entry[0]))[:width]
    raw = np.array([max(value, -LEAST) for _, value in ordered])
    moved = np.array([penalties.shift(token_id(name), seen.get(name, 0)) for name, _ in ordered])
    order = np.argsort(-(raw + moved), kind="stable")
    ids = {token_id(name) for name, _ in ordered}
    elsewhere = [penalties.shift(token_id(name), count) for name, count in seen.items() if name not in dict(ordered)]
    elsewhere += [bias for token, bias in penalties.bias.items() if token not in ids]
    return KnownTokens(
        names=tuple(ordered[place][0] for place in order),
        raw=raw[order],
        logs=(raw + moved)[order],
        rest=max(0.0, 1 - float(np.exp(raw).sum())),
        raised=max([0.0, *elsewhere]),
        lowered=-min([0.0, *elsewhere]),
    )


def token_id(name: str) -> int | None:
    """Return the id that a row's token is named by (``id 5`` or ``token_id:5``), or None if the name is a text."""
    prefix, digits = name[: len(name.rstrip("0123456789"))], name[len(name.rstrip("0123456789")) :]
    return int(digits) if prefix in ("id ", "token_id:") and digits else None


def known_rows(rows: Sequence[TokenRow], width: int, penalties: Penalties = NO_PENALTIES) -> list[KnownTokens]:
    """Return what the rows of one output say; penalties count the tokens of the output before each."""
    seen: Counter[str] = Counter()
    known = []
    for row in rows:
        known.append(known_tokens(row, width, penalties, seen))
        seen[row.token] += 1
    return known


def bets_on_rows(
    rows: Sequence[TokenRow], width: int, sampling: Sampling = PLAIN, penalties: Penalties = NO_PENALTIES
) -> Bets:
    """Return the bets on one output.

    At a temperature other than 1 the distribution is known given that the token is one of the most probable ones, up to
    a factor. So a token that is not one of them bets nothing; it counts as one near a cut. Behind a cut that lies
    wholly among them no such token can be drawn.

    Args:
        rows: one for each token of the output.
        width: of ``width_of``, at least 1.
        sampling: of the request: temperature, above 0, top-k, top-p and min-p.
        penalties: of the request, without repetition.
    """
    numbers: dict[str, int] = {}
    context = [numbers.setdefault(row.token, len(numbers)) for row in rows]
    ids = np.full((len(rows), width + 1), -1, dtype=np.int64)
    p, unpenalised, near = np.zeros(ids.shape), np.zeros(ids.shape), np.zeros(ids.shape, dtype=bool)
    whole = sampling.top_p == 1 and not sampling.top_k and not sampling.min_p
    heat = 1 / sampling.temperature
    for place, known in enumerate(known_rows(rows, width, penalties)):
        named = np.array([PART not in name for name in known.names])
        ids[place, :-1][named] = [numbers.setdefault(name, len(numbers)) for name in known.names if PART not in name]
        cut = cut_of(known, sampling)
        weights = np.exp(heat * (known.logs - known.logs[0]))
        p[place, :-1] = weights * (known.logs > cut.kept) * named
        unpenalised[place, :-1] = np.exp(heat * (known.raw - known.raw.max())) * (p[place, :-1] > 0)
        near[place, :-1] = (known.logs <= cut.kept) & (known.logs >= cut.gone) & named
        if whole and sampling.temperature == 1 and known.raised == known.lowered == 0:
            others = known.rest * math.exp(-known.logs[0]) + weights[~named].sum()
            p[place, -1] = max(others, SPARE * weights.sum())
            unpenalised[place, -1] = p[place, -1] * math.exp(known.logs[0] - known.raw.max())
        else:
            near[place, -1] = not cut.inside or bool((known.logs[~named] >= cut.gone).any())
    tiny = np.finfo(np.float64).tiny
    p /= np.maximum(p.sum(axis=1, keepdims=True), tiny)
    unpenalised /= np.maximum(unpenalised.sum(axis=1, keepdims=True), tiny)
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
        unpenalised=None if penalties == NO_PENALTIES else unpenalised,
        stood=stood,
        stood_in_output=stood,
    )
    tokens = np.array(context, dtype=np.int64)
    places = outcomes.of(tokens)
    drawn: FloatArray = p[np.arange(len(rows)), places]
    unknown = near[np.arange(len(rows)), places] | (p.sum(axis=1) == 0)
    return bet(outcomes, tokens, unknown.astype(np.int64), drawn)


def below_best(rows: Sequence[TokenRow], width: int, penalties: Penalties = NO_PENALTIES) -> list[float]:
    """Return by how many nats each token of an output lies below the most probable one, behind the penalties.

    A token that the row does not name is at most as probable as the least one that it names.
    """
    below, seen = [], Counter[str]()
    for row, known in zip(rows, known_rows(rows, width, penalties), strict=True):
        own = row.top.get(row.token, float(known.raw.min())) + penalties.shift(token_id(row.token), seen[row.token])
        below.append(max(0.0, float(known.logs[0]) - own))
        seen[row.token] += 1
    return below


class RowCut(NamedTuple):
    """The place where top-k, top-p and min-p cut a row, in log-weights.

    Args:
        kept: a token above it is kept. gone: a token below it is cut off. Between them one rounding may decide.
        inside: whether no token that is not sent can be kept.
    """

    kept: float
    gone: float
    inside: bool


def cut_of(known: KnownTokens, sampling: Sampling) -> RowCut:
    """Return the cut of a row. Top-k is applied before top-p, as servers do; min-p may stand before or behind both.

    The tokens that are not sent are each at most as probable as the least one that is, before penalties. At T = 1
    their mass is known, else it lies between 0 and that of as many such tokens as make up the rest.
    """
    logs, heat, margin = known.logs, 1 / sampling.temperature, MARGIN * sampling.temperature
    kept, gone, inside = -math.inf, -math.inf, False
    least, most = known.others(heat)
    weights = np.exp(heat * (logs - logs[0]))
    if 0 < sampling.top_k < len(logs):
        kept, gone = max(float(logs[sampling.top_k]), known.ceiling) + margin, float(logs[sampling.top_k - 1]) - margin
        inside, least = known.ceiling < gone, 0.0
        most = 0.0 if known.ceiling <= logs[sampling.top_k] else most
        weights = weights * (logs >= gone)
    total = weights.sum() + most
    if sampling.min_p:
        share = sampling.temperature * math.log(sampling.min_p)
        kept = max(kept, max(float(logs[0]), known.ceiling) + share + margin)
        gone, least = max(gone, float(logs[0]) + share - margin), 0.0
        inside = inside or known.ceiling < gone
    if sampling.top_p < 1:
        before = np.cumsum(weights) - weights
        above = before + np.where(logs < known.ceiling, most, 0.0)
        slack = 2 * MARGIN * sampling.top_p * (1 - sampling.top_p)
        surely = max(weights[logs > kept].sum() + least, np.finfo(np.float64).tiny)
        stays, leaves = above / surely < sampling.top_p - slack, before / total >= min(sampling.top_p + slack, 1.0)
        kept = max(kept, float(logs[stays].min()) - 1e-9) if stays.any() else math.inf
        if leaves.any():
            edge = float(logs[leaves].max())
            gone, inside = max(gone, edge + 1e-9), inside or known.ceiling <= edge
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
