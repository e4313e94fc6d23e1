"""`stride engine probe` against servers that draw from a small table, rightly or with one planted fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from stridebench.harness.engines.probes import PROBES, begins_json
from tests.support.answer_server import Answers, answer_server
from tests.support.cli import Outcome, refused, stride
from tests.support.sampling_server import IDS, TableServer

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
        key, known = str(body["prompt"]), dict(body)
        many = body["max_tokens"] > 1
        self.calls[key] = self.calls.get(key, 0) + many
        if self.fault == "stale" and many and self.calls[key] > 1 and body["temperature"] == 0:
            known["prompt"] = [IDS - 1]
        if self.fault == "one more" and body["max_tokens"] == 2:
            known["max_tokens"] = 3
        if self.fault == "one seed":
            known["seed"] = 0
        if self.fault == "own seeds":
            self.stream += 1
        events = [*super().reply(known)]
        return self._stopped(events, body["stop"][0]) if body.get("stop") else events

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


def probed(own: TableServer, *words: str) -> Outcome:
    with answer_server(Answers(reply=own.reply, owner="vllm")) as server:
        return stride("engine", "probe", server.url, *words)


def verdicts(done: Outcome) -> dict[str, str]:
    return {row["probe"]: row["verdict"] for row in done.document["rows"]}


def test_a_right_server_is_safe_against_its_own_decode_token_by_token() -> None:
    done = probed(ProbedTable(), "--json")
    assert verdicts(done) == dict.fromkeys(PROBES, "same tokens")
    assert (done.code, done.document["outcome"]) == (0, "safe")


@pytest.mark.parametrize(
    ("fault", "probe"),
    [
        ("stale", "A, B, A with one prefix"),
        ("one more", "max_tokens 1 to 3"),
        ("late stop", "a stop string in a draft"),
        ("no grammar", "JSON"),
        ("one seed", "seeds"),
    ],
)
def test_a_planted_fault_is_found_by_its_probe(fault: str, probe: str) -> None:
    done = probed(ProbedTable(fault=fault), "--json")
    assert verdicts(done)[probe] == "differs" and done.code == 1
    quiet = {"an empty draft after an accepted one", "seeds", "JSON"} - {probe}
    assert {verdicts(done)[name] for name in quiet} == {"same tokens"}


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
    assert done.code == 0 and set(verdicts(done).values()) == {"same tokens"}


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
