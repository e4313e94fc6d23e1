"""`stride engine check` against servers that draw from a small table."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stridebench.harness.discover import declare_all
from stridebench.harness.engines.checking import adapter_of, check
from stridebench.harness.plan.entries import EngineUse, TaskUse
from stridebench.harness.registry import TASKS
from tests.support.answer_server import Answers, answer_server
from tests.support.cli import refused, stride
from tests.support.sampling_server import IDS, TableServer, outcome_of, written_prompts

PLAIN = TableServer(stream=1, drafted=None)
checked = partial(outcome_of, ("engine", "check"))


def drafts(count: int) -> str:
    return f"vllm:spec_decode_num_draft_tokens_total {count}\nvllm:spec_decode_num_accepted_tokens_total {count // 2}\n"


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return written_prompts(tmp_path)


def test_a_sampler_that_is_right_is_safe_and_its_gain_has_an_interval(
    prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    done = checked(TableServer(), PLAIN, prompts)
    assert done.code == 0 and done.out.startswith("safe: ") and done.err == ""
    first = done.out.splitlines()[0]
    assert first.count("[") == 2 and "at T = 0 (" in first and "at T = 1 (" in first
    assert "T = 0: same tokens: all 12 outputs are those of the plain decode" in done.out
    assert "T = 1: not refuted: e = " in done.out and "would have been seen" in done.out
    assert "acceptance" in done.out and "2.00" in done.out
    summary = (tmp_path / "summary.md").read_text()
    assert summary.startswith("## safe: ") and "| with drafts | 0 |" in summary


def test_a_server_that_draws_wrongly_at_temperature_1_is_unsafe(prompts: Path) -> None:
    done = checked(TableServer(power=1.5), PLAIN, prompts, "--json")
    document = done.document
    assert done.code == 1 and document["outcome"] == "unsafe" and document["headline"].startswith("unsafe: ")
    (reason,) = (line for line in document["reasons"] if line.startswith("T = 1"))
    assert reason.startswith("T = 1: broken: e = ") and "colder" in reason and "the plain decode: e = " in reason
    verdicts = {(cell["server"], cell["temperature"]): cell["verdict"] for cell in document["cells"]}
    assert verdicts == {
        ("with drafts", 0.0): "same tokens",
        ("plain", 0.0): "",
        ("with drafts", 1.0): "broken",
        ("plain", 1.0): "",
    }


def test_greedy_tokens_that_differ_far_from_a_tie_are_unsafe(prompts: Path) -> None:
    done = checked(TableServer(slip=20), PLAIN, prompts)
    assert done.code == 1 and "T = 0: differs: 12 of 12 outputs differ, where" in done.out
    assert "nats apart (prompts/" in done.out and "token 20)" in done.out


def test_rounding_moves_tokens_at_near_ties_alone_and_is_safe(prompts: Path) -> None:
    done = checked(TableServer(noise=0.04), PLAIN, prompts)
    assert done.code == 0 and "T = 0: near ties: " in done.out


@pytest.mark.parametrize(
    ("own", "plain", "words", "said"),
    [
        (TableServer(), None, (), ["without its plain decode (--plain)"]),
        (
            TableServer(silent=3, drafted=0, stops=7),
            PLAIN,
            ("--limit", "5"),
            [
                "5 answers came in the time, and 6 are needed",
                "tokens came without probabilities",
                "nothing was drafted",
                "and some only by their end",
            ],
        ),
        (
            TableServer(noise=0.6, power=1.5),
            TableServer(stream=1, power=1.5),
            (),
            ["T = 0: other arithmetic: ", "T = 1: other arithmetic: "],
        ),
        (TableServer(top=-IDS), None, (), ["the server sends the probability of the drawn token alone"]),
        (
            TableServer(rowless=1),
            TableServer(drafted=None, rowless=1),
            (),
            ["T = 0: unverified: no output of both servers came with probabilities", "T = 0: 0 of 12 outputs could be"],
        ),
        (TableServer(rowless=3), PLAIN, (), ["T = 0: unverified: ", "T = 0: 0 of 12 outputs could be compared"]),
        (
            TableServer(),
            TableServer(drafted=None, serves=2),
            (),
            [
                "all 1 outputs are",
                "T = 0: 1 of 12 outputs could be compared",
                "T = 1: not refuted: ",
                "11 x server_error",
            ],
        ),
        (TableServer(), PLAIN, ("--max-new-tokens", "2"), ["too few tokens to see a bias below 0.2"]),
        (TableServer(), PLAIN, ("--max-new-tokens", "1"), ["T = 1: inconclusive: "]),
    ],
)
def test_what_cannot_be_known_is_not_shown(
    own: TableServer, plain: TableServer | None, words: tuple[str, ...], said: list[str], prompts: Path
) -> None:
    done = checked(own, plain, prompts, *words)
    assert done.code == 4 and done.out.startswith("not shown to be safe: "), done.out
    assert [one for one in said if one not in done.out] == [], done.out


@pytest.mark.parametrize(
    ("metrics", "said"),
    [(["<html>{a=</html>"], "the server's counters cannot be read"), ([*map(drafts, (9, 4) * 2)], "went backwards")],
)
def test_counters_that_tell_nothing_are_a_note_and_no_acceptance(prompts: Path, metrics: list[str], said: str) -> None:
    done = checked(TableServer(drafted=None), PLAIN, prompts, metrics=metrics)
    assert done.code == 0 and said in done.out and "with drafts: its counters tell no acceptance" in done.out
    assert "length a pass" not in done.out


def test_without_its_plain_decode_a_wrong_sampler_is_still_refuted(prompts: Path) -> None:
    done = checked(TableServer(power=1.5), None, prompts)
    assert done.code == 1 and "T = 1: refuted: " in done.out
    assert done.out.startswith("unsafe: without its plain decode (--plain) nothing shows whether it pays")


def one_message(answers: Answers, prompts: Path, *words: str) -> str:
    with answer_server(answers) as server:
        return refused("engine", "check", server.url, "--prompts", prompts, *words)


def test_servers_that_cannot_be_checked_are_one_message(prompts: Path) -> None:
    text = refused("engine", "check", "http://127.0.0.1:9", "--prompts", prompts)
    assert "nothing answers at the address: http://127.0.0.1:9" in text
    text = one_message(Answers(reply=PLAIN.reply, whole=True), prompts)
    assert "a stream was asked for" in text and "switch on streaming" in text
    text = one_message(Answers(reply=TableServer(top=0).reply, owner="vllm"), prompts)
    assert "sends no log-probabilities" in text and "Switch them on" in text
    for odd in ({"listing": {"data": 5}}, {"headers": {"Content-Encoding": "gzip"}}):
        text = one_message(Answers(**odd), prompts)
        assert "serves nothing" in text or "is not of the documented form" in text
    text = one_message(Answers(status=307, headers={"Location": "https://there/"}), prompts)
    assert "answered 307: it redirects to https://there/; give the address" in text
    text = one_message(Answers(status=400, body="logprobs: at most 5"), prompts)
    assert "the server refused or redirected the request" in text and "at most 5" in text
    with answer_server(Answers(reply=PLAIN.reply)) as server:
        words = (server.url, "--plain", f"{server.url}/", "--prompts", prompts)
        assert "is the server itself" in refused("engine", "check", *words)


def test_prompts_and_engines_that_do_not_fit_are_one_message(prompts: Path, tmp_path: Path) -> None:
    missing = stride("engine", "check", "http://127.0.0.1:9", "--prompts", tmp_path / "none.jsonl")
    assert missing.code == 2 and "none.jsonl' does not exist" in missing.err
    unnamed = stride("engine", "check", "http://127.0.0.1:9")
    assert unnamed.code == 2 and "--prompts" in unnamed.err
    (chat := tmp_path / "chat.jsonl").write_text('{"messages": [{"role": "user", "content": "hello"}]}\n')
    assert "is not a text" in refused("engine", "check", "http://127.0.0.1:9", "--prompts", chat)
    words = ("--prompts", prompts, "--engine", "transformers")
    assert "there is no server to ask" in refused("engine", "check", "http://127.0.0.1:9", *words)


def test_the_time_is_shared_by_both_temperatures_and_each_has_a_prompt_at_least(prompts: Path) -> None:
    declare_all()
    task: Any = TASKS.get("prompts")(file=str(prompts))
    readings = iter(range(1000))
    with answer_server(Answers(reply=PLAIN.reply)) as server:
        uses = {"speculative": EngineUse("vllm", "server", {"url": server.url, "prompt": "text"})}
        result = check(uses, TaskUse("prompts", task, None), task.prompts(), 4, 8, clock=lambda: float(next(readings)))
    assert [(cell.temperature, cell.prompts) for cell in result.cells] == [(0.0, 4), (1.0, 4)]


@pytest.mark.parametrize(
    ("owner", "adapter"), [("vllm", "vllm"), ("llamacpp", "llama_cpp"), ("sglang", "sglang"), ("someone", "openai")]
)
def test_the_adapter_is_that_of_the_server(owner: str, adapter: str) -> None:
    with answer_server(Answers(owner=owner)) as server:
        assert adapter_of(server.url, "STRIDE_API_KEY") == adapter
