"""`stride audit URL` against servers that draw from a small table and score given texts."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stridebench.harness.audit.of_rows import bets_on_rows
from stridebench.harness.audit.verdict import audit
from stridebench.harness.core.engine import Penalties, TokenRow
from stridebench.harness.core.task import Sampling
from tests.support.answer_server import Answers, answer_server
from tests.support.cli import refused
from tests.support.sampling_server import (
    IDS,
    TABLE,
    TableServer,
    cut,
    logprobs_behind,
    outcome_of,
    penalised,
    written_prompts,
)

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


@pytest.mark.slow
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


@pytest.mark.slow
def test_log_probabilities_behind_the_temperature_are_named(prompts: Path) -> None:
    said = audited(TableServer(heats=True), None, prompts, "-t", 0.7)
    assert said.code == 0 and "tokens are those behind the temperature, not the model's (vLLM: " in said.out
    assert "are right" in audited(TableServer(heats=True), None, prompts, "-t", 1).out
    assert "tokens are wrong" in audited(TableServer(noise=0.8), None, prompts, "-t", 0.7).out


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
        pytest.param("top_k", ("--top-k", 5, "-t", 0.8), marks=pytest.mark.slow),
        pytest.param("temperature", ("--top-p", 0.9, "-t", 0.7), marks=pytest.mark.slow),
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


PRESENCE = ("--penalty", "presence=1.5")
BIASES = [word for token in range(0, IDS, 4) for word in ("--penalty", f"{token}=2")]
SETTINGS = {
    "min_p": ("--min-p", 0.1),
    "presence_penalty": PRESENCE,
    "frequency_penalty": ("--penalty", "frequency=0.5", "--top-p", 0.9),
    "logit_bias": BIASES,
}


@pytest.mark.parametrize("drops", SETTINGS)
def test_penalties_biases_and_min_p_that_do_not_reach_some_tokens_are_refuted(drops: str, prompts: Path) -> None:
    """The expected distribution is that of the raw rows behind the parameters of the request."""
    every = {"min_p": 8, "logit_bias": 2}.get(drops, 1)
    right = audited(TableServer(), None, prompts, *SETTINGS[drops])
    assert right.code == 0 and right.out.startswith("not refuted"), right
    done = audited(TableServer(drops=(drops,), every=every), None, prompts, *SETTINGS[drops])
    assert done.code == 1 and done.out.startswith("refuted"), done
    named = "a token that cannot be drawn" if drops in ("min_p", "frequency_penalty") else "penalties dropped"
    assert f"best bet: {named}" in done.out.splitlines()[0]


@pytest.mark.parametrize(
    "setting", [Sampling(0.7, min_p=0.1), Sampling(1.3, top_p=0.8), Sampling(1.0, top_k=6, min_p=0.02), Sampling(1.0)]
)
def test_bets_behind_penalties_are_fair_and_what_can_be_drawn_is_never_called_impossible(setting: Sampling) -> None:
    """Enumerated over the last token, behind outputs that repeat tokens and a bias on tokens that are not sent."""
    penalties = Penalties(presence=0.8, frequency=0.6, bias={3: 1.5, 11: -2.0, 30: 3.0})
    fields = {"presence_penalty": 0.8, "frequency_penalty": 0.6, "logit_bias": penalties.bias}
    for output in ([5, 9, 5, 5], [1, 2, 3, 0], [30, 30, 11, 17]):
        rows = []
        for before, token in pairwise(output):
            logs = logprobs_behind(TABLE, before)
            top = {f"id {one}": float(logs[one]) for one in np.argsort(-logs)[:20]}
            rows.append((top, token))
        told = [TokenRow(f"id {token}", top) for top, token in rows]
        logs = logprobs_behind(TABLE, output[-1])
        top = {f"id {one}": float(logs[one]) for one in np.argsort(-logs)[:20]}
        behind = np.exp(penalised(logs, fields, output[1:]) / setting.temperature)
        law = cut(behind / behind.sum(), setting.top_k, setting.top_p, setting.min_p)
        bets = [bets_on_rows([*told, TokenRow(f"id {token}", top)], 20, setting, penalties) for token in range(IDS)]
        first = bets_on_rows(told, 20, setting, penalties)
        assert not any(one.impossible > first.impossible for one, p in zip(bets, law, strict=True) if p > 0)
        gains = np.array([np.array(one.gains) - first.gains for one in bets])
        np.testing.assert_allclose((law[:, None] * np.exp(gains)).sum(axis=0), 1.0, atol=1e-6)


@pytest.mark.parametrize("owner", ["sglang", pytest.param("llamacpp", marks=pytest.mark.slow)])
def test_other_engines_score_by_their_own_means(owner: str, prompts: Path) -> None:
    """SGLang by the probabilities of its input, llama.cpp by one request a token; on answers of the documented form."""
    right = audited(TableServer(), None, prompts, "--limit", 6, owner=owner)
    assert right.code == 0 and right.out.startswith("not refuted") and "384 of 384 tokens" in right.out, right
    assert "tokens are right: they differ by up to 0.00" in right.out
    done = audited(TableServer(power=1.5), PLAIN, prompts, "--limit", 6, owner=owner)
    assert done.code == 1 and done.out.startswith("broken: e = 1e+"), done


@pytest.mark.slow
def test_llama_cpp_gives_the_distribution_behind_a_repetition_penalty_and_others_do_not(prompts: Path) -> None:
    words = ("--penalty", "repetition=2", "--limit", 6)
    right = audited(TableServer(counts_prompt=True), None, prompts, *words, owner="llamacpp")
    assert right.code == 0 and right.out.startswith("not refuted"), right
    wrong = TableServer(counts_prompt=True, drops=("repetition_penalty",), every=2)
    done = audited(wrong, None, prompts, *words, owner="llamacpp")
    assert done.code == 1 and done.out.startswith("refuted"), done
    with answer_server(Answers(reply=TableServer().reply, owner="vllm")) as running:
        said = refused("audit", running.url, "--prompts", prompts, *words)
    assert "scores in log-probabilities without their zero" in said


@pytest.mark.slow
def test_greedy_tokens_are_held_against_the_servers_own_rows(prompts: Path) -> None:
    right = audited(TableServer(), PLAIN, prompts, "-t", 0)
    assert right.code == 0 and right.out.startswith("best tokens: 0 of 768 tokens are not the most probable"), right
    done = audited(TableServer(slip=9), PLAIN, prompts, "-t", 0, "--json")
    assert done.code == 1 and done.document["verdict"] == "differs"
    assert done.document["own"]["greedy"]["lower"] == 7 * 12 and done.document["plain"]["greedy"]["lower"] == 0
    both = audited(TableServer(slip=9), TableServer(slip=8), prompts, "-t", 0)
    assert both.code == 4 and both.out.startswith("other arithmetic: 84 of 768 tokens")
    assert audited(TableServer(), None, prompts, "-t", 0, *PRESENCE).out.startswith("best tokens: 0 of 768")
    dropped = audited(TableServer(drops=("presence_penalty",), every=8), None, prompts, "-t", 0, *PRESENCE)
    assert dropped.code == 1 and dropped.out.startswith("differs: ")


def test_tokens_that_are_sent_without_probabilities_are_counted(prompts: Path) -> None:
    done = audited(TableServer(silent=8), None, prompts)
    assert "96 tokens were sent without probabilities" in done.out, done


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
    assert "takes prompts, a temperature" in refused(*words, "--prompts", prompts, "--margin", 0.1)
    for written in ("presence", "repetition=0", "mirostat=1", "frequency=nan"):
        assert f"--penalty {written} is not a penalty" in refused(*words, "--prompts", prompts, "--penalty", written)
    assert "--penalty goes with the URL" in refused("audit", "runs/none", "--penalty", "presence=1")
    assert "0 < top_p <= 1" in refused(*words, "--prompts", prompts, "--top-p", 1.5)
    assert "--plain goes with the URL of a server" in refused("audit", "runs/none", "--plain", "http://127.0.0.1:9")
