"""`stride engine probe` against servers that draw from a small table, rightly or with one planted fault."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from aiohttp import web

from stridebench.harness.engines.answer import begins_json
from stridebench.harness.engines.probes import ASKS, PROBES
from stridebench.harness.registry import ENGINES
from tests.support.answer_server import Answers, answer_server
from tests.support.cli import Outcome, refused, stride
from tests.support.sampling_server import IDS, TABLE, TableServer, llama_reply
from tests.support.table_engine import NAME, TableEngine, table_engine

JSON = '{"Ann": 31, "Bob": [25, true]}'


@dataclass
class ProbedTable(TableServer):
    """A table server that knows stop strings and JSON.

    Args:
        faults: what it does wrongly.
        calls: how often each prompt was sent with a budget above one token.
    """

    faults: tuple[str, ...] = ()
    calls: dict[str, int] = field(default_factory=dict)

    def reply(self, body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        if body.get("response_format"):
            return self._json(body["max_tokens"])
        if "ends" in self.faults and (body.get("n") or "" in self.calls):
            self.calls[""] = 1
            raise web.HTTPInternalServerError
        if body.get("n"):
            return self._samples(body)
        key, known = str(body["prompt"]), dict(body)
        many = body["max_tokens"] > 1
        self.calls[key] = self.calls.get(key, 0) + many
        if "stale" in self.faults and many and self.calls[key] > 1 and body["temperature"] == 0:
            known["prompt"] = [IDS - 1]
        if "one more" in self.faults and body["max_tokens"] == 2:
            known["max_tokens"] = 3
        if "past the end" in self.faults and many and isinstance(body["prompt"], list):
            self.stops = -1
        if "one seed" in self.faults:
            known["seed"] = 0
        if "own seeds" in self.faults:
            self.stream += 1
        events = [*super().reply(known)]
        return self._stopped(events, body["stop"][0]) if body.get("stop") else events

    def _samples(self, body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Several samples in one stream; with the fault, the second one ignores top-k."""
        events: list[Mapping[str, Any]] = []
        for sample in range(body["n"]):
            cut = 0 if "one sample" in self.faults and sample else body["top_k"]
            for event in super().reply({**body, "top_k": cut, "seed": sample}):
                events.append({**event, "choices": [{**choice, "index": sample} for choice in event["choices"]]})
        return events

    def _stopped(self, events: list[Mapping[str, Any]], stop: str) -> Sequence[Mapping[str, Any]]:
        """Cut the text at the stop string; with the fault, only behind its end."""
        whole = "".join(choice["text"] for event in events for choice in event["choices"])
        end = whole.index(stop) + (len(stop) if "late stop" in self.faults else 0)
        choice = {"index": 0, "text": whole[:end], "token_ids": [1], "finish_reason": "stop"}
        return [{"choices": [choice]}, *events[-1:]]

    def _json(self, budget: int) -> Sequence[Mapping[str, Any]]:
        text = JSON[:-1] + ("]" if "no grammar" in self.faults else "}")
        choice = {"index": 0, "text": text[:budget], "finish_reason": "stop" if budget >= len(text) else "length"}
        return [{"choices": [choice]}]


def probed(own: TableServer, *words: str, metrics: Sequence[str] = ()) -> Outcome:
    with answer_server(Answers(reply=own.reply, owner="vllm", metrics=list(metrics))) as server:
        return stride("engine", "probe", server.url, *words)


def verdicts(done: Outcome) -> dict[str, str]:
    return {row["probe"]: row["verdict"] for row in done.document["rows"]}


def end_behind(prompt: str) -> int:
    """The third token of the table's greedy chain behind a prompt."""
    token = hashlib.sha256(prompt.encode()).digest()[0] % IDS
    for _ in range(3):
        token = int(TABLE[token].argmax())
    return token


def counted(*preemptions: int) -> list[str]:
    drafts = "vllm:spec_decode_num_drafts_total 1\n"
    return [f"{drafts}vllm:num_preemptions_total {count}\n" for count in preemptions]


def test_a_right_server_is_safe_against_its_own_decode_token_by_token() -> None:
    """It preempts a request, and its greedy text behind the first prompt ends after three tokens."""
    done = probed(ProbedTable(stops=end_behind(ASKS[0])), "--json", metrics=counted(2, 2, 5))
    assert verdicts(done) == dict.fromkeys(PROBES, "same tokens")
    assert (done.code, done.document["outcome"]) == (0, "safe")


