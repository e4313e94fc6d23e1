"""Bets by the probabilities that an engine sends with each token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from stridebench.harness.audit.of_rows import (
    LARGEST,
    KnownTokens,
    below_best,
    bets_on_rows,
    cut_of,
    distance,
    known_rows,
    token_id,
    top_of,
    width_of,
)
from stridebench.harness.audit.verdict import audit
from stridebench.harness.core.engine import Penalties, TokenRow
from stridebench.harness.core.sampling import Sampling, warp

P = np.array([0.35, 0.25, 0.2, 0.1, 0.06, 0.04])


def row(p: NDArray[np.float64], token: int, width: int) -> TokenRow:
    """What a server sends: the most probable tokens, and the token if it is not one of them."""
    kept = dict.fromkeys([*np.argsort(-p, kind="stable")[:width].tolist(), token])
    return TokenRow(str(token), {str(one): math.log(p[one]) for one in kept})


def drawn(p: NDArray[np.float64], tokens: int, seed: int, width: int = 3) -> list[TokenRow]:
    return [row(P, int(token), width) for token in np.random.default_rng(seed).choice(len(P), tokens, p=p / p.sum())]


@pytest.mark.parametrize("width", [1, 3, 5])
def test_each_bet_is_fair_whatever_the_number_of_tokens_that_are_sent(width: int) -> None:
    """The mean of r / p over all tokens, which are enumerated, is 1; the spare mass of the others moves it by 1e-5."""
    gains = np.array([bets_on_rows([row(P, token, width)], width).gains for token in range(len(P))])
    np.testing.assert_allclose((P[:, None] * np.exp(gains)).sum(axis=0), 1.0, atol=1e-5)
    assert np.abs(gains).max() > 0.01


def test_a_wrong_temperature_is_refuted_and_the_right_one_is_not() -> None:
    right = audit([bets_on_rows(drawn(P, 64, seed), 3) for seed in range(12)])
    assert right.verdict == "not refuted" and right.tokens == 768 and right.impossible == 0
    assert right.visible_tv is not None and right.visible_tv < 0.2
    cold = audit([bets_on_rows(drawn(P**2, 64, seed), 3) for seed in range(12)])
    assert cold.verdict == "refuted" and "colder" in cold.best


def test_a_token_that_is_not_sent_as_one_of_the_most_probable_is_one_of_the_others() -> None:
    rows = [row(P, 5, 2), row(P, 0, 2)]
    assert [len(one.top) for one in rows] == [3, 2] and width_of([rows]) == 2
    assert list(top_of(rows[0], 2)) == ["0", "1"]
    assert width_of([]) == width_of([[TokenRow("a", {})]]) == 0
    assert width_of([drawn(P, 9, 0, width=1)]) == 1


def test_rows_of_the_drawn_token_alone_have_no_most_probable_ones() -> None:
    """Bets on them would refute a correct server, since the draw decides which probability is sent."""
    alone = [drawn(P, 64, seed, width=0) for seed in range(4)]
    assert width_of(alone) == 0 and audit([bets_on_rows(rows, 1) for rows in alone]).verdict == "refuted"


def test_parts_of_characters_are_one_of_the_others_because_several_tokens_have_that_text() -> None:
    rows = [TokenRow("\ufffd", {"\ufffd": math.log(0.5), "a": math.log(0.3)})]
    assert list(top_of(rows[0], 2)) == ["a"]
    bets = bets_on_rows(rows, 2)
    assert bets.tokens == 1
    others = 0.05 * 0.7 + 0.95 * (0.9 * 0.7 + 0.1 * 3 / 4)  # "a" and three others of at most its probability
    gains = dict(zip(bets.names, bets.gains, strict=True))
    assert gains["any id with 10 %"] == pytest.approx(math.log(others / 0.7), abs=1e-6)


def logs(p: Mapping[str, float]) -> dict[str, float]:
    return {name: math.log(value) for name, value in p.items()}


@pytest.mark.parametrize(
    ("one", "other", "least"),
    [
        ({"a": 0.5, "b": 0.3}, {"a": 0.5, "b": 0.3}, 0.0),
        ({"a": 0.5, "b": 0.3}, {"a": 0.3, "b": 0.5}, 0.2),
        ({"a": 0.5, "b": 0.3}, {"a": 0.4, "c": 0.3}, 0.1),  # b may have 0.3 in the other, whose rest has as much
        ({"a": 0.9}, {"b": 0.9}, 0.8),
        ({"a": 0.9}, {"a": 0.5}, 0.4),
        ({"c": 0.9}, {"a": 0.7, "b": 0.5}, 1.0),  # rounded up: nothing is left for others
    ],
)
def test_the_distance_of_two_rows_is_at_least_what_their_tokens_show(
    one: dict[str, float], other: dict[str, float], least: float
) -> None:
    assert distance(logs(one), logs(other)) == pytest.approx(least)


def test_a_text_that_continues_its_pairs_as_before_is_refuted_by_the_bet_on_copies() -> None:
    rows = [row(P, token, 6) for token in [0, 1, 2, 3, 4, 5] * 12]
    result = audit([bets_on_rows(rows, 6)])
    assert result.verdict == "refuted" and result.best == "copy of an n-gram with 20 %"


PENALTIES = Penalties(presence=0.3, frequency=0.1, bias={2: 0.4, 9: -0.2})
SENT = np.log([0.4, 0.3, 0.2, 0.06])  # a row of which 0.04 is not sent


def named_row(p: NDArray[np.float64], token: int, width: int) -> TokenRow:
    """A row whose tokens are named by their ids, as penalties need it."""
    plain = row(p, token, width)
    return TokenRow(f"id {token}", {f"id {name}": value for name, value in plain.top.items()})


@pytest.mark.parametrize(
    ("sampling", "width", "penalties", "counted", "near"),
    [
        (Sampling(0.7), 2, None, [0, 1], [2, 3, 4, 5]),
        (Sampling(1.4), 2, None, [0, 1], [2, 3, 4, 5]),
        (Sampling(0.7), 6, None, [0, 1, 2, 3, 4, 5], []),
        (Sampling(0.5, top_k=2), 5, None, [0, 1], []),
        (Sampling(1.0, top_k=2), 5, None, [0], [1, 2]),
        (Sampling(1.0, top_p=0.65), 5, None, [0, 1], [2]),
        (Sampling(0.5, top_p=0.65), 5, None, [0, 1], []),
        (Sampling(1.0, min_p=0.6), 5, None, [0], [1, 2]),
        (Sampling(2.0, min_p=0.4), 3, None, [0, 1, 2], [3, 4, 5]),
        (Sampling(0.8, top_k=3, top_p=0.9), 5, None, [0, 1, 2], []),
        (Sampling(1.0), 6, PENALTIES, [0, 1, 2, 3, 4, 5], []),
        (Sampling(1.0), 5, PENALTIES, [0, 1, 2, 3, 4], [5]),
        (Sampling(0.7, top_k=2), 6, PENALTIES, [2], [0, 1]),
    ],
)
def test_bets_are_fair_given_that_the_token_is_none_that_a_cut_or_the_width_hides(
    sampling: Sampling, width: int, penalties: Penalties | None, counted: list[int], near: list[int]
) -> None:
    """The second of two tokens is each one in turn: the mean of r / p over those that count is 1 in the sampled law."""
    used, first = penalties or Penalties(), named_row(P, 0, width)
    alone = np.array(bets_on_rows([first], width, sampling, used).gains)
    logits = np.log(P) + [used.shift(token, int(token == 0)) for token in range(len(P))]
    law = warp(torch.from_numpy(logits)[None], sampling)[0].numpy()
    gains, mass, words = 0.0, 0.0, []
    for token in range(len(P)):
        bets = bets_on_rows([first, named_row(P, token, width)], width, sampling, used)
        words.append("near" if bets.near else "impossible" if bets.impossible else "counted")
        if words[-1] == "counted":
            mass += law[token]
            gains = gains + law[token] * np.exp(np.array(bets.gains) - alone)
    assert [token for token, word in enumerate(words) if word == "counted"] == counted
    assert [token for token, word in enumerate(words) if word == "near"] == near
    np.testing.assert_allclose(gains / mass, 1.0, atol=1e-5)
    assert ("no penalties" in bets.kinds) == (penalties is not None)


def test_the_bias_without_penalties_and_the_copies_of_the_first_tokens() -> None:
    penalties = Penalties(bias={2: 0.4})
    weights = P * np.exp(0.4 * (np.arange(6) == 2))
    bets = bets_on_rows([named_row(P, 1, 5)] * 3, 5, penalties=penalties)
    distance = np.abs(P - weights / weights.sum()).sum() / 2
    assert dict(zip(bets.kinds, bets.distances, strict=True))["no penalties"] == pytest.approx(3 * distance)
    for count in (3, 4):  # the pair of the last two tokens stood before a token at the fourth one
        alike = bets_on_rows([named_row(P, 1, 5)] * count, 5)
        copies = [gain for name, gain in zip(alike.names, alike.gains, strict=True) if name.startswith("copy")]
        assert copies and all((gain != 0) == (count == 4) for gain in copies)


def known(raised: float = 0.0, lowered: float = 0.0) -> KnownTokens:
    return KnownTokens(("a", "b", "c", "d"), SENT, SENT, 0.04, raised, lowered)


@pytest.mark.parametrize(
    ("sampling", "raised", "kept", "gone", "inside"),
    [
        (Sampling(1.0), 0.0, -math.inf, -math.inf, False),
        (Sampling(1.0, top_k=4), 0.0, -math.inf, -math.inf, False),
        (Sampling(1.0, top_k=2), 0.0, SENT[2] + 0.25, SENT[1] - 0.25, True),
        (Sampling(0.5, top_k=3), 0.0, SENT[3] + 0.125, SENT[2] - 0.125, True),
        (Sampling(1.0, top_k=2), 2.0, SENT[3] + 2.25, SENT[1] - 0.25, False),
        (Sampling(1.0, min_p=0.3), 0.0, SENT[0] + math.log(0.3) + 0.25, SENT[0] + math.log(0.3) - 0.25, True),
        (Sampling(2.0, min_p=0.3), 0.0, SENT[0] + 2 * math.log(0.3) + 0.5, SENT[0] + 2 * math.log(0.3) - 0.5, False),
        (Sampling(1.0, min_p=0.3), 3.0, SENT[3] + 3 + math.log(0.3) + 0.25, SENT[0] + math.log(0.3) - 0.25, False),
        (Sampling(1.0, top_p=0.65), 0.0, SENT[1], SENT[3], True),
        (Sampling(1.0, top_p=0.95), 0.0, SENT[3], -math.inf, False),
        (Sampling(1.0, top_p=0.5), 3.0, math.inf, -math.inf, False),
        (Sampling(2.0, top_p=0.65), 0.0, SENT[1], -math.inf, False),
        (Sampling(0.5, top_p=0.65), 0.0, SENT[0], SENT[2], True),
        (Sampling(1.0, top_p=0.65, top_k=3), 0.0, SENT[1], SENT[2], True),
        (Sampling(1.0, top_p=0.65, min_p=0.3), 0.0, SENT[1], SENT[0] + math.log(0.3) - 0.25, True),
    ],
)
def test_a_row_is_cut_at_the_value_that_its_sampling_gives(
    sampling: Sampling, raised: float, kept: float, gone: float, inside: bool
) -> None:
    """With 0.25 logits of doubt on either side; a nucleus ends just below the last token that surely stays."""
    cut = cut_of(known(raised), sampling)
    assert (cut.kept, cut.gone, cut.inside) == (pytest.approx(kept, abs=2e-9), pytest.approx(gone, abs=2e-9), inside)
    if sampling.top_p < 1:
        assert cut.kept != kept or math.isinf(kept)
        assert cut.gone != gone or sampling.min_p or math.isinf(gone)


def test_the_mass_of_the_others_lies_between_bounds_that_penalties_widen() -> None:
    """exp(heat * (log - log 0.4)) of each, if they are as probable as the least that is sent, which 0.04 / 0.06 are."""
    assert known(0.5, 0.25).others(1.0) == pytest.approx((0.04 / 0.4 * math.exp(-0.25), 0.04 / 0.4 * math.exp(0.5)))
    assert known(0.5, 0.25).others(2.0) == pytest.approx((0.0, 0.04 / 0.06 * (0.06 / 0.4) ** 2 * math.exp(2 * 0.5)))
    below, above = known(0.5, 0.25).others(0.5)
    assert (below, above) == (pytest.approx(0.04 / 0.06 * math.sqrt(0.06 / 0.4) * math.exp(-0.5 * 0.25)), math.inf)
    wide = KnownTokens(("a", "b"), np.array([0.0, -900.0]), np.array([0.0, -900.0]), 0.1, 0.0, 0.0)
    assert wide.others(0.1)[0] == pytest.approx(0.1 * math.exp(LARGEST))
    assert known(0.5).ceiling == pytest.approx(SENT[3] + 0.5)


def test_penalties_move_the_tokens_of_a_row_and_bound_those_that_it_does_not_name() -> None:
    penalties = Penalties(presence=0.5, frequency=0.25, bias={1: 0.9, 4: 0.7, 5: -0.6})
    sent = [{"id 1": -1.5, "id 3": -1.0, "id 6": -5.0}, {"id 3": -1.0, "id 8": -1.2, "id 6": -9e9}, {"id 8": -1.0}]
    rows = [TokenRow(token, top) for token, top in zip(["id 3", "id 6", "id 8"], sent, strict=True)]
    first, second, _ = known_rows(rows, 2, penalties)
    assert first.names == ("id 1", "id 3") and second.names == ("id 8", "id 3")
    np.testing.assert_allclose([first.raw, first.logs], [[-1.5, -1.0], [-0.6, -1.0]])
    np.testing.assert_allclose([second.raw, second.logs], [[-1.2, -1.0], [-1.2, -1.75]])
    assert first.rest == pytest.approx(1 - math.exp(-1.5) - math.exp(-1.0))
    assert (first.raised, first.lowered) == (0.7, 0.6)
    assert (second.raised, second.lowered) == (0.9, 0.6)
    third = known_rows([*rows[:2], TokenRow("id 8", {"id 8": -0.1, "id 9": -1e9})], 2, penalties)[2]
    assert third.raw.tolist() == [-0.1, -300.0] and third.rest == pytest.approx(1 - math.exp(-0.1))
    assert third.lowered == 0.75  # of id 3 and id 6, which stand in the output
    assert known_rows([TokenRow("a", {"a": 0.1})], 1)[0].rest == 0.0
    # ... and a token lies below the best one by the difference of what the penalties leave
    assert below_best(rows[:2], 2, penalties) == pytest.approx([0.4, -1.2 + 9e9])
    outside = [TokenRow("id 6", {"id 3": -1.0, "id 8": -1.2}), TokenRow("id 4", {"id 3": -1.0, "id 8": -1.2})]
    assert below_best(outside, 2, penalties) == pytest.approx([0.2, 0.0])
    assert below_best([rows[0], rows[0]], 2, penalties) == pytest.approx([0.4, 1.15])


@pytest.mark.parametrize(
    ("name", "token"), [("id 12", 12), ("token_id:0", 0), ("id ", None), ("12", None), ("id x3", None), ("a", None)]
)
def test_a_name_may_hold_an_id(name: str, token: int | None) -> None:
    assert token_id(name) == token


def test_rows_bet_on_earlier_tokens_of_the_output() -> None:
    """A sampler that never repeats a token is refuted, by the bets that know the tokens so far."""
    ids: Sequence[int] = np.random.default_rng(0).permutation(200).tolist()
    flat = {str(token): -math.log(200) for token in range(200)}
    result = audit([bets_on_rows([TokenRow(str(token), flat) for token in ids], 200)])
    assert result.verdict == "refuted" and "repeated" in result.best
