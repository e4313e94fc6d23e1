"""`stride audit URL` against servers that draw from a small table and score given texts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stridebench.harness.audit.of_rows import bets_on_rows
from stridebench.harness.audit.verdict import audit
from stridebench.harness.core.engine import TokenRow
from stridebench.harness.core.task import Sampling
from tests.support.answer_server import Answers, answer_server
from tests.support.cli import refused
from tests.support.sampling_server import IDS, TABLE, TableServer, cut, logprobs_behind, outcome_of, written_prompts

PLAIN = TableServer(stream=1, drafted=None)
audited = partial(outcome_of, ("audit",))


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return written_prompts(tmp_path)


@pytest.mark.parametrize("temperature", [1, 0.7])
def test_the_right_sampler_is_not_refuted_and_says_what_would_have_been_seen(temperature: float, prompts: Path) -> None:
    done = audited(TableServer(), PLAIN, prompts, "-t", temperature)
    assert done.code == 0 and done.out.startswith("not refuted: e = "), done
    assert "would have been seen" in done.out and "the plain decode: not refuted" in done.out
    assert done.out.count("tokens are right: they differ by up to 0.00 from") == 2
    if temperature == 1:
        assert "768 of 768 tokens of 12 outputs could bet" in done.out


@pytest.mark.parametrize(("temperature", "power"), [(1, 1.4), (0.7, 1.4), (0.7, 0.7)])
def test_a_wrong_temperature_is_refuted_at_each_temperature(temperature: float, power: float, prompts: Path) -> None:
    """At power 0.7 and T = 0.7 the server samples at T = 1: the temperature is lost."""
    done = audited(TableServer(power=power), PLAIN, prompts, "-t", temperature)
    assert done.code == 1 and done.out.startswith("broken: e = 1e+"), done
    assert ("colder" if power > 1 else "hotter") in done.out.splitlines()[0]


def test_without_a_plain_decode_it_is_refuted_and_where_both_are_the_scoring_is_in_doubt(prompts: Path) -> None:
    wrong = TableServer(power=1.5)
    assert audited(wrong, None, prompts).out.startswith("refuted: ")
    both = audited(wrong, TableServer(power=1.5, stream=1), prompts)
    assert both.code == 4 and both.out.startswith("other arithmetic: ")


def test_log_probabilities_that_are_sent_wrong_are_found_and_the_audit_does_not_rest_on_them(prompts: Path) -> None:
    document = audited(TableServer(noise=0.8, power=1.0), None, prompts, "--json").document
    assert document["own"]["sent"]["worst"] > 0.2 and document["own"]["sent"]["where"].startswith("prompts/")
    assert document["verdict"] == "refuted"  # the table that scores is not the one that is drawn from
    said = audited(TableServer(noise=0.8), None, prompts).out
    assert "tokens are wrong: they differ by up to" in said


def test_few_tokens_are_inconclusive(prompts: Path) -> None:
    done = audited(TableServer(), None, prompts, "--max-new-tokens", 1, "--limit", 3)
    assert done.code == 4 and done.out.startswith("inconclusive: ") and "too few to see a bias" in done.out


def test_a_bet_at_another_temperature_is_fair_given_that_the_token_is_known() -> None:
    """The mean of r / p over the known tokens, drawn from p^(1/T) over all tokens, is 1 times their share."""
    logs = logprobs_behind(TABLE, 0)
    width, temperature = 5, 0.6
    law = np.exp(logs / temperature)
    law /= law.sum()
    kept = [int(one) for one in np.argsort(-logs)[:width]]
    top = {str(one): float(logs[one]) for one in kept}
    bets = [bets_on_rows([TokenRow(str(token), top)], width, Sampling(temperature)) for token in range(IDS)]
    assert [one.tokens for one in bets] == [int(token in kept) for token in range(IDS)]
    gains = np.array([one.gains for one in bets])
    np.testing.assert_allclose((law[:, None] * np.exp(gains)).sum(axis=0), 1.0, atol=1e-7)


@pytest.mark.parametrize("cuts", [(0, 0.8), (8, 1.0), (8, 0.8), (30, 1.0), (0, 0.999)])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.4])
def test_bets_behind_cuts_are_fair_and_what_can_be_drawn_is_never_called_impossible(
    temperature: float, cuts: tuple[int, float]
) -> None:
    (top_k, top_p), impossible = cuts, 0
    for before in range(6):
        logs = logprobs_behind(TABLE, before)
        law = cut(np.exp(logs / temperature), top_k, top_p)
        top = {str(one): float(logs[one]) for one in np.argsort(-logs)[:20]}
        sampling = Sampling(temperature, top_k, top_p)
        bets = [bets_on_rows([TokenRow(str(token), top)], 20, sampling) for token in range(IDS)]
        assert not any(one.impossible for one, p in zip(bets, law, strict=True) if p > 0)
        gains = np.array([one.gains for one in bets])
        np.testing.assert_allclose((law[:, None] * np.exp(gains)).sum(axis=0), 1.0, atol=1e-6)
        impossible += sum(one.impossible for one in bets)
    known = top_k == 8 or (top_p == 0.8 and temperature <= 1)  # the cut lies among the tokens that are sent
    assert (impossible > 100) == known


@pytest.mark.parametrize(
    ("drops", "words"),
    [
        ("top_p", ("--top-p", 0.8)),
        ("top_k", ("--top-k", 5, "-t", 0.8)),
        ("temperature", ("--top-p", 0.9, "-t", 0.7)),
    ],
)
def test_a_parameter_that_does_not_reach_one_token_in_eight_is_refuted(
    drops: str, words: tuple[object, ...], prompts: Path
) -> None:
    right = audited(TableServer(), PLAIN, prompts, *words)
    assert right.code == 0 and right.out.startswith("not refuted"), right
    done = audited(TableServer(drops=(drops,), every=8), PLAIN, prompts, *words)
    assert done.code == 1 and done.out.startswith("broken"), done
    assert drops == "temperature" or "a token that cannot be drawn" in done.out


@pytest.mark.slow
def test_one_correct_audit_of_twenty_at_most_reaches_an_e_value_of_twenty() -> None:
    """200 audits of 64 tokens with 20 outcomes; at a rate of 1 in 20 more than 19 have a chance of 1 %."""
    reached = 0
    for seed in range(200):
        server, rows = TableServer(), list[TokenRow]()
        events = server.reply({"prompt": "p", "seed": seed, "max_tokens": 64, "temperature": 1.0, "logprobs": 20})
        for event in events[:-1]:
            told = event["choices"][0]["logprobs"]
            rows.append(TokenRow(told["tokens"][0], told["top_logprobs"][0]))
        reached += audit([bets_on_rows(rows, 20)]).log_e >= np.log(20)
    assert reached <= 19


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (TableServer(scores=False), "does not score a given text"),
        (TableServer(tells_ids=False), "sends no token ids"),
    ],
)
def test_a_server_that_cannot_score_is_one_message(server: TableServer, said: str, prompts: Path) -> None:
    with answer_server(Answers(reply=server.reply, owner="vllm")) as running:
        assert said in refused("audit", running.url, "--prompts", prompts)


def test_options_that_do_not_fit_are_one_message(prompts: Path) -> None:
    words: Any = ("audit", "http://127.0.0.1:9")
    assert "nothing answers at the address" in refused(*words, "--prompts", prompts)
    assert "give a temperature above 0" in refused(*words, "--prompts", prompts, "-t", 0)
    assert "takes prompts, a temperature" in refused(*words, "--prompts", prompts, "--min-p", 0.1)
    assert "0 < top_p <= 1" in refused(*words, "--prompts", prompts, "--top-p", 1.5)
    assert "--plain goes with the URL of a server" in refused("audit", "runs/none", "--plain", "http://127.0.0.1:9")
