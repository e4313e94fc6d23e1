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
from tests.support.answer_server import Answers, answer_server
from tests.support.cli import Outcome, refused, stride
from tests.support.sampling_server import IDS, TABLE, TableServer, llama_reply

JSON = '{"Ann": 31, "Bob": [25, true]}'


@dataclass
class ProbedTable(TableServer):
    """A table server that knows stop strings and JSON.

    Args:
        fault: what it does wrongly; "" for nothing.
        calls: how often each prompt was sent with a budget above one token.
    """

    fault: str = ""
    calls: dict[str, int] = field(default_factory=dict)

    def reply(self, body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        if body.get("response_format"):
            return self._json(body["max_tokens"])
        if self.fault == "ends" and (body.get("n") or "" in self.calls):
            self.calls[""] = 1
            raise web.HTTPInternalServerError
        if body.get("n"):
            return self._samples(body)
        key, known = str(body["prompt"]), dict(body)
        many = body["max_tokens"] > 1
        self.calls[key] = self.calls.get(key, 0) + many
        if self.fault == "stale" and many and self.calls[key] > 1 and body["temperature"] == 0:
            known["prompt"] = [IDS - 1]
        if self.fault == "one more" and body["max_tokens"] == 2:
            known["max_tokens"] = 3
        if self.fault == "past the end" and many and isinstance(body["prompt"], list):
            self.stops = -1
        if self.fault == "one seed":
            known["seed"] = 0
        if self.fault == "own seeds":
            self.stream += 1
        events = [*super().reply(known)]
        return self._stopped(events, body["stop"][0]) if body.get("stop") else events

    def _samples(self, body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Several samples in one stream; with the fault, the second one ignores top-k."""
        events: list[Mapping[str, Any]] = []
        for sample in range(body["n"]):
            cut = 0 if self.fault == "one sample" and sample else body["top_k"]
            for event in super().reply({**body, "top_k": cut, "seed": sample}):
                events.append({**event, "choices": [{**choice, "index": sample} for choice in event["choices"]]})
        return events

    def _stopped(self, events: list[Mapping[str, Any]], stop: str) -> Sequence[Mapping[str, Any]]:
        """Cut the text at the stop string; with the fault, only behind its end."""
        whole = "".join(choice["text"] for event in events for choice in event["choices"])
        end = whole.index(stop) + (len(stop) if self.fault == "late stop" else 0)
        choice = {"index": 0, "text": whole[:end], "token_ids": [1], "finish_reason": "stop"}
        return [{"choices": [choice]}, *events[-1:]]

    def _json(self, budget: int) -> Sequence[Mapping[str, Any]]:
        text = JSON[:-1] + ("]" if self.fault == "no grammar" else "}")
        choice = {"index": 0, "text": text[:budget], "finish_reason": "stop" if budget >= len(text) else "length"}
        return [{"choices": [choice]}]


def probed(own: TableServer, *words: str, metrics: Sequence[str] = ()) -> Outcome:
    with answer_server(Answers(reply=own.reply, owner="vllm", metrics=list(metrics))) as server:
        return stride("engine", "probe", server.url, *words)


def verdicts(done: Outcome) -> dict[str, str]:
    return {row["probe"]: row["verdict"] for row in done.document["rows"]}


def test_a_right_server_is_safe_against_its_own_decode_token_by_token() -> None:
    done = probed(ProbedTable(), "--json")
    skipped = dict.fromkeys(("an end of text in a draft", "preemption"), "skipped")
    assert verdicts(done) == {**dict.fromkeys(PROBES, "same tokens"), **skipped}
    assert (done.code, done.document["outcome"]) == (0, "safe")


@pytest.mark.parametrize(
    ("fault", "probe"),
    [
        ("stale", "A, B, A with one prefix"),
        ("one more", "max_tokens 1 to 3"),
        ("late stop", "a stop string in a draft"),
        ("no grammar", "JSON"),
        ("no grammar", "the end of a thought in a draft"),
        ("one sample", "two samples of one prompt"),
        ("one seed", "seeds"),
    ],
)
def test_a_planted_fault_is_found_by_its_probe(fault: str, probe: str) -> None:
    done = probed(ProbedTable(fault=fault), "--json")
    assert verdicts(done)[probe] == "differs" and done.code == 1
    quiet = {"an empty draft after an accepted one", "seeds"} - {probe}
    assert {verdicts(done)[name] for name in quiet} == {"same tokens"}


def test_a_probe_that_ends_the_server_is_unsafe() -> None:
    done = probed(ProbedTable(fault="ends"), "--json")
    assert list(verdicts(done).items())[-2:] == [("JSON", "same tokens"), ("two samples of one prompt", "ended")]
    assert (done.code, done.document["outcome"]) == (1, "unsafe")


@pytest.mark.parametrize("drops", ["presence_penalty", "repetition_penalty"])
def test_penalties_that_do_not_reach_every_position_are_found(drops: str) -> None:
    done = probed(ProbedTable(drops=(drops,), every=2), "--json")
    assert verdicts(done)["penalties"] == "differs" and done.code == 1
    assert verdicts(done)["edges of blocks"] == "same tokens"


@pytest.mark.parametrize(("fault", "verdict"), [("", "same tokens"), ("past the end", "differs")])
def test_nothing_is_sent_behind_an_end_of_text(fault: str, verdict: str) -> None:
    """The table's greedy chain behind the probe's first prompt reaches the end after three tokens."""
    end = hashlib.sha256(ASKS[0].encode()).digest()[0] % IDS
    for _ in range(3):
        end = int(TABLE[end].argmax())
    assert verdicts(probed(ProbedTable(fault=fault, stops=end), "--json"))["an end of text in a draft"] == verdict


def test_preempted_requests_are_compared_and_a_server_that_preempts_none_is_skipped() -> None:
    drafts = "vllm:spec_decode_num_drafts_total 1\n"

    def preemption(*counts: int) -> str:
        done = probed(
            ProbedTable(), "--json", metrics=[f"{drafts}vllm:num_preemptions_total {count}\n" for count in counts]
        )
        return verdicts(done)["preemption"]

    assert preemption(2) == "skipped" and preemption(2, 2, 5) == "same tokens"


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


def test_a_seed_that_is_ignored_is_not_shown() -> None:
    done = probed(ProbedTable(fault="own seeds"), "--json")
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
