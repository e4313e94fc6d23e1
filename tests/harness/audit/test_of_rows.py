"""Bets by the probabilities that an engine sends with each token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from stridebench.harness.audit.of_rows import bets_on_rows, distance, top_of, width_of
from stridebench.harness.audit.verdict import audit
from stridebench.harness.core.engine import TokenRow
from stridebench.harness.core.sampling import Sampling

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


@pytest.mark.parametrize("temperature", [0.7, 1.4])
def test_a_token_beyond_the_most_probable_ones_bets_only_at_temperature_one(temperature: float) -> None:
    rows = [row(P, 0, 2), row(P, 5, 2)]
    at_one, elsewhere = bets_on_rows(rows, 2), bets_on_rows(rows, 2, Sampling(temperature))
    assert (at_one.tokens, at_one.near) == (2, 0) and (elsewhere.tokens, elsewhere.near) == (1, 1)


def test_rows_bet_on_earlier_tokens_of_the_output() -> None:
    """A sampler that never repeats a token is refuted, by the bets that know the tokens so far."""
    ids: Sequence[int] = np.random.default_rng(0).permutation(200).tolist()
    flat = {str(token): -math.log(200) for token in range(200)}
    result = audit([bets_on_rows([TokenRow(str(token), flat) for token in ids], 200)])
    assert result.verdict == "refuted" and "repeated" in result.best
