"""The adapters of servers, on recorded answers of the documented form."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest

import stridebench.harness.engines.openai as server_module
from stridebench.harness.core.engine import (
    AcceptanceCounts,
    Counters,
    EngineFault,
    EngineRequest,
    EngineWeights,
    Penalties,
    Reply,
    TokenRow,
)
from stridebench.harness.engines.llama_cpp import LlamaCpp
from stridebench.harness.engines.openai import OpenAI, Server, read_counters
from stridebench.harness.engines.sglang import SGLang
from stridebench.harness.engines.tensorrt_llm import TensorRTLLM
from stridebench.harness.engines.vllm import VLLM
from stridebench.harness.errors import UsageError
from tests.support.answer_server import MODEL, Answers, answer_server

REQUEST = EngineRequest(ids=(5, 6), text="ab", max_tokens=4, temperature=0.5, top_p=0.9, seed=7, ignore_eos=True)


@pytest.fixture
def answers() -> Iterator[Answers]:
    with answer_server(Answers()) as running:
        yield running


def ask(kind: type[OpenAI], answers: Answers, request: EngineRequest = REQUEST, **options: Any) -> Reply:
    with kind(url=answers.url, **options) as engine:
        engine.open(EngineWeights())
        return engine.generate(request)


def fault_of(kind: type[OpenAI], answers: Answers, **options: Any) -> str:
    with pytest.raises(EngineFault) as caught:
        ask(kind, answers, **options)
    return caught.value.kind


def message(text: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish, **more}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 3}}
OPENAI = (message("a"), message("bc", "length"), USAGE)
SPECULATIVE = {
    "mean_acceptance_length": 2.0,
    "draft_acceptance_rate": 0.5,
    "acceptance_histogram": [0, 1],
    "num_spec_steps": 1,
    "num_accepted_draft_tokens": 1,
    "num_draft_tokens": 2,
}
VLLM_STREAM = (
    message("a", token_ids=[3]),
    message("bc", "length", token_ids=[4, 5]),
    {**USAGE, "metrics": {"speculative_decoding": SPECULATIVE}},
)
LLAMA_STREAM = (
    {"content": "a", "tokens": [3], "stop": False},
    {"content": "b", "tokens": [4], "stop": False},
    {
        "content": "",
        "tokens": [],
        "stop": True,
        "stop_type": "limit",
        "tokens_predicted": 2,
        "tokens_evaluated": 2,
        "timings": {"predicted_n": 2, "draft_n": 5, "draft_n_accepted": 1},
    },
)
NEW_NAMES = {
    "spec_verify_ct": 2,
    "spec_num_correct_drafts": 1,
    "spec_num_proposed_drafts": 6,
    "spec_correct_drafts_histogram": [1, 1],
    "spec_accept_length": 1.5,
    "spec_accept_rate": 0.1667,
}
OLD_WORDS = {
    "spec_num_correct_drafts": "spec_accept_token_num",
    "spec_num_proposed_drafts": "spec_draft_token_num",
    "spec_correct_drafts_histogram": "spec_accept_histogram",
}
OLD_NAMES = {OLD_WORDS.get(name, name): value for name, value in NEW_NAMES.items()}


def sglang_stream(names: dict[str, Any], cumulative: bool) -> list[dict[str, Any]]:
    first = {"text": "a", "output_ids": [3], "meta_info": {"completion_tokens": 1, "prompt_tokens": 2}}
    ids, text = ([3, 4, 5], "abc") if cumulative else ([4, 5], "bc")
    end = {"completion_tokens": 3, "prompt_tokens": 2, "finish_reason": {"type": "length", "length": 3}, **names}
    return [first, {"text": text, "output_ids": ids, "meta_info": end}]


def test_openai_tells_text_counts_and_times_and_no_ids(answers: Answers) -> None:
    answers.events = OPENAI
    reply = ask(OpenAI, answers)
    assert (reply.text, reply.tokens, reply.output_tokens, reply.prompt_tokens) == ("abc", None, 3, 2)
    assert reply.finish == "length" and reply.acceptance is None
    assert len(reply.chunks) == 2 and reply.chunks[0].arrived_ns <= reply.chunks[1].arrived_ns
    assert [chunk.tokens for chunk in reply.chunks] == [None, None]
    sent = answers.asked[0]
    assert sent["model"] == MODEL and sent["prompt"] == [5, 6] and sent["ignore_eos"] is True
    assert (sent["temperature"], sent["top_p"], sent["seed"], sent["max_tokens"]) == (0.5, 0.9, 7, 4)
    assert "top_k" not in sent


def test_openai_sends_a_text_where_the_entry_says_so_and_further_fields_of_its_body(answers: Answers) -> None:
    answers.events = (message("a", "stop", logprobs={"token_logprobs": [-0.5]}),)
    reply = ask(OpenAI, answers, prompt="text", body={"logprobs": 1})
    assert answers.asked[0]["prompt"] == "ab" and answers.asked[0]["logprobs"] == 1
    assert reply.logprobs == (-0.5,) and reply.output_tokens is None


def test_a_key_comes_from_the_environment_alone(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    answers.events = OPENAI
    ask(OpenAI, answers)
    monkeypatch.setenv("MY_KEY", "secret")
    ask(OpenAI, answers, key_env="MY_KEY")
    assert answers.keys == [None, "Bearer secret"]
    with pytest.raises(UsageError, match="holds a password") as caught:
        Server("http://me:secret@127.0.0.1:1", "MY_KEY", 1)
    assert "secret" not in str(caught.value)


def test_a_key_that_no_header_carries_is_refused(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("two\nlines", "schlüssel"):
        monkeypatch.setenv("MY_KEY", wrong)
        with pytest.raises(UsageError, match="MY_KEY is not a key") as refused:
            ask(OpenAI, answers, key_env="MY_KEY")
        assert wrong not in str(refused.value)
    monkeypatch.setenv("MY_KEY", " padded\n")
    answers.events = OPENAI
    ask(OpenAI, answers, key_env="MY_KEY")
    assert answers.keys[-1] == "Bearer padded"


def test_a_key_is_hidden_in_every_form_and_in_names_and_outputs_too(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "sk-a\\b'c\"d/e" + "x" * 300
    monkeypatch.setenv("MY_KEY", key)
    for text in (f"Incorrect API key provided: {key}.", json.dumps(key), repr(key), quote(key, safe="")):
        answers.status, answers.body = 401, text
        with pytest.raises(EngineFault) as caught:
            ask(OpenAI, answers, key_env="MY_KEY")
        assert "(key)" in str(caught.value) and not re.search("sk-a|xxx", str(caught.value))
    answers.status, answers.events, answers.models = 200, [message(f"it is {key}", "stop")], (f"m-{key}",)
    with OpenAI(url=answers.url, key_env="MY_KEY") as engine:
        engine.open(EngineWeights())
        assert engine.generate(REQUEST).text == "it is (key)" and engine.told() == {"model": "m-(key)"}
    with pytest.raises(EngineFault) as caught:
        ask(OpenAI, answers, key_env="MY_KEY", model="other")
    assert "other" in str(caught.value) and "m-(key)" in str(caught.value) and "sk-a" not in str(caught.value)


def test_vllm_tells_ids_and_the_acceptance_of_a_request(answers: Answers) -> None:
    answers.events = VLLM_STREAM
    reply = ask(VLLM, answers)
    assert reply.tokens == (3, 4, 5) and [chunk.tokens for chunk in reply.chunks] == [1, 2]
    assert reply.acceptance == AcceptanceCounts(
        draft_steps=1, drafted=2, accepted=1, histogram=(0, 1), told_length=2.0, told_rate=0.5
    )
    assert answers.asked[0]["return_token_ids"] is True
    assert answers.asked[0]["top_k"] == -1 and answers.asked[0]["min_p"] == 0.0


@pytest.mark.parametrize(
    ("kind", "events", "acceptance"),
    [
        (VLLM, (*VLLM_STREAM[:2], USAGE), None),
        (LlamaCpp, LLAMA_STREAM, AcceptanceCounts(drafted=5, accepted=1)),
        (
            LlamaCpp,
            (*LLAMA_STREAM[:2], {**LLAMA_STREAM[2], "timings": {"predicted_n": 2}}),
            AcceptanceCounts(drafted=0, accepted=0),
        ),
        (
            TensorRTLLM,
            (message("a"), message("b", "length", avg_decoded_tokens_per_iter=1.5), USAGE),
            AcceptanceCounts(told_length=1.5),
        ),
    ],
    ids=["vllm without the option", "llama.cpp", "llama.cpp without drafts", "tensorrt_llm"],
)
def test_the_acceptance_that_a_server_tells(
    answers: Answers, kind: type[OpenAI], events: Any, acceptance: AcceptanceCounts | None
) -> None:
    answers.events = events
    assert ask(kind, answers).acceptance == acceptance


def test_llama_cpp_tells_ids_and_is_asked_in_its_words(answers: Answers) -> None:
    answers.events = LLAMA_STREAM
    reply = ask(LlamaCpp, answers)
    assert (reply.tokens, reply.text, reply.finish) == ((3, 4), "ab", "limit")
    sent = answers.asked[0]
    assert (sent["prompt"], sent["n_predict"], sent["min_p"], sent["top_k"]) == ([5, 6], 4, 0.0, 0)


@pytest.mark.parametrize("names", [NEW_NAMES, OLD_NAMES], ids=["new", "old"])
@pytest.mark.parametrize("cumulative", [True, False])
def test_sglang_is_read_under_both_names_and_in_both_forms_of_its_stream(
    answers: Answers, names: dict[str, Any], cumulative: bool
) -> None:
    answers.events = sglang_stream(names, cumulative)
    reply = ask(SGLang, answers)
    assert (reply.tokens, reply.text, reply.finish) == ((3, 4, 5), "abc", "length")
    assert [chunk.tokens for chunk in reply.chunks] == [1, 2]
    assert reply.acceptance == AcceptanceCounts(
        draft_steps=2, drafted=6, accepted=1, histogram=(1, 1), told_length=1.5, told_rate=0.1667
    )
    assert answers.asked[0]["input_ids"] == [5, 6] and answers.asked[0]["sampling_params"]["sampling_seed"] == 7


ROWS = replace(REQUEST, top_logprobs=2)
TOLD = (TokenRow("id 3", {"id 3": -0.5, "id 4": -1.0}), TokenRow("id 9", {"id 3": -0.25, "id 4": -2.0, "id 9": -7.0}))
ENTRIES = [
    {
        "token": row.token,
        "id": int(row.token[3:]),
        "top_logprobs": [{"id": int(n[3:]), "logprob": p, "token": n} for n, p in row.top.items()],
    }
    for row in TOLD
]


def listed(token: str, logprob: float | None, top: dict[str, Any]) -> dict[str, Any]:
    """The log-probabilities of one token in the form of completions."""
    return {"tokens": [token], "token_logprobs": [logprob], "top_logprobs": [top]}


TRIPLES = [[[p, int(name[3:]), None] for name, p in row.top.items()] for row in TOLD]


@pytest.mark.parametrize(
    ("kind", "events", "asked"),
    [
        (
            OpenAI,
            (
                message("a", logprobs=listed("id 3", -0.5, TOLD[0].top)),
                message("b", "stop", logprobs=listed("id 9", -7.0, TOLD[1].top)),
            ),
            {"logprobs": 2},
        ),
        (
            OpenAI,
            (message("a", logprobs={"content": ENTRIES[:1]}), message("b", "stop", logprobs={"content": ENTRIES[1:]})),
            {"logprobs": 2},
        ),
        (VLLM, (message("a", "stop", token_ids=[3, 9]),), {"logprobs": 2, "return_tokens_as_token_ids": True}),
        (
            LlamaCpp,
            (
                {**LLAMA_STREAM[0], "completion_probabilities": ENTRIES[:1]},
                {**LLAMA_STREAM[1], "completion_probabilities": ENTRIES[1:]},
                LLAMA_STREAM[2],
            ),
            {"n_probs": 2},
        ),
        (
            SGLang,
            (
                {
                    "text": "ab",
                    "output_ids": [3, 9],
                    "meta_info": {
                        "completion_tokens": 2,
                        "finish_reason": "stop",
                        "output_token_logprobs": [[-0.5, 3, None], [-7.0, 9, None]],
                        "output_top_logprobs": TRIPLES,
                    },
                },
            ),
            {"return_logprob": True, "top_logprobs_num": 2},
        ),
    ],
)
def test_the_most_probable_tokens_are_asked_for_and_read(
    answers: Answers, kind: type[OpenAI], events: Any, asked: dict[str, Any]
) -> None:
    answers.events = events
    reply = ask(kind, answers, ROWS)
    ask(kind, answers)
    assert reply.rows == (None if kind is VLLM else TOLD)
    assert asked.items() <= answers.asked[0].items() and not asked.keys() & answers.asked[1].keys()


def test_tokens_without_probabilities_have_empty_rows_or_leave_the_number_of_tokens_unknown(answers: Answers) -> None:
    answers.events = (message("a", "stop", logprobs={**listed("a", -0.5, {}), "top_logprobs": None}),)
    assert ask(OpenAI, answers, ROWS).whole_rows == (TokenRow("a", {}),)
    answers.events = (message("a", logprobs=None), message("b", "stop", logprobs=listed("b", -0.5, {"b": -0.5})))
    reply = ask(OpenAI, answers, ROWS)
    assert (reply.output_tokens, reply.whole_rows) == (None, ())
    answers.events = sglang_stream({"output_token_logprobs": [[-0.5, one, None] for one in (3, 4, 5)]}, True)
    assert ask(SGLang, answers, ROWS).rows == tuple(TokenRow(f"id {one}", {}) for one in (3, 4, 5))


def test_an_accepted_draft_of_llama_cpp_has_a_row_without_probabilities(answers: Answers) -> None:
    answers.events = ({**LLAMA_STREAM[0], "completion_probabilities": ENTRIES[:1]}, *LLAMA_STREAM[1:])
    assert ask(LlamaCpp, answers, ROWS).rows == (TOLD[0], TokenRow("id 4", {}))


def test_ids_that_llama_cpp_counts_and_does_not_send_leave_an_output_without_ids(answers: Answers) -> None:
    """A token that ends within a character is in no message of its own; the next one counts it."""
    probs = {"completion_probabilities": ENTRIES[:1]}
    answers.events = (
        {**LLAMA_STREAM[0], **probs, "tokens_predicted": 1},
        {**LLAMA_STREAM[1], "tokens_predicted": 3},
        {**LLAMA_STREAM[2], "tokens_predicted": 3},
    )
    reply = ask(LlamaCpp, answers, ROWS)
    assert (reply.tokens, reply.rows, reply.output_tokens, reply.text) == (None, None, 3, "ab")


def test_a_request_asks_for_penalties_and_min_p_in_the_words_of_each_engine(answers: Answers) -> None:
    penalties = Penalties(presence=0.5, frequency=0.25, repetition=1.5, bias={7: -1.0})
    request = replace(REQUEST, min_p=0.125, penalties=penalties)
    shared = {"presence_penalty": 0.5, "frequency_penalty": 0.25, "logit_bias": {"7": -1.0}, "min_p": 0.125}
    repetition = {VLLM: "repetition_penalty", LlamaCpp: "repeat_penalty", SGLang: "repetition_penalty"}
    streams = {VLLM: VLLM_STREAM, LlamaCpp: LLAMA_STREAM, SGLang: sglang_stream(NEW_NAMES, True)}
    for kind, name in repetition.items():
        answers.events = streams[kind]
        ask(kind, answers, request)
        sent = answers.asked[-1].get("sampling_params", answers.asked[-1])
        assert {**shared, name: 1.5}.items() <= sent.items()
        assert kind is not LlamaCpp or sent["repeat_last_n"] >= len(request.ids or ()) + request.max_tokens


def test_llama_cpp_scores_an_output_behind_a_prompt_that_is_read_anew(answers: Answers) -> None:
    """What another prompt left in the cache was computed in batches of its own."""
    answers.events = ({**LLAMA_STREAM[0], "completion_probabilities": ENTRIES[:1]}, *LLAMA_STREAM[1:])
    with LlamaCpp(url=answers.url) as engine:
        engine.open(EngineWeights())
        rows = engine.score((4, 5), (3, 2, 1), 2, Penalties())
    assert [one["cache_prompt"] for one in answers.asked[-3:]] == [False, True, True]
    assert [one["prompt"] for one in answers.asked[-3:]] == [[4, 5], [4, 5, 3], [4, 5, 3, 2]]
    assert rows == tuple(TokenRow(f"id {token}", TOLD[0].top) for token in (3, 2, 1))


def test_a_stream_that_is_sent_one_message_at_a_time_has_the_rows_of_all(answers: Answers) -> None:
    told = [{"output_token_logprobs": [[0, 3, None]], "output_top_logprobs": [one]} for one in TRIPLES]
    first, last = sglang_stream(NEW_NAMES, False)
    answers.events = [
        {**one, "meta_info": {**one["meta_info"], **rows}} for one, rows in zip((first, last), told, strict=True)
    ]
    rows = ask(SGLang, answers, ROWS).rows
    assert rows is not None and [len(row.top) for row in rows] == [2, 3]


@pytest.mark.parametrize(
    ("top", "said"),
    [
        ({"a": 0.1}, "add up to 1.11"),
        ({"a": -0.1, "b": -0.1}, "natural logs"),
        ({"a": None}, "is missing"),
        ({"a": "x"}, "a number belongs"),
    ],
)
def test_rows_that_are_no_log_probabilities_are_malformed(answers: Answers, top: dict[str, Any], said: str) -> None:
    answers.events = (message("a", "stop", logprobs=listed("a", -0.5, top)),)
    with pytest.raises(EngineFault, match=said) as caught:
        ask(OpenAI, answers)
    assert caught.value.kind == "malformed"


COUNTERS = """# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0"} 3.0
vllm:spec_decode_num_drafts_total{engine="1"} 1.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 5.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 3.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 2.0
"""


def counted(kind: type[OpenAI], answers: Answers) -> Counters | None:
    with kind(url=answers.url) as engine:
        engine.open(EngineWeights())
        return engine.counters()


def test_counters_are_added_up_over_labels_and_read_by_position(answers: Answers) -> None:
    answers.metrics = [COUNTERS]
    counters = counted(VLLM, answers)
    assert counters is not None
    assert counters.values == {"draft_steps": 4.0, "accepted": 5.0} and counters.per_position == {0: 3.0, 1: 2.0}
    assert not counters.since(counters).backwards
    assert read_counters(COUNTERS.replace(" 5.0", " 2.0"), VLLM.metrics).since(counters).backwards


@pytest.mark.parametrize(
    ("kind", "name"),
    [(VLLM, "vllm:generation_tokens"), (SGLang, "sglang:generation_tokens"), (LlamaCpp, "llamacpp:tokens_predicted")],
)
def test_output_tokens_are_counted_too(answers: Answers, kind: type[OpenAI], name: str) -> None:
    assert counted(kind, answers) is None, "a server without counters has none"
    answers.metrics = [f'# TYPE {name} counter\n{name}_total{{model_name="m"}} 8.0e+01\n']
    counters = counted(kind, answers)
    assert counters is not None and counters.values == {"output_tokens": 80.0}


def test_a_counter_that_is_nan_is_a_fault() -> None:
    with pytest.raises(EngineFault, match="NaN") as caught:
        read_counters("vllm:spec_decode_num_drafts_total NaN\n", VLLM.metrics)
    assert caught.value.kind == "not_a_number"
    with pytest.raises(EngineFault, match="cannot be read") as caught:
        read_counters(f'{VLLM.position_metric}{{position="x"}} 1\n', VLLM.metrics, VLLM.position_metric)
    assert caught.value.kind == "malformed"


FAULTS: list[tuple[str, type[OpenAI], dict[str, Any]]] = [
    ("overloaded", OpenAI, {"status": 429, "body": "slow down"}),
    ("server_error", OpenAI, {"status": 500, "body": "boom"}),
    ("refused", OpenAI, {"status": 400, "body": "no such field"}),
    ("not_served", OpenAI, {"status": 404, "body": "The model `x` does not exist."}),
    ("not_served", OpenAI, {"models": ()}),
    ("not_served", OpenAI, {"listing": {"data": 5}}),
    ("malformed", OpenAI, {"headers": {"Content-Encoding": "gzip"}}),
    ("refused", OpenAI, {"status": 307, "headers": {"Location": "https://there/"}}),
    ("no_server", OpenAI, {"url": "http://127.0.0.1:9"}),
    ("no_stream", OpenAI, {"events": OPENAI, "whole": True}),
    ("cut_short", OpenAI, {"events": OPENAI[:1], "done": True}),
    ("cut_short", OpenAI, {"events": OPENAI[:1], "cut": True}),
    ("malformed", OpenAI, {"events": ("{not json",)}),
    ("malformed", OpenAI, {"events": ("[1, 2]",)}),
    ("malformed", VLLM, {"events": (message("a", "stop", token_ids=["x"]),)}),
    ("malformed", VLLM, {"events": (message("a", "stop", token_ids=[1.5]),)}),
    ("server_error", OpenAI, {"events": ({"error": {"message": "out of memory"}},)}),
    ("not_a_number", OpenAI, {"events": (message("a", "stop", logprobs={"token_logprobs": [None]}),)}),
]


@pytest.mark.parametrize(("fault", "kind", "changes"), FAULTS)
def test_each_fault_of_a_server_has_a_kind(
    answers: Answers, fault: str, kind: type[OpenAI], changes: dict[str, Any]
) -> None:
    for name, value in changes.items():
        setattr(answers, name, value)
    assert fault_of(kind, answers) == fault


ODD: list[Any] = [7, "text", [1], {"a": 1}, None, True, float("nan"), -1, 1.5, [None], [{}], {"text": 3}]
PLACES = {
    OpenAI: ("choices", "usage"),
    VLLM: ("choices", "usage", "metrics"),
    LlamaCpp: ("tokens", "content", "timings", "tokens_predicted", "stop"),
    SGLang: ("output_ids", "meta_info", "text"),
    TensorRTLLM: ("choices", "usage"),
}


@pytest.mark.parametrize(("kind", "place"), [(kind, place) for kind, places in PLACES.items() for place in places])
def test_odd_values_anywhere_are_an_answer_or_a_fault(answers: Answers, kind: type[OpenAI], place: str) -> None:
    ends = {LlamaCpp: LLAMA_STREAM[2], SGLang: sglang_stream(NEW_NAMES, True)[1]}
    end = ends.get(kind, {**message("b", "length"), **USAGE, "choices": message("b", "length")["choices"]})
    with kind(url=answers.url) as engine:
        engine.open(EngineWeights())
        for value in ODD:
            answers.events = ({**end, place: value},)
            try:
                assert isinstance(engine.generate(REQUEST), Reply)
            except EngineFault as caught:
                assert caught.kind in ("malformed", "cut_short", "not_a_number"), (place, value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_mean_that_is_no_number_is_a_fault(answers: Answers, value: float) -> None:
    told = {"speculative_decoding": {**SPECULATIVE, "mean_acceptance_length": value}}
    answers.events = (*VLLM_STREAM[:2], {**USAGE, "metrics": told})
    assert fault_of(VLLM, answers) == "not_a_number"
    answers.events = sglang_stream({**OLD_NAMES, "spec_accept_rate": value}, True)
    assert fault_of(SGLang, answers) == "not_a_number"
    answers.events = (message("b", "length", avg_decoded_tokens_per_iter=value), USAGE)
    assert fault_of(TensorRTLLM, answers) == "not_a_number"


def test_a_model_that_is_not_served_is_a_fault(answers: Answers) -> None:
    assert fault_of(OpenAI, answers, model="other") == "not_served"


@pytest.mark.parametrize(
    "url",
    [
        *("127.0.0.1:80", "http://[::1", "http://127.0.0.1:abc", "http://127.0.0.1:99999", "http://xn--"),
        *(f"http://{'a' * 70}", "http://me:secret@[::1", "http://me:secret@127.0.0.1:abc"),
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="not the address") as refused:
        Server(url, "KEY", 1)
    assert "secret" not in str(refused.value)


def test_a_kept_connection_that_the_server_closes_is_no_fault_where_something_is_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:  # each connection gets one answer and is closed at the next request
            for _ in range(2):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                    connection.recv(4096)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        server = Server(f"http://127.0.0.1:{listener.getsockname()[1]}", "STRIDE_API_KEY", 5)
        assert [server.text("/metrics"), server.text("/metrics")] == ["ok", "ok"]
        server.close()
        thread.join(5)


def test_a_request_for_tokens_is_sent_once_though_the_server_closes_its_connection_without_an_answer() -> None:
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(2):  # the list of models and the request on one connection, /health on the next one
                connection, _ = listener.accept()
                with connection:
                    while head := connection.recv(65536).decode():
                        asked.append(head.split(" HTTP")[0])
                        if head.startswith("POST"):  # read whole, or the system resets the connection
                            while not head.endswith("}"):
                                head += connection.recv(65536).decode()
                            break
                        body = '{"data": [{"id": "m"}]}'
                        connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with OpenAI(url=f"http://127.0.0.1:{listener.getsockname()[1]}") as engine:
            engine.open(EngineWeights())
            with pytest.raises(EngineFault, match="Server disconnected without sending a response") as caught:
                engine.generate(REQUEST)
    assert caught.value.kind == "cut_short"
    assert asked == ["GET /v1/models", "POST /v1/completions", "GET /health"]


def test_a_connection_that_was_idle_is_not_used_again(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    def connections(idle_s: float) -> int:
        server, opened = Server(answers.url, "STRIDE_API_KEY", 5), []
        trace = {"trace": lambda name, info: opened.append(name)}
        for _ in range(2):
            server._client.get("/health", extensions=trace)
            time.sleep(idle_s)
        server.close()
        return opened.count("connection.connect_tcp.complete")

    assert connections(0) == 1
    monkeypatch.setattr(server_module, "KEPT_S", 0.01)
    assert connections(0.03) == 2