@pytest.mark.parametrize(
    ("server", "differ"),
    [
        (
            ProbedTable(faults=("stale", "late stop", "one sample", "one seed")),
            {"A, B, A with one prefix", "a stop string in a draft", "two samples of one prompt", "seeds"}
            | {"max_tokens 1 to 3", "several at once"},  # which repeat a prompt, and a stale prefix changes the second
        ),
        (
            ProbedTable(faults=("one more", "no grammar"), drops=("repetition_penalty",), every=2),
            {"max_tokens 1 to 3", "JSON", "the end of a thought in a draft", "penalties"},
        ),
        (
            ProbedTable(faults=("past the end",), drops=("presence_penalty",), every=2, stops=end_behind(ASKS[0])),
            {"an end of text in a draft", "penalties"},
        ),
    ],
)
def test_planted_faults_are_found_by_their_probes_alone(server: ProbedTable, differ: set[str]) -> None:
    done = probed(server, "--json", metrics=counted(2))
    assert done.code == 1 and {name for name, word in verdicts(done).items() if word == "differs"} == differ
    skipped = {name for name, word in verdicts(done).items() if word == "skipped"}
    assert skipped == {"preemption", "an end of text in a draft"} - differ


def test_a_probe_that_ends_the_server_is_unsafe() -> None:
    done = probed(ProbedTable(faults=("ends",)), "--json")
    assert list(verdicts(done).items())[-2:] == [("JSON", "same tokens"), ("two samples of one prompt", "ended")]
    assert (done.code, done.document["outcome"]) == (1, "unsafe")


def test_llama_cpp_is_probed_token_by_token_with_the_ids_that_it_tokenises() -> None:
    table = TableServer(counts_prompt=True)
    with answer_server(Answers(reply=partial(llama_reply, table), owner="llamacpp", tokenised=(7,))) as server:
        by_probe = verdicts(stride("engine", "probe", server.url, "--json"))
    assert {by_probe[name] for name in ("edges of blocks", "several at once", "penalties", "seeds")} == {"same tokens"}
    assert by_probe["two samples of one prompt"] == by_probe["preemption"] == "skipped"


def test_tokens_that_differ_in_longer_requests_are_unsafe_and_the_text_says_where() -> None:
    done = probed(ProbedTable(slip=5))
    assert done.code == 1 and done.out.startswith("unsafe: http")
    assert "- an empty draft after an accepted one: differs: 3 of 3 outputs differ, where" in done.out


def test_fields_that_the_plain_decode_ignores_too_are_no_fault_of_the_drafts() -> None:
    ignoring: dict[str, Any] = {
        "faults": ("late stop", "no grammar", "one seed"),
        "drops": ("top_k", "presence_penalty"),
    }
    with (
        answer_server(Answers(reply=ProbedTable(**ignoring).reply)) as server,
        answer_server(Answers(reply=ProbedTable(**ignoring).reply)) as plain,
    ):
        done = stride("engine", "probe", server.url, "--plain", plain.url, "--json")
    said = verdicts(done)
    assert done.code == 4 and said.pop("seeds") == "not shown" and "differs" not in said.values()
    ignored = ("a stop string in a draft", "JSON", "two samples of one prompt", "penalties")
    assert {said[name] for name in ignored} == {"skipped"}
    assert said["the end of a thought in a draft"] == "same tokens"


def test_one_output_of_three_seeds_says_nothing_if_it_is_probable() -> None:
    done = probed(ProbedTable(noise=200), "--json")
    assert verdicts(done)["seeds"] == "not shown" and "whose chance is" in done.out


def test_an_engine_with_an_address_that_is_not_a_server_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Addressed(TableEngine):
        url: str = ""
        key_env: str = ""
        prompt: str = ""

    with table_engine():
        monkeypatch.setitem(ENGINES._items, NAME, Addressed)
        said = refused("engine", "probe", "http://127.0.0.1:9", "--engine", NAME)
    assert "table is not a server that can be probed" in said


def test_a_server_is_not_its_own_plain_decode() -> None:
    words = ("http://127.0.0.1:9/", "--plain", "http://127.0.0.1:9")
    assert "is the server itself" in refused("engine", "probe", *words)


def test_a_seed_that_is_ignored_is_not_shown() -> None:
    done = probed(ProbedTable(faults=("own seeds",)), "--json")
    assert done.code == 4 and verdicts(done)["seeds"] == "not shown"


def test_a_server_that_sends_no_ids_needs_its_plain_decode() -> None:
    with answer_server(Answers(reply=ProbedTable(tells_ids=False).reply, owner="vllm")) as server:
        assert "name a server of the same model without drafts with --plain" in refused("engine", "probe", server.url)
        with answer_server(Answers(reply=ProbedTable().reply, owner="vllm")) as plain:
            done = stride("engine", "probe", server.url, "--plain", plain.url, "--json")
    assert done.code == 0 and set(verdicts(done).values()) == {"same tokens", "skipped"}


@pytest.mark.parametrize(
    ("text", "whole", "right"),
    [
        (JSON, True, True),
        (JSON[:-1], True, False),
        (JSON[:-1], False, True),
        ('{"Ann": tr', False, True),
        ('{"Ann": "thir', False, True),
        ('{"Ann": thirty', False, False),
        ("Sure! {", False, False),
    ],
)
def test_the_beginning_of_json_is_known(text: str, whole: bool, right: bool) -> None:
    assert begins_json(text, whole) is right
