"""`stride audit URL` against servers that draw from a small table and score given texts.

That the bets are fair behind every temperature, cut and penalty is proved in tests/harness/audit/test_of_rows.py.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.answer_server import Answers, answer_server
from tests.support.cli import refused
from tests.support.sampling_server import IDS, TableServer, outcome_of, written_prompts

PLAIN = TableServer(stream=1, drafted=None)
audited = partial(outcome_of, ("audit",))


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return written_prompts(tmp_path)


def test_the_right_sampler_is_not_refuted_and_says_what_would_have_been_seen(prompts: Path) -> None:
    done = audited(TableServer(), PLAIN, prompts, "-t", 1)
    assert done.code == 0 and done.out.startswith("not refuted: e = "), done
    assert "would have been seen" in done.out and "the plain decode: not refuted" in done.out
    assert done.out.count("tokens are right: they differ by up to 0.00 from") == 2
    assert "768 of 768 tokens of 12 outputs could bet" in done.out


@pytest.mark.parametrize(("temperature", "power"), [(1, 1.4), (0.7, 0.7)])
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
    said = audited(TableServer(noise=0.8), None, prompts, "--limit", 3).out
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


@pytest.mark.parametrize(
    ("drops", "words"),
    [
        ("top_p", ("--top-p", 0.8)),
        pytest.param("top_k", ("--top-k", 5, "-t", 0.8), marks=pytest.mark.slow),
        pytest.param("temperature", ("--top-p", 0.9, "-t", 0.7), marks=pytest.mark.slow),
    ],
)
def test_a_parameter_dropped_at_one_token_in_eight_is_refuted(
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


def test_penalties_biases_and_cuts_that_reach_all_tokens_are_not_refuted(prompts: Path) -> None:
    every = [word for words in SETTINGS.values() for word in words]
    right = audited(TableServer(), None, prompts, *every)
    assert right.code == 0 and right.out.startswith("not refuted"), right


@pytest.mark.parametrize("drops", SETTINGS)
def test_penalties_biases_and_min_p_that_do_not_reach_some_tokens_are_refuted(drops: str, prompts: Path) -> None:
    """The expected distribution is that of the raw rows behind the parameters of the request."""
    every = {"min_p": 8, "logit_bias": 2}.get(drops, 1)
    done = audited(TableServer(drops=(drops,), every=every), None, prompts, *SETTINGS[drops])
    assert done.code == 1 and done.out.startswith("refuted"), done
    named = "a token that cannot be drawn" if drops in ("min_p", "frequency_penalty") else "penalties dropped"
    assert f"best bet: {named}" in done.out.splitlines()[0]


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
    done = audited(TableServer(silent=8), None, prompts, "--limit", 3)
    assert "24 tokens were sent without probabilities" in done.out, done


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (TableServer(scores=False), "does not score a given text"),
        (TableServer(top=-IDS), "scores each token without the most probable ones"),
        (TableServer(tells_ids=False), "sends no token ids"),
    ],
)
def test_a_server_that_cannot_score_is_one_message(server: TableServer, said: str, prompts: Path) -> None:
    with answer_server(Answers(reply=server.reply, owner="vllm")) as running:
        assert said in refused("audit", running.url, "--prompts", prompts)


def test_options_that_do_not_fit_are_one_message(prompts: Path) -> None:
    words: Any = ("audit", "http://127.0.0.1:9", "--prompts", prompts)
    assert "nothing answers at the address" in refused(*words)
    assert "takes prompts, a temperature" in refused(*words, "--margin", 0.1)
    for written in ("presence", "repetition=0", "mirostat=1", "frequency=nan"):
        assert f"--penalty {written} is not a penalty" in refused(*words, "--penalty", written)
    assert "--penalty goes with the URL" in refused("audit", "runs/none", "--penalty", "presence=1")
    assert "0 < top_p <= 1" in refused(*words, "--top-p", 1.5)
    assert "--plain goes with the URL of a server" in refused("audit", "runs/none", "--plain", "http://127.0.0.1:9")
