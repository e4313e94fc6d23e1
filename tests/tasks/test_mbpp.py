"""MBPP over small files of the published formats."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from stridebench.harness.errors import UsageError
from stridebench.tasks.mbpp import Mbpp, body
from tests.support.text_benchmarks import MBPP, SANITIZED, task_of, write_rows


class TestMbpp:
    def test_the_prompt_is_the_published_one(self, text_files: Path) -> None:
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

    def test_the_sanitized_variant_has_its_imports(self, tmp_path: Path) -> None:
        path = write_rows(tmp_path / "sanitized-mbpp.json", json.dumps(SANITIZED))
        task = Mbpp("sanitized", file=path)
        (prompt,) = task.prompts()
        assert prompt.id == "mbpp/20" and "assert math.isinf(f20())\n[BEGIN]\n" in (prompt.text or "")
        assert task.score(prompt, SANITIZED[3]["code"], ()) == {"pass@1": 1.0}

    def test_the_file_of_the_other_variant_is_refused(self, text_files: Path, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"entry 1: text is None.*found the fields code, prompt"):
            Mbpp(file=write_rows(tmp_path / "sanitized-mbpp.json", json.dumps(SANITIZED))).prompts()
        with pytest.raises(UsageError, match=r"mbpp.jsonl:2: prompt is None"):
            Mbpp("sanitized", file=str(text_files / "mbpp/mbpp.jsonl")).prompts()

    def test_the_references_pass_and_wrong_programs_fail(self, text_files: Path) -> None:
        """The second reference needs the imports of its set-up."""
        (add, root), (code, code_of_root) = Mbpp().prompts(), (row["code"] for row in MBPP[4:6])
        assert Mbpp().score(add, code + "\n[DONE]\n\nYou are", ()) == {"pass@1": 1.0}
        assert Mbpp().score(root, f"```python\n{code_of_root}\n```\nThis is it.", ()) == {"pass@1": 1.0}
        for wrong in (code.replace("return", "return 1 +"), "", "import sys; sys.exit(0)"):
            assert Mbpp().score(add, wrong, ()) == {"pass@1": 0.0}

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
    def test_the_program_is_extracted_from_an_output(self, text, program) -> None:
        assert body(text) == program

    def test_the_setup_precedes_the_program_and_its_tests(self, text_files: Path) -> None:
        prompt = Mbpp().prompts()[1]
        assert prompt.data["setup"] == "from math import sqrt" and prompt.data["names"] == ["root"]

    def test_missing_examples_are_named(self, tmp_path: Path) -> None:
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
    def test_malformed_data_is_refused(self, tmp_path: Path, change, says) -> None:
        with pytest.raises(UsageError) as error:
            task_of("mbpp", tmp_path, [{**MBPP[4], **change}], shots=0).prompts()
        assert "mbpp.jsonl:1: " in str(error.value) and says in str(error.value)

    def test_the_hub_brings_the_examples_with_their_split(self, monkeypatch) -> None:
        parts = {"prompt": MBPP[:4], "test": MBPP[4:6]}
        fake = SimpleNamespace(load_dataset=lambda path, split, **how: parts[split])
        monkeypatch.setitem(sys.modules, "datasets", fake)
        assert len(Mbpp(hub="official").prompts()) == 2
